// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simulated_runs.h"

#include <algorithm>
#include <cstdint>

#include "base/status_macros.h"
#include "coordinator/prepare/evaluate.h"

namespace terrace {
namespace {

// What planned layouts have at these sizes (coordinator/planner/space.cc).
constexpr int64_t kBucketBytes = 256 << 20;

}  // namespace

absl::StatusOr<double> SimulatedTokensPerSecond(const PublishedRun& run) {
  v1::Layout layout = run.layout;
  layout.set_bucket_bytes(kBucketBytes);
  layout.set_threads_per_rank(1);
  if (layout.data_parallel() == 1) layout.set_zero_stage(0);  // nobody to share with
  Budget budget;
  budget.ranks = static_cast<uint32_t>(layout.ranks());
  const uint32_t per_node = std::max(1u, run.profile.ranks_per_node());
  budget.nodes = (budget.ranks + per_node - 1) / per_node;
  budget.profile = run.profile;
  const int64_t batch =
      int64_t{layout.micro_batch()} * layout.micro_batches() * layout.data_parallel();
  v1::JobSpec spec = run.spec;
  spec.mutable_train()->set_global_batch(batch);
  spec.mutable_train()->set_precision(layout.precision());
  ASSIGN_OR_RETURN(Evaluated compiled, CompileLayout(spec, run.model, budget, layout));
  RETURN_IF_ERROR(SimulateStep(run.profile, &compiled));
  const auto tokens = static_cast<double>(batch * spec.data().sequence_length());
  return tokens / compiled.simulation.step_seconds / static_cast<double>(layout.ranks());
}

}  // namespace terrace
