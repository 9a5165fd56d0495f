// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/decoded_state.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/op.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/state.h"

namespace terrace::check {
namespace {

constexpr int kCodes = 0, kScales = 1;  // operands of kDecodeBlocks
constexpr int64_t kScaleBytes = sizeof(float);

}  // namespace

// What is no state, as padding between gathered tensors, is left out.
std::vector<DecodedState::Piece> DecodedState::PiecesOf(const Access& access,
                                                        int64_t element_bytes) const {
  std::vector<Piece> pieces;
  flow_.ForEach(access, [&](const ByteRange& bytes, const Value& value) {
    if (value.role != Value::kState || value.encoded_by >= 0) return;
    pieces.push_back({.begin = bytes.begin - access.offset,
                      .end = bytes.end - access.offset,
                      .first = bytes.begin / element_bytes + value.distance,
                      .origin = static_cast<uint32_t>(value.origin)});
  });
  return pieces;
}

absl::Status DecodedState::CheckFormat(const Piece& codes, const CodeFormat& used,
                                       const std::string& where) const {
  absl::Status status;
  state_.ForEach(codes.origin, 0, INT64_MAX, [&](const v1::StateRange& range) {
    const auto found = announced_.find(range.tensor());
    const bool are_codes = range.kind() == v1::WEIGHT && found != announced_.end() &&
                           found->second.part == AnnouncedWeight::Part::kCodes;
    if (!status.ok() || (are_codes && CodesOf(*found->second.initializer) == used)) return;
    status = Refuse(where, ": decodes '", range.tensor(), "' as ", Absl(used.row->name),
                    " in blocks of ", used.block, ", which its initializer does not say");
  });
  return status;
}

// From its first block to its last, each with its own.
absl::Status DecodedState::CheckScales(const Piece& codes, const std::vector<Piece>& scales,
                                       const CodeFormat& used, const std::string& where) const {
  const int64_t bytes = used.block_bytes(), end = (codes.end + bytes - 1) / bytes;
  int64_t at = codes.begin / bytes;
  for (const Piece& piece : scales) {
    const int64_t first = piece.begin / kScaleBytes, last = piece.end / kScaleBytes;
    if (last <= at || first > at || at >= end) continue;
    const bool own = codes.first - codes.begin == (piece.first - first) * bytes &&
                     state_.ScalesOf(codes.origin, piece.origin, v1::WEIGHT, bytes);
    if (!own) break;
    at = last;
  }
  if (at >= end) return absl::OkStatus();
  return Refuse(where, ": decodes codes from byte ", codes.first, " of ",
                BufferText(program_, codes.origin), " on with other scales than theirs");
}

absl::Status DecodedState::Check(int i) const {
  const CheckedInstruction& instruction = sequence_.instructions[i];
  if (!instruction.op.has_value() || instruction.op->op != kernels::Op::kDecodeBlocks)
    return absl::OkStatus();
  const std::vector<Piece> codes = PiecesOf(*instruction.Find(kCodes), 1);
  if (codes.empty()) return absl::OkStatus();
  const auto& attrs = std::get<kernels::BlockAttrs>(instruction.op->attrs);
  const CodeFormat used = {.row = &kernels::RowOf(attrs.format), .block = attrs.block};
  const std::string where = Where(*sequence_.sequence, sequence_.sequence->instructions(i));
  const std::vector<Piece> scales = PiecesOf(*instruction.Find(kScales), kScaleBytes);
  for (const Piece& piece : codes) {
    RETURN_IF_ERROR(CheckFormat(piece, used, where));
    RETURN_IF_ERROR(CheckScales(piece, scales, used, where));
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
