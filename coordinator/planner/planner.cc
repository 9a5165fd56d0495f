// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planner.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/planner/estimate.h"

namespace terrace {
namespace {

// Small enough to start reducing early in the backward pass, large enough for the link's full rate.
constexpr int64_t kDefaultBucketBytes = int64_t{25} << 20;

absl::Status CheckPinned(const v1::LayoutSpec& pinned, uint32_t ranks) {
  const struct {
    const char* key;
    int64_t got;
    int64_t only;
  } keys[] = {{"tp", pinned.tp(), 1}, {"pp", pinned.pp(), 1}, {"cp", pinned.cp(), 1}};
  for (const auto& [key, got, only] : keys) {
    if (got > only) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout.", key, ": got ", got,
                       ", must be 1: this version trains data-parallel; leave it out"));
    }
  }
  if (pinned.zero() > 0) {
    return absl::InvalidArgumentError(absl::StrCat("layout.zero: got ", pinned.zero(),
                                                   ", must be 0 in this version; leave it out"));
  }
  if (!pinned.recompute().empty() && pinned.recompute() != "none") {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.recompute: got '", pinned.recompute(),
                     "', must be 'none' in this version; leave it out"));
  }
  if (pinned.dp() != 0 && pinned.dp() != ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout.dp: got ", pinned.dp(), ", must be ", ranks,
        ", the number of ranks that resources give; leave it out or change resources"));
  }
  return absl::OkStatus();
}

std::vector<int64_t> Divisors(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    divisors.push_back(d);
    if (d != number / d) divisors.push_back(number / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

// Sequences that one rank trains on in a step.
absl::StatusOr<int64_t> RankBatch(int64_t global_batch, int64_t ranks) {
  if (global_batch % ranks == 0 && global_batch >= ranks) return global_batch / ranks;
  const int64_t below = global_batch / ranks * ranks;
  const std::string nearest =
      below > 0 ? absl::StrCat(below, " or ", below + ranks) : absl::StrCat(ranks);
  return absl::InvalidArgumentError(absl::StrCat("train.global_batch: got ", global_batch,
                                                 ", must be a multiple of the ", ranks,
                                                 " data-parallel ranks; try ", nearest));
}

absl::StatusOr<std::vector<int64_t>> MicroBatches(const v1::LayoutSpec& pinned,
                                                  int64_t rank_batch) {
  const std::vector<int64_t> divisors = Divisors(rank_batch);
  if (pinned.micro_batch() == 0) return divisors;
  if (rank_batch % pinned.micro_batch() == 0) return std::vector<int64_t>{pinned.micro_batch()};
  return absl::InvalidArgumentError(absl::StrCat(
      "layout.micro_batch: got ", pinned.micro_batch(), ", must divide the ", rank_batch,
      " sequences a rank trains on in a step; try one of ", absl::StrJoin(divisors, ", ")));
}

}  // namespace

absl::StatusOr<std::vector<v1::Layout>> Candidates(const v1::JobSpec& spec, const Model& model,
                                                   const Budget& budget) {
  const v1::LayoutSpec& pinned = spec.layout();
  RETURN_IF_ERROR(CheckPinned(pinned, budget.ranks));
  ASSIGN_OR_RETURN(const int64_t rank_batch, RankBatch(spec.train().global_batch(), budget.ranks));
  ASSIGN_OR_RETURN(const std::vector<int64_t> micro_batches, MicroBatches(pinned, rank_batch));

  v1::Layout layout;
  layout.set_data_parallel(budget.ranks);
  layout.set_tensor_parallel(1);
  layout.set_pipeline_parallel(1);
  layout.set_context_parallel(1);
  layout.set_recompute("none");
  layout.set_precision(spec.train().precision());
  layout.set_bucket_bytes(pinned.bucket_bytes() > 0 ? pinned.bucket_bytes() : kDefaultBucketBytes);
  layout.set_ranks(budget.ranks);
  layout.set_nodes(budget.nodes);
  layout.set_threads_per_rank(budget.threads_per_rank);
  std::vector<std::pair<double, v1::Layout>> timed;
  for (int64_t micro_batch : micro_batches) {
    layout.set_micro_batch(static_cast<uint32_t>(micro_batch));
    layout.set_micro_batches(static_cast<uint32_t>(rank_batch / micro_batch));
    timed.emplace_back(EstimateStepSeconds(spec, model, layout, budget.profile), layout);
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<v1::Layout> layouts;
  for (auto& [seconds, candidate] : timed) layouts.push_back(std::move(candidate));
  return layouts;
}

int64_t EstimateDeviceBytes(const v1::JobSpec& spec, const Model& model, const v1::Layout& layout) {
  return EstimateMemory(spec, model, layout).total();
}

}  // namespace terrace
