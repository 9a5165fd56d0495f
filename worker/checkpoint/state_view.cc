// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/state_view.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/state_layout.h"

namespace terrace {
namespace {

std::string NameOf(const v1::StateRange& range) { return StoredName(range.tensor(), range.kind()); }

absl::Status BadRange(const v1::StateRange& range, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("state range of ", NameOf(range), " at row ",
                                                 range.row(), ", column ", range.column(), ": ",
                                                 Absl(why)));
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
  std::byte* const data = state.regions[buffer.arena()]->data() + buffer.offset();
  const bool owned = OwnsState(range, program.grid(), state.rank);
  for (const StateRun& run : RunsOf(range, program.grid(), state.rank)) {
    if (run.offset > buffer.bytes() || run.elements > (buffer.bytes() - run.offset) / size) {
      return BadRange(range, "outside its buffer");
    }
    slices->push_back({run.begin, run.elements, data + run.offset, owned});
  }
  return absl::OkStatus();
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
  return absl::OkStatus();
}

}  // namespace

std::string StoredName(std::string_view tensor, v1::StateKind kind) {
  const char* suffix = kind == v1::ADAM_M ? ".adam_m" : kind == v1::ADAM_V ? ".adam_v" : "";
  return absl::StrCat(Absl(tensor), suffix);
}

absl::StatusOr<std::vector<StateTensor>> ViewState(const RankState& state) {
  std::vector<StateTensor> tensors;
  std::map<std::string, size_t> index;
  for (const v1::StateRange& range : state.program.state()) {
    std::string name = NameOf(range);
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

void ZeroPadding(const RankState& state) {
  std::map<uint32_t, int64_t> held_bytes;  // by buffer
  for (const v1::StateRange& range : state.program.state()) {
    int64_t& held = held_bytes[range.buffer()];
    for (const StateRun& run : RunsOf(range, state.program.grid(), state.rank)) {
      held += run.elements * kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
    }
  }
  for (const auto& [id, held] : held_bytes) {
    const v1::Buffer& buffer = state.program.buffers(id);
    if (held == buffer.bytes()) continue;
    std::memset(state.regions[buffer.arena()]->data() + buffer.offset(), 0, buffer.bytes());
  }
}

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace terrace
