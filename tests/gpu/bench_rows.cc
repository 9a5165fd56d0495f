// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/bench_rows.h"

#include <algorithm>
#include <chrono>

namespace terrace::kernels::bench {
namespace {

constexpr int kRounds = 5;              // of which the median counts
constexpr double kRoundSeconds = 0.05;  // about so long each
constexpr char kOnWgmma[] = " (wgmma)";

// The median over rounds, each of as many calls as take about a round's time.
template <typename TimeCalls>
Status Median(TimeCalls time, double* seconds) {
  double once = 0;
  Status status = time(1, &once);
  const int calls = std::clamp(static_cast<int>(kRoundSeconds / std::max(once, 1e-9)), 1, 200);
  std::vector<double> rounds;
  for (int i = 0; i < kRounds && status.ok(); ++i) status = time(calls, &rounds.emplace_back());
  if (!status.ok()) return status;
  std::sort(rounds.begin(), rounds.end());
  *seconds = rounds[kRounds / 2];
  return {};
}

// Bounds in FLOP/s are those of the GPUs that they were written for.
bool Judged(const Case& c, const Machine& machine) {
  if (!machine.is_gpu() || c.bound == 0) return false;
  if (c.measure != Measure::kFlops) return true;
  return machine.name().find("H100") != std::string::npos ||
         machine.name().find("H200") != std::string::npos;
}

class OnWgmma {
 public:
  explicit OnWgmma(Machine* machine) : machine_(machine) { machine_->UseWgmma(true); }
  ~OnWgmma() { machine_->UseWgmma(false); }
  OnWgmma(const OnWgmma&) = delete;
  OnWgmma& operator=(const OnWgmma&) = delete;

 private:
  Machine* const machine_;
};

bool IsAttention(const Case& c) { return c.op == Op::kAttention || c.op == Op::kAttentionGrad; }

}  // namespace

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Status MeasureCase(const Case& c, double copy_rate, Machine* machine, Row* row) {
  Status status = machine->Prepare(c);
  if (status.ok()) {
    status = Median([&](int calls, double* s) { return machine->Time(calls, s); }, &row->seconds);
  }
  if (!status.ok()) return {c.name + ": " + status.message};
  row->name = c.name;
  row->bandwidth = c.measure == Measure::kBandwidth;
  const double work = static_cast<double>(row->bandwidth ? BytesMoved(c.op, c.attrs, c.operands)
                                                         : Flops(c.op, c.attrs, c.operands));
  row->rate = work / row->seconds;
  row->compared = row->bandwidth ? copy_rate : 0;
  if (c.measure == Measure::kLibrary) {
    double best = 0;
    status = Median([&](int calls, double* s) { return machine->TimeLibrary(calls, s); }, &best);
    if (!status.ok()) return {c.name + ": " + status.message};
    row->compared = best > 0 ? work / best : 0;
  }
  row->judged = Judged(c, *machine);
  row->bound = c.measure == Measure::kFlops ? c.bound : c.bound * row->compared;
  row->passed = !row->judged || row->rate >= row->bound;
  return {};
}

Status MeasureWgmma(const std::vector<Case>& cases, double deadline, Machine* machine,
                    std::vector<Row>* rows) {
  const OnWgmma on(machine);
  const size_t measured = rows->size();
  for (const Case& c : cases) {
    if (!IsAttention(c)) continue;
    if (Now() > deadline) return {"no time is left for " + c.name + " on wgmma"};
    Row row;
    const Status status = MeasureCase(c, 0, machine, &row);
    if (!status.ok()) return status;
    row.name += kOnWgmma;
    for (size_t i = 0; i < measured; ++i) {
      Row& other = (*rows)[i];
      if (other.name != c.name) continue;
      Row& slower = other.rate < row.rate ? other : row;
      slower.judged = false;
      slower.passed = true;
    }
    rows->push_back(row);
  }
  return {};
}

}  // namespace terrace::kernels::bench
