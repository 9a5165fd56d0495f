// What pages at second addresses cost on a CPU at the most: trains the same small jobs by turns
// with every buffer in one piece, in huge pages where the system grants them, and with every step
// buffer at second addresses, in pages of the processor; the packer moves only what fits nowhere
// else. Prints the ratio of the step times, of each turn's medians (all steps but a run's first).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/small_job.h"
#include "tests/system/layout_data.h"
#include "tests/unit/proto/second_addresses.h"

namespace terrace {
namespace {

constexpr int kTurns = 9;
constexpr int64_t kSteps = 5;
constexpr int64_t kPageBytes = 4096;

struct Case {
  std::string name;
  v1::Layout layout;
};

std::vector<Case> Cases() {
  v1::Layout one = MatrixLayout();
  one.set_micro_batches(2);
  one.set_bucket_bytes(4 << 20);
  one.set_threads_per_rank(2);
  v1::Layout bf16 = one;
  bf16.set_precision("bf16");
  v1::Layout zero = one;
  zero.set_data_parallel(2);
  zero.set_zero_stage(3);
  zero.set_threads_per_rank(1);
  return {{"1 rank, fp32", one}, {"1 rank, bf16", bf16}, {"dp 2, ZeRO-3, fp32", zero}};
}

// A step's seconds; exits with a line where it fails.
double Train(const JobData& data, const std::vector<v1::Program>& programs) {
  const auto result = TrainPrograms(data, programs, kSteps);
  if (!result.ok()) {
    std::printf("%s\n", result.status().ToString().c_str());
    std::exit(1);
  }
  std::vector<double> seconds;
  for (int64_t step = 1; step < kSteps; ++step) seconds.push_back(result->times[0][step].total);
  return Median(std::move(seconds));
}

void Run(const JobData& data, const Case& c) {
  const auto contiguous = CompileJob(data, c.layout, /*search_packings=*/false);
  if (!contiguous.ok()) {
    std::printf("%s\n", contiguous.status().ToString().c_str());
    std::exit(1);
  }
  std::vector<v1::Program> paged = *contiguous;
  for (v1::Program& program : paged)
    MoveToSecondAddresses(kPageBytes, &program, /*shuffled=*/false);
  std::vector<double> seconds, ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    const double before = Train(data, *contiguous);
    const double between = Train(data, paged);
    const double mean = (before + Train(data, *contiguous)) / 2;
    seconds.push_back(mean);
    ratios.push_back(between / mean);
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("| %s | %.1f | %.1f | %.3f | %.3f to %.3f |\n", c.name.c_str(),
              static_cast<double>((*contiguous)[0].arenas(0).bytes()) / (1 << 20),
              1e3 * Median(seconds), Median(ratios), *least, *most);
  std::fflush(stdout);
}

}  // namespace
}  // namespace terrace

int main() {
  using namespace terrace;
  const JobData data = SmallJob();
  std::printf(
      "| job | arena MiB | in one piece, step ms | in pages / in one piece | turns |\n"
      "|---|---|---|---|---|\n");
  for (const Case& c : Cases()) Run(data, c);
  return 0;
}
