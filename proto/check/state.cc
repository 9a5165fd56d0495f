// SPDX-License-Identifier: Apache-2.0
#include "proto/check/state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/tensor_view.h"
#include "proto/check/refuse.h"
#include "proto/check/structure.h"

namespace terrace::check {
namespace {

using google::protobuf::RepeatedField;

int64_t Bytes(const v1::StateRange& range) {
  return range.elements() * kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
}

std::string RangeText(const v1::StateRange& range) {
  return absl::StrCat("state ", v1::StateKind_Name(range.kind()), " of '", range.tensor(), "'");
}

// -1 when a size is not positive or the product too large.
int64_t Elements(const RepeatedField<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) {
    if (size < 1 || size > kBytesMax / elements) return -1;
    elements *= size;
  }
  return elements;
}

absl::Status CheckPersistent(const v1::Program& program, uint32_t buffer,
                             const std::string& where) {
  if (buffer >= static_cast<uint32_t>(program.buffers_size())) {
    return Refuse(where, ": buffer ", buffer, " of ", program.buffers_size(), " does not exist");
  }
  if (program.buffers(buffer).lifetime() == v1::PERSISTENT) return absl::OkStatus();
  return Refuse(where, ": ", BufferText(program, buffer), " must be persistent");
}

absl::Status CheckRange(const v1::Program& program, const v1::StateRange& range) {
  const std::string where = RangeText(range);
  if (range.tensor().empty()) return Refuse(where, ": the tensor has no name");
  if (!v1::StateKind_IsValid(range.kind()) || range.kind() == v1::STATE_UNSPECIFIED) {
    return Refuse(where, ": kind ", range.kind(), " does not exist");
  }
  if (!v1::DType_IsValid(range.dtype()) || range.dtype() == v1::DTYPE_UNSPECIFIED) {
    return Refuse(where, ": type ", range.dtype(), " does not exist");
  }
  const int64_t elements = Elements(range.shape());
  if (elements < 0) return Refuse(where, ": its shape is not valid");
  if (range.elements() < 1 || range.tensor_begin() < 0 || range.tensor_begin() > elements ||
      range.elements() > elements - range.tensor_begin()) {
    return Refuse(where, ": elements [", range.tensor_begin(), ", +", range.elements(),
                  ") must lie inside its ", elements);
  }
  RETURN_IF_ERROR(CheckPersistent(program, range.buffer(), where));
  const v1::Buffer& buffer = program.buffers(range.buffer());
  const int64_t element_bytes = kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
  if (range.offset() < 0 || range.offset() % element_bytes != 0 ||
      range.offset() > buffer.bytes() || Bytes(range) > buffer.bytes() - range.offset()) {
    return Refuse(where, ": bytes [", range.offset(), ", +", Bytes(range),
                  ") must lie aligned inside ", BufferText(program, range.buffer()), " of ",
                  buffer.bytes(), " bytes");
  }
  return absl::OkStatus();
}

// `ranges` are those of one tensor and kind, by tensor_begin.
absl::Status CheckCover(const std::vector<const v1::StateRange*>& ranges) {
  int64_t covered = 0;
  for (const v1::StateRange* range : ranges) {
    const v1::StateRange& first = *ranges[0];
    const bool same =
        range->dtype() == first.dtype() && std::equal(range->shape().begin(), range->shape().end(),
                                                      first.shape().begin(), first.shape().end());
    if (!same) return Refuse(RangeText(first), ": its ranges differ in shape or type");
    if (range->tensor_begin() != covered) {
      return Refuse(RangeText(first), ": element ", std::min(covered, range->tensor_begin()),
                    range->tensor_begin() < covered ? " is held twice" : " is held by no range");
    }
    covered += range->elements();
  }
  const int64_t elements = Elements(ranges[0]->shape());
  if (covered == elements) return absl::OkStatus();
  return Refuse(RangeText(*ranges[0]), ": element ", covered, " of ", elements,
                " is held by no range");
}

absl::Status CheckMemoryOnce(const v1::Program& program) {
  std::vector<const v1::StateRange*> ranges;
  for (const v1::StateRange& range : program.state()) ranges.push_back(&range);
  std::sort(ranges.begin(), ranges.end(), [](const v1::StateRange* a, const v1::StateRange* b) {
    return std::pair(a->buffer(), a->offset()) < std::pair(b->buffer(), b->offset());
  });
  for (size_t i = 1; i < ranges.size(); ++i) {
    const v1::StateRange& a = *ranges[i - 1];
    const v1::StateRange& b = *ranges[i];
    if (a.buffer() == b.buffer() && a.offset() + Bytes(a) > b.offset()) {
      return Refuse(RangeText(b), " and ", RangeText(a), " overlap in ",
                    BufferText(program, b.buffer()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInitializers(const v1::Program& program,
                               const std::map<std::string, int64_t>& weights) {
  std::set<std::string> seen;
  for (const v1::Initializer& init : program.initializers()) {
    const auto weight = weights.find(init.tensor());
    if (weight == weights.end())
      return Refuse("initializer of '", init.tensor(), "': there is no such weight");
    if (!seen.insert(init.tensor()).second)
      return Refuse("initializer of '", init.tensor(), "': is there twice");
    if (Elements(init.shape()) != weight->second) {
      return Refuse("initializer of '", init.tensor(),
                    "': its shape has other elements than the weight's ", weight->second);
    }
    const bool known =
        init.kind() == v1::Initializer::CONSTANT || init.kind() == v1::Initializer::NORMAL;
    if (!known || !std::isfinite(init.mean()) || !std::isfinite(init.stddev()) ||
        init.stddev() < 0) {
      return Refuse("initializer of '", init.tensor(), "': kind, mean or stddev is not valid");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRopeTable(const v1::Program& program, const v1::RopeTable& table) {
  RETURN_IF_ERROR(CheckPersistent(program, table.buffer(), "rope table"));
  const v1::Buffer& buffer = program.buffers(table.buffer());
  const std::string where = absl::StrCat("rope table in ", BufferText(program, table.buffer()));
  if (buffer.dtype() != v1::F32 || buffer.shape_size() != 2 ||
      buffer.shape(1) != 2 * int64_t{table.inverse_frequency_size()}) {
    return Refuse(where, ": the buffer must be f32 [positions, ",
                  2 * table.inverse_frequency_size(), "], twice the number of frequencies");
  }
  const bool finite =
      std::isfinite(table.attention_factor()) &&
      std::all_of(table.inverse_frequency().begin(), table.inverse_frequency().end(),
                  [](double frequency) { return std::isfinite(frequency); });
  if (!finite) return Refuse(where, ": a frequency or the attention factor is not finite");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckState(const v1::Program& program) {
  std::map<std::pair<std::string, int>, std::vector<const v1::StateRange*>> tensors;
  for (const v1::StateRange& range : program.state()) {
    RETURN_IF_ERROR(CheckRange(program, range));
    tensors[{range.tensor(), range.kind()}].push_back(&range);
  }
  std::map<std::string, int64_t> weights;  // elements by name
  for (auto& [key, ranges] : tensors) {
    std::sort(ranges.begin(), ranges.end(), [](const v1::StateRange* a, const v1::StateRange* b) {
      return a->tensor_begin() < b->tensor_begin();
    });
    RETURN_IF_ERROR(CheckCover(ranges));
    if (key.second == v1::WEIGHT) weights[key.first] = Elements(ranges[0]->shape());
  }
  RETURN_IF_ERROR(CheckMemoryOnce(program));
  RETURN_IF_ERROR(CheckInitializers(program, weights));
  for (const v1::RopeTable& table : program.rope_tables())
    RETURN_IF_ERROR(CheckRopeTable(program, table));
  for (const auto& [name, holder] : program.tied()) {
    if (!weights.contains(holder))
      return Refuse("tied tensor '", name, "': '", holder, "' is no weight");
    if (weights.contains(name)) return Refuse("tied tensor '", name, "': is a weight of its own");
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
