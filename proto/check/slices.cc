// SPDX-License-Identifier: Apache-2.0
#include "proto/check/slices.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "proto/check/refuse.h"
#include "proto/check/state.h"
#include "proto/tiers.h"

namespace terrace::check {
namespace {

// Different cuts of one buffer that are compared each with each; of more only the dense ones are
// compared.
constexpr size_t kCutsMax = 64;

// A way in which a buffer is cut, and who cuts it so first.
struct Cut {
  Access access;
  const v1::Sequence* sequence = nullptr;  // null: the manifest
  int instruction = 0;
  const v1::StateRange* range = nullptr;

  auto Key() const {
    return std::tuple(access.offset, access.rows, access.row_bytes, access.stride_bytes);
  }
  bool operator<(const Cut& other) const { return Key() < other.Key(); }
  bool operator==(const Cut& other) const {
    return access.buffer == other.access.buffer && Key() == other.Key();
  }
};

struct CutHash {
  size_t operator()(const Cut& cut) const {
    const Access& a = cut.access;
    uint64_t hash = a.buffer;
    for (int64_t part : {a.offset, a.rows, a.row_bytes, a.stride_bytes}) {
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
      hash ^= hash >> 32;
    }
    return hash;
  }
};

std::string CutText(const Cut& cut) {
  if (cut.sequence == nullptr) return absl::StrCat("the state of '", cut.range->tensor(), "'");
  return absl::StrCat(Where(*cut.sequence, cut.sequence->instructions(cut.instruction)),
                      ", operand ", cut.access.operand);
}

std::string BytesText(const Access& access) {
  const std::string bytes = absl::StrCat("[", access.offset, ", ", access.end(), ")");
  return access.rows == 1 ? bytes : absl::StrCat(bytes, " in ", access.rows, " rows");
}

// Whether `inner` lies in one row of `outer`, or each of its rows in a row of it.
bool Contains(const Access& outer, const Access& inner) {
  if (outer.offset > inner.offset || outer.end() < inner.end()) return false;
  if (outer.rows == 1) return true;
  const int64_t distance = inner.offset - outer.offset;
  const int64_t column = distance % outer.stride_bytes;
  if (inner.rows > 1 && inner.stride_bytes != outer.stride_bytes) return true;  // not compared
  return column + inner.row_bytes <= outer.row_bytes;
}

// How many cuts begin or end at a byte, in their first row.
class Edges {
 public:
  explicit Edges(const std::set<Cut>& cuts) {
    for (const Cut& cut : cuts) {
      ++count_[cut.access.offset];
      ++count_[FirstRowEnd(cut.access)];
    }
  }
  // Both ends of what a and b have in common are ends of a third, too.
  bool Explain(const Access& a, const Access& b) const {
    return count_.at(std::max(a.offset, b.offset)) > 1 &&
           count_.at(std::min(FirstRowEnd(a), FirstRowEnd(b))) > 1;
  }

 private:
  static int64_t FirstRowEnd(const Access& access) { return access.offset + access.row_bytes; }

  std::map<int64_t, int> count_;
};

bool Crosses(const Access& a, const Access& b, const Edges& edges) {
  if (a.rows > 1 && b.rows > 1 && a.stride_bytes != b.stride_bytes) return false;
  return Overlap(a, b) && !Contains(a, b) && !Contains(b, a) && !edges.Explain(a, b);
}

absl::Status Complain(const v1::Program& program, uint32_t buffer, const Cut& a, const Cut& b) {
  const Cut& culprit = a.sequence == nullptr || (b.sequence != nullptr && a < b) ? b : a;
  const Cut& other = &culprit == &a ? b : a;
  return Refuse(CutText(culprit), ": bytes ", BytesText(culprit.access), " of ",
                BufferText(program, buffer), " cross bytes ", BytesText(other.access), " of ",
                CutText(other), "; slices lie apart or one inside the other");
}

// `cuts` in order of their first byte.
absl::Status CheckBuffer(const v1::Program& program, uint32_t buffer, const std::set<Cut>& cuts) {
  if (cuts.size() < 2) return absl::OkStatus();
  const Edges edges(cuts);
  if (cuts.size() <= kCutsMax) {
    for (auto a = cuts.begin(); a != cuts.end(); ++a) {
      for (auto b = std::next(a); b != cuts.end() && b->access.offset < a->access.end(); ++b) {
        if (Crosses(a->access, b->access, edges)) return Complain(program, buffer, *a, *b);
      }
    }
    return absl::OkStatus();
  }
  // Of nested ranges the innermost that is open at each byte; longer ones come first.
  std::vector<const Cut*> dense;
  for (const Cut& cut : cuts) {
    if (cut.access.rows == 1) dense.push_back(&cut);
  }
  std::stable_sort(dense.begin(), dense.end(), [](const Cut* a, const Cut* b) {
    return std::pair(a->access.offset, -a->access.end()) <
           std::pair(b->access.offset, -b->access.end());
  });
  std::vector<const Cut*> open;
  for (const Cut* cut : dense) {
    while (!open.empty() && open.back()->access.end() <= cut->access.offset) open.pop_back();
    if (!open.empty() && Crosses(open.back()->access, cut->access, edges)) {
      return Complain(program, buffer, *open.back(), *cut);
    }
    open.push_back(cut);
  }
  return absl::OkStatus();
}

// Off the device memory is cut into chunks, which have nothing to do with tensors; what is in them
// is followed byte by byte (flow.h).
bool IsOfChunk(const v1::Program& program, const v1::Instruction& instruction,
               const Access& access) {
  const v1::Buffer& buffer = program.buffers(static_cast<int>(access.buffer));
  return instruction.kind_case() == v1::Instruction::kCopy || TierOf(program, buffer) != v1::DEVICE;
}

}  // namespace

absl::Status CheckSlices(const v1::Program& program,
                         const std::vector<CheckedSequence>& sequences) {
  // Few of a program's operands are cut in a way that no earlier one was.
  std::unordered_set<Cut, CutHash> distinct;
  for (const v1::StateRange& range : program.state()) {
    if (range.shard_elements() > 0) continue;  // places differ from rank to rank
    const Rows rows = RowsIn(range);
    const Access access = {.buffer = range.buffer(),
                           .offset = rows.offset,
                           .rows = rows.rows,
                           .row_bytes = rows.row_bytes,
                           .stride_bytes = rows.stride_bytes};
    distinct.insert({.access = access, .range = &range});
  }
  for (const CheckedSequence& sequence : sequences) {
    for (int i = 0; i < static_cast<int>(sequence.instructions.size()); ++i) {
      for (const Access& access : sequence.instructions[i].accesses) {
        if (access.operand == kWorkspaceOperand ||
            IsOfChunk(program, sequence.sequence->instructions(i), access))
          continue;
        distinct.insert({.access = access, .sequence = sequence.sequence, .instruction = i});
      }
    }
  }
  std::vector<std::set<Cut>> cuts(program.buffers_size());
  for (const Cut& cut : distinct) cuts[cut.access.buffer].insert(cut);
  for (int buffer = 0; buffer < program.buffers_size(); ++buffer) {
    RETURN_IF_ERROR(CheckBuffer(program, static_cast<uint32_t>(buffer), cuts[buffer]));
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
