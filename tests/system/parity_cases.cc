// SPDX-License-Identifier: Apache-2.0
#include "tests/system/parity_cases.h"

#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace terrace {
namespace {

constexpr size_t kSampleEvery = 331;
// Prime: it meets all schedules, recomputes and precisions. A layout takes ten times as long there.
constexpr size_t kOnThreadsEvery = 307;

struct Shard {
  size_t index = 0;
  size_t count = 1;  // 0: no layout at all
};

// k from 0 on; without it there is one shard.
Shard ShardFromEnvironment() {
  const char* text = std::getenv("TERRACE_LAYOUTS_SHARD");
  if (text == nullptr) return {};
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  Shard shard;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &shard.index) ||
      !absl::SimpleAtoi(parts[1], &shard.count) || shard.index >= shard.count) {
    ADD_FAILURE() << "TERRACE_LAYOUTS_SHARD: got '" << text << "', must be k/n with k below n";
    return {0, 0};
  }
  return shard;
}

std::string Grid(const LayoutCase& c) {
  LayoutCase grid = {c.family, MatrixLayout()};
  grid.layout.set_data_parallel(c.layout.data_parallel());
  grid.layout.set_tensor_parallel(c.layout.tensor_parallel());
  grid.layout.set_pipeline_parallel(c.layout.pipeline_parallel());
  grid.layout.set_context_parallel(c.layout.context_parallel());
  grid.layout.set_zero_stage(c.layout.zero_stage());
  return Describe(grid);
}

}  // namespace

ParityCases CasesFromEnvironment() {
  const bool all = std::getenv("TERRACE_ALL_LAYOUTS") != nullptr;
  const char* filter = std::getenv("TERRACE_LAYOUTS");
  const Shard shard = ShardFromEnvironment();
  ParityCases result = {.shard = absl::StrCat(shard.index, "/", shard.count),
                        .on_threads_every = all ? kOnThreadsEvery : 1};
  const size_t every = all || filter != nullptr ? 1 : kSampleEvery;
  std::map<std::string, size_t> grids;                // numbered as they come
  std::vector<std::pair<size_t, ParityCase>> wanted;  // with their grids
  size_t index = 0;
  for (LayoutCase& c : LayoutMatrix(8, every)) {
    ParityCase parity = {std::move(c), every * index++};
    if (filter != nullptr && Describe(parity.layout).find(filter) == std::string::npos) continue;
    const size_t grid = grids.emplace(Grid(parity.layout), grids.size()).first->second;
    wanted.emplace_back(grid, std::move(parity));
  }
  for (auto& [grid, parity] : wanted) {
    if (grid * shard.count / grids.size() == shard.index) result.cases.push_back(std::move(parity));
  }
  return result;
}

// On one stage gpipe adds what a tied table gets as a head of all micro-batches to what it gets as
// an embedding of all, the others micro-batch by micro-batch. Runs do as gpipe does, but with ZeRO
// 2 and 3, where they sum over micro-batches before ranks.
std::string BitwiseFamily(const LayoutCase& c) {
  LayoutCase family = c;
  family.layout.clear_recompute();
  std::string schedule = c.layout.schedule();
  const bool alike = c.layout.pipeline_parallel() == 1 || c.layout.interleave() == 1;
  if (InRuns(schedule) && c.layout.zero_stage() < 2 && alike) {
    schedule = "gpipe";
    family.layout.set_schedule(schedule);
    family.layout.set_interleave(1);
  }
  const bool tied = !MatrixModel(c.family).tied.empty();
  const bool another_order = tied && schedule == "gpipe" && c.layout.pipeline_parallel() == 1;
  if ((schedule == "gpipe" && !another_order) || schedule == "zb-h1")
    family.layout.set_schedule("1f1b");
  if (c.layout.zero_stage() == 3) family.layout.set_zero_stage(2);
  return Describe(family);
}

}  // namespace terrace
