// Planned against caching memory in real runs: trains the same small jobs in both modes by turns,
// and prints what a rank reserved, how much of it held something when most did, and the ratio of
// the step times (medians of all steps but each run's first).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/small_job.h"
#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int kRuns = 3;
constexpr int64_t kSteps = 5;
constexpr double kMib = 1 << 20;

struct Case {
  std::string name;
  v1::Layout layout;
};

v1::Layout Base(const char* recompute) {
  v1::Layout layout = MatrixLayout();
  layout.set_precision("bf16");
  layout.set_micro_batches(2);
  layout.set_bucket_bytes(4 << 20);
  layout.set_chunk_bytes(1 << 20);
  layout.set_recompute(recompute);
  layout.set_threads_per_rank(1);
  return layout;
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {{"1 rank", Base("none")}, {"1 rank, block recompute", Base("block")}};
  for (const uint32_t zero : {2, 3}) {
    v1::Layout layout = Base("none");
    layout.set_data_parallel(2);
    layout.set_zero_stage(zero);
    cases.push_back({absl::StrCat("dp 2, ZeRO-", zero), layout});
  }
  v1::Layout host = Base("block");
  for (v1::TierShares* shares :
       {host.mutable_offload()->mutable_parameter(), host.mutable_offload()->mutable_gradient(),
        host.mutable_offload()->mutable_optimizer()}) {
    PutOn(v1::HOST, shares);
  }
  cases.push_back({"1 rank, block recompute, all states on the host", host});
  return cases;
}

struct Measured {
  std::vector<double> seconds;
  v1::AllocatorStats stats;
};

bool Train(const JobData& data, const v1::Layout& layout, Measured* out) {
  const auto result = TrainInProcess(data, layout, kSteps);
  if (!result.ok()) {
    std::printf("%s\n", result.status().ToString().c_str());
    return false;
  }
  for (int64_t step = 1; step < kSteps; ++step)
    out->seconds.push_back(result->times[0][step].total);
  out->stats = result->allocator[0];
  return true;
}

double Missing(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100 * (1 - static_cast<double>(part) / static_cast<double>(whole));
}

void Print(const std::string& name, const Measured& planned, const Measured& caching) {
  const v1::AllocatorStats &p = planned.stats, &c = caching.stats;
  const double ms = 1e3 * Median(planned.seconds);
  std::printf("| %s | %.1f | %.1f (%+.1f %%) | %.1f %% | %.1f %% | %.1f %% | %.1f | %.3f |\n",
              name.c_str(), p.reserved_bytes() / kMib, c.reserved_bytes() / kMib,
              -Missing(c.reserved_bytes(), p.reserved_bytes()),
              Missing(p.allocated_bytes(), p.reserved_bytes()),
              Missing(c.allocated_bytes(), c.reserved_bytes()),
              Missing(c.largest_free_block_bytes(), c.reserved_bytes() - c.active_bytes()), ms,
              1e3 * Median(caching.seconds) / ms);
  std::fflush(stdout);
}

}  // namespace
}  // namespace terrace

int main() {
  using namespace terrace;
  const JobData data = SmallJob();
  std::printf(
      "| job | planned MiB | caching MiB | planned, 1 - allocated / reserved | caching, the same | "
      "caching, 1 - largest free / free | planned step ms | caching / planned step |\n"
      "|---|---|---|---|---|---|---|---|\n");
  bool all = true;
  for (const Case& c : Cases()) {
    Measured planned, caching;
    v1::Layout other = c.layout;
    other.set_allocator("caching");
    bool ok = true;
    for (int run = 0; run < kRuns && ok; ++run)
      ok = Train(data, c.layout, &planned) && Train(data, other, &caching);
    if (ok) Print(c.name, planned, caching);
    all = all && ok;
  }
  return all ? 0 : 1;
}
