// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/state_view.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

std::string StoredName(const v1::StateRange& range) {
  switch (range.kind()) {
    case v1::ADAM_M:
      return absl::StrCat(range.tensor(), ".adam_m");
    case v1::ADAM_V:
      return absl::StrCat(range.tensor(), ".adam_v");
    default:
      return range.tensor();
  }
}

absl::Status BadRange(const v1::StateRange& range, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("state range of ", StoredName(range),
                                                 " at element ", range.tensor_begin(), ": ",
                                                 std::string(why)));
}

absl::StatusOr<StateSlice> Locate(const v1::StateRange& range, const v1::Program& program,
                                  std::span<std::byte* const> arenas) {
  if (range.buffer() >= program.buffers_size()) return BadRange(range, "no such buffer");
  const v1::Buffer& buffer = program.buffers(range.buffer());
  if (buffer.arena() >= arenas.size()) return BadRange(range, "its buffer is in no arena");
  const int64_t size = kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
  if (size == 0) return BadRange(range, "unknown element type");
  if (range.offset() < 0 || range.elements() < 0 || range.offset() > buffer.bytes() ||
      range.elements() > (buffer.bytes() - range.offset()) / size) {
    return BadRange(range, "outside its buffer");
  }
  return StateSlice{range.tensor_begin(), range.elements(),
                    arenas[buffer.arena()] + buffer.offset() + range.offset()};
}

absl::Status CheckCovered(StateTensor* tensor) {
  std::sort(tensor->slices.begin(), tensor->slices.end(),
            [](const StateSlice& a, const StateSlice& b) { return a.begin < b.begin; });
  int64_t next = 0;
  for (const StateSlice& slice : tensor->slices) {
    if (slice.begin != next) break;
    next += slice.elements;
  }
  if (next == tensor->elements()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the state manifest covers ", next, " of the ", tensor->elements(),
                   " elements of ", tensor->stored_name, " in order, must be all, once"));
}

}  // namespace

int64_t StateTensor::elements() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

absl::StatusOr<std::vector<StateTensor>> ViewState(const v1::Program& program,
                                                   std::span<std::byte* const> arenas) {
  std::vector<StateTensor> tensors;
  std::map<std::string, size_t> index;
  for (const v1::StateRange& range : program.state()) {
    std::string name = StoredName(range);
    const auto [place, is_new] = index.emplace(name, tensors.size());
    if (is_new) {
      tensors.push_back({.tensor = range.tensor(),
                         .stored_name = std::move(name),
                         .kind = range.kind(),
                         .dtype = static_cast<kernels::DType>(range.dtype()),
                         .shape = {range.shape().begin(), range.shape().end()}});
    }
    StateTensor& tensor = tensors[place->second];
    if (tensor.dtype != static_cast<kernels::DType>(range.dtype())) {
      return BadRange(range, "two element types");
    }
    ASSIGN_OR_RETURN(const StateSlice slice, Locate(range, program, arenas));
    tensor.slices.push_back(slice);
  }
  for (StateTensor& tensor : tensors) RETURN_IF_ERROR(CheckCovered(&tensor));
  return tensors;
}

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace terrace
