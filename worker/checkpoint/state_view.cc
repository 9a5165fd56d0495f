// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/state_view.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/program/announced_weights.h"
#include "proto/program/op_codec.h"
#include "proto/program/state_layout.h"

namespace terrace {
namespace {

absl::Status BadRange(const v1::StateRange& range, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("state range ", v1::StateKind_Name(range.kind()),
                                                 " of ", range.tensor(), " at row ", range.row(),
                                                 ", column ", range.column(), ": ", Absl(why)));
}

absl::Status AddSlices(const v1::StateRange& range, const RankState& state,
                       std::vector<StateSlice>* slices) {
  const v1::Program& program = state.program;
  if (range.buffer() >= static_cast<uint32_t>(program.buffers_size())) {
    return BadRange(range, "no such buffer");
  }
  const v1::Buffer& buffer = program.buffers(range.buffer());
  if (buffer.arena() >= state.regions.size()) return BadRange(range, "its buffer is in no arena");
  const int64_t size = kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
  if (size == 0) return BadRange(range, "unknown element type");
  if (range.offset() < 0) return BadRange(range, "outside its buffer");
  Region* const region = state.regions[buffer.arena()];
  const bool owned = OwnsState(range, program.grid(), state.rank);
  for (const StateRun& run : RunsOf(range, program.grid(), state.rank)) {
    if (run.offset > buffer.bytes() || run.elements > (buffer.bytes() - run.offset) / size) {
      return BadRange(range, "outside its buffer");
    }
    const int64_t offset = buffer.offset() + run.offset;
    if (offset % size != 0) return BadRange(range, "not aligned to its elements");
    slices->push_back({run.begin, run.elements, region, offset, range.buffer(), owned});
  }
  return absl::OkStatus();
}

// Tensors that are read in parts, such as queries, keys and values, often lie as one in memory.
void JoinSlices(StateTensor* tensor) {
  std::vector<StateSlice> joined;
  for (const StateSlice& slice : tensor->slices) {
    StateSlice* last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && last->begin + last->elements == slice.begin &&
        last->offset + last->elements * tensor->element_bytes() == slice.offset &&
        last->buffer == slice.buffer && last->owned == slice.owned) {
      last->elements += slice.elements;
    } else {
      joined.push_back(slice);
    }
  }
  tensor->slices = std::move(joined);
}

absl::Status SortSlices(StateTensor* tensor) {
  std::vector<StateSlice>& slices = tensor->slices;
  std::sort(slices.begin(), slices.end(),
            [](const StateSlice& a, const StateSlice& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < slices.size(); ++i) {
    if (slices[i - 1].begin + slices[i - 1].elements <= slices[i].begin) continue;
    return absl::InvalidArgumentError(absl::StrCat("the state manifest holds element ",
                                                   slices[i].begin, " of ", tensor->stored_name,
                                                   " twice on one rank"));
  }
  JoinSlices(tensor);
  return absl::OkStatus();
}

}  // namespace

bool StateTensor::addressable() const {
  return std::all_of(slices.begin(), slices.end(),
                     [](const StateSlice& slice) { return slice.data() != nullptr; });
}

std::string StoredName(std::string_view tensor, v1::StateKind kind,
                       const kernels::OptimizerRow& optimizer) {
  const auto moment = [&](int index, const char* suffix) {
    return absl::StrCat(Absl(tensor), ".", Absl(optimizer.stored[index]), suffix);
  };
  const auto factor = [&](const char* suffix) {
    return absl::StrCat(Absl(tensor), ".", Absl(optimizer.name), suffix);
  };
  switch (kind) {
    case v1::FIRST_MOMENT:
      return moment(0, "");
    case v1::SECOND_MOMENT:
      return moment(1, "");
    case v1::FIRST_MOMENT_SCALES:
      return moment(0, "_scales");
    case v1::SECOND_MOMENT_SCALES:
      return moment(1, "_scales");
    case v1::ROW_MOMENT:
      return factor("_row");
    case v1::COLUMN_MOMENT:
      return factor("_column");
    case v1::ROW_ERROR:
      return factor("_error_row");
    case v1::COLUMN_ERROR:
      return factor("_error_column");
    case v1::RESIDUAL:
      return absl::StrCat(Absl(tensor), ".residual");
    default:
      return std::string(tensor);
  }
}

const kernels::OptimizerRow& OptimizerOf(const v1::Program& program) {
  return kernels::RowOf(DecodeRule(program.rules().optimizer()));
}

absl::StatusOr<std::vector<StateTensor>> ViewState(const RankState& state) {
  const TensorRules rules(state.program);
  std::vector<StateTensor> tensors;
  std::map<std::string, size_t> index;
  for (const v1::StateRange& range : state.program.state()) {
    std::string name = StoredName(range.tensor(), range.kind(), rules.Of(range.tensor()));
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
    if (!std::equal(tensor.shape.begin(), tensor.shape.end(), range.shape().begin(),
                    range.shape().end())) {
      return BadRange(range, "two shapes");
    }
    RETURN_IF_ERROR(AddSlices(range, state, &tensor.slices));
  }
  for (StateTensor& tensor : tensors) RETURN_IF_ERROR(SortSlices(&tensor));
  return tensors;
}

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace terrace
