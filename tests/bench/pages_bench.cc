// What pages at second addresses cost the steps of a job on a CPU.
//
// One process holds a job twice, with every buffer in one piece, in huge pages where the system
// grants them, and with pages, and executes a step of either by turns, the order swapped from pair
// to pair: what drifts drifts for both. The job is mapped afresh in every round. All ranks take
// turns on this thread (in_process_turns.h), in the same order in both, so that nothing but the
// kernels' own time is compared. Processor time is this thread's, half the story with two threads.
//
// Cases: the same in one piece twice, which must show nothing; every step buffer in pages of the
// processor's, the worst that a packer could do; and what the packer does to programs that orders
// leave more than 1 % over their bound (layout.packing: pages). Prints medians of the ratio of a
// pair, of processor and of wall time, with an interval of 95 % from order statistics.
//
// usage: pages_bench [PART_OF_A_CASE'S_NAME [ROUNDS]]
//
// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/check/program_check.h"
#include "tests/bench/small_job.h"
#include "tests/system/in_process_turns.h"
#include "tests/system/layout_data.h"
#include "tests/unit/proto/check/second_addresses.h"

namespace terrace {
namespace {

constexpr int kRounds = 5;
constexpr int kPairs = 24;  // of a round, after two that warm up
constexpr int kWarmPairs = 2;
constexpr int64_t kPageBytes = 4096;
constexpr uint32_t kSeed = 7;

enum class Moved { kNothing, kEverything, kByPacker };

struct Case {
  std::string name;
  Moved moved;
  TinySizes sizes;
  int64_t rows;
  v1::Layout layout;
};

[[noreturn]] void Fail(const absl::Status& status) {
  std::printf("%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T OrFail(absl::StatusOr<T> result) {
  if (!result.ok()) Fail(result.status());
  return *std::move(result);
}

std::vector<Case> Cases() {
  const TinySizes narrow = {
      .vocabulary = 2048, .hidden = 256, .layers = 4, .intermediate = 688, .sequence = 64};
  const TinySizes wide = {
      .vocabulary = 2048, .hidden = 1024, .layers = 1, .intermediate = 2816, .sequence = 32};
  const TinySizes deep = {
      .vocabulary = 2048, .hidden = 256, .layers = 8, .intermediate = 688, .sequence = 32};
  v1::Layout one = MatrixLayout();
  one.set_micro_batches(2);
  one.set_bucket_bytes(4 << 20);
  one.set_threads_per_rank(1);
  v1::Layout bf16 = one;
  bf16.set_precision("bf16");
  v1::Layout two_threads = one;
  two_threads.set_threads_per_rank(2);
  v1::Layout sharded = one;
  sharded.set_data_parallel(2);
  sharded.set_zero_stage(3);
  const auto pipeline = [&](const char* schedule, uint32_t zero, const char* recompute) {
    v1::Layout layout = sharded;
    layout.set_pipeline_parallel(2);
    layout.set_schedule(schedule);
    layout.set_interleave(layout.schedule() == "zbv" ? 2 : 1);
    layout.set_zero_stage(zero);
    layout.set_recompute(recompute);
    layout.set_micro_batches(4);
    return layout;
  };
  return {
      {"nothing: 1 rank, fp32", Moved::kNothing, narrow, 4, one},
      {"everything: 1 rank, fp32", Moved::kEverything, narrow, 4, one},
      {"everything: 1 rank, bf16", Moved::kEverything, narrow, 4, bf16},
      {"everything: 1 rank, 2 threads, fp32", Moved::kEverything, narrow, 8, two_threads},
      {"everything: 1 rank, 1024 wide, fp32", Moved::kEverything, wide, 4, one},
      {"everything: dp 2, ZeRO-3, fp32", Moved::kEverything, narrow, 4, sharded},
      {"packer: dp 2 pp 2 zb-h1 ZeRO-2 none", Moved::kByPacker, deep, 8,
       pipeline("zb-h1", 2, "none")},
      {"packer: dp 2 pp 2 zb-h1 ZeRO-3 none", Moved::kByPacker, deep, 8,
       pipeline("zb-h1", 3, "none")},
      {"packer: dp 2 pp 2 zb-h1 ZeRO-3 selective", Moved::kByPacker, deep, 8,
       pipeline("zb-h1", 3, "selective")},
      {"packer: dp 2 pp 2 1f1b ZeRO-3 none", Moved::kByPacker, deep, 8,
       pipeline("1f1b", 3, "none")},
      {"packer: dp 2 pp 2 zbv ZeRO-2 none", Moved::kByPacker, deep, 8, pipeline("zbv", 2, "none")},
      {"packer: dp 2 pp 2 zbv ZeRO-3 block", Moved::kByPacker, deep, 8,
       pipeline("zbv", 3, "block")},
  };
}

std::vector<v1::Program> Paged(const JobData& data, const Case& c,
                               const std::vector<v1::Program>& contiguous) {
  if (c.moved == Moved::kByPacker) return OrFail(CompileJob(data, c.layout, "pages"));
  std::vector<v1::Program> paged = contiguous;
  if (c.moved == Moved::kNothing) return paged;
  for (v1::Program& program : paged)
    MoveToSecondAddresses(kPageBytes, &program, /*shuffled=*/false);
  if (absl::Status status = CheckPrograms(paged); !status.ok()) Fail(status);
  return paged;
}

double SecondsOf(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Times {
  double processor = 0, wall = 0;
};

Times Step(TurnsJob* job) {
  const double processor = SecondsOf(CLOCK_THREAD_CPUTIME_ID), wall = SecondsOf(CLOCK_MONOTONIC);
  if (absl::Status status = job->Step(); !status.ok()) Fail(status);
  return {SecondsOf(CLOCK_THREAD_CPUTIME_ID) - processor, SecondsOf(CLOCK_MONOTONIC) - wall};
}

// What the pairs of all rounds say of one clock.
struct Ratios {
  std::vector<double> all, rounds;

  void Add(const std::vector<double>& round) {
    all.insert(all.end(), round.begin(), round.end());
    rounds.push_back(Median(round));
  }

  // Median, its interval by order statistics, and the medians of the rounds.
  std::string Text() const {
    std::vector<double> sorted = all;
    std::sort(sorted.begin(), sorted.end());
    const double n = static_cast<double>(sorted.size()), half = 1.96 * std::sqrt(n) / 2;
    const auto low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - half)));
    const auto high = static_cast<size_t>(std::min(n - 1, std::ceil(n / 2 + half)));
    const auto [least, most] = std::minmax_element(rounds.begin(), rounds.end());
    char text[96];
    std::snprintf(text, sizeof(text), "%.4f | %.4f to %.4f | %.4f to %.4f", Median(all),
                  sorted[low], sorted[high], *least, *most);
    return text;
  }
};

// Bytes at second addresses, of all ranks' step buffers.
std::string MovedShare(const std::vector<v1::Program>& programs) {
  int64_t moved = 0, all = 0, runs = 0;
  for (const v1::Program& program : programs) {
    for (const v1::Buffer& buffer : program.buffers()) {
      if (buffer.arena() != 0 || buffer.lifetime() != v1::STEP) continue;
      all += buffer.bytes();
      if (buffer.offset() >= program.arenas(0).bytes()) moved += buffer.bytes();
    }
    runs += program.arenas(0).aliases_size();
  }
  return absl::StrCat(all == 0 ? 0 : (100 * moved + all / 2) / all, " % | ", runs);
}

void Run(const Case& c, int rounds) {
  const JobData data = RandomJob(TinyModel("llama", c.sizes), c.rows, c.sizes.sequence);
  const std::vector<v1::Program> contiguous = OrFail(CompileJob(data, c.layout, "contiguous"));
  const std::vector<v1::Program> paged = Paged(data, c, contiguous);
  Ratios processor, wall;
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    std::unique_ptr<TurnsJob> first, second;
    first = OrFail(TurnsJob::Create(data, round % 2 == 0 ? contiguous : paged, kSeed));
    second = OrFail(TurnsJob::Create(data, round % 2 == 0 ? paged : contiguous, kSeed));
    if (round % 2 != 0) std::swap(first, second);
    std::vector<double> processor_ratios, wall_ratios;
    for (int pair = 0; pair < kWarmPairs + kPairs; ++pair) {
      Times one, pages;
      if (pair % 2 == 0) one = Step(first.get());
      pages = Step(second.get());
      if (pair % 2 != 0) one = Step(first.get());
      if (pair < kWarmPairs) continue;
      processor_ratios.push_back(pages.processor / one.processor);
      wall_ratios.push_back(pages.wall / one.wall);
      seconds.push_back(one.wall);
    }
    processor.Add(processor_ratios);
    wall.Add(wall_ratios);
    if (first->Finish()[0].losses != second->Finish()[0].losses) {
      Fail(absl::InternalError(c.name + ": losses differ"));
    }
  }
  std::printf("| %s | %.1f | %s | %.1f | %s | %s |\n", c.name.c_str(),
              static_cast<double>(contiguous[0].arenas(0).bytes()) / (1 << 20),
              MovedShare(paged).c_str(), 1e3 * Median(seconds), processor.Text().c_str(),
              wall.Text().c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  using namespace terrace;
  const std::string only = argc > 1 ? argv[1] : "";
  int rounds = kRounds;
  if (argc > 3 || (argc > 2 && (!absl::SimpleAtoi(argv[2], &rounds) || rounds < 1))) {
    std::fprintf(stderr, "usage: pages_bench [PART_OF_A_CASE'S_NAME [ROUNDS]]\n");
    return 2;
  }
  std::printf(
      "| job | arena MiB | bytes moved | runs | in one piece, step ms | processor time, pages / "
      "one piece | 95 %% | rounds | wall time | 95 %% | rounds |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Case& c : Cases()) {
    if (c.name.find(only) != std::string::npos) Run(c, rounds);
  }
  return 0;
}
