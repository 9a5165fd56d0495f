// What the flight recorder adds to a rank's steps, call by call: what each step does, what it does
// at most every kFlightSampleMs, and what an instruction does (which streams wait for anyway).
// tests/bench/observe.py has the whole.
//
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "worker/flight_recorder.h"

namespace terrace {
namespace {

constexpr size_t kStreams = 8;

class Recorder {
 public:
  Recorder() {
    std::string folder = std::filesystem::temp_directory_path() / "observe_bench_XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) std::abort();
    folder_ = folder;
    writer_ = FlightWriter::Create(folder, "", kStreams, &clock_).value();
  }
  ~Recorder() {
    writer_ = nullptr;
    std::filesystem::remove_all(folder_);
  }
  FlightWriter& writer() { return *writer_; }

 private:
  const SystemClock clock_;
  std::filesystem::path folder_;
  std::unique_ptr<FlightWriter> writer_;
};

void Step(benchmark::State& state) {
  Recorder recorder;
  int64_t step = 0;
  for (auto _ : state) {
    recorder.writer().SetStep(++step);
    recorder.writer().Begin(0);
    recorder.writer().End();
    recorder.writer().StepDone();
  }
}
BENCHMARK(Step);

void SampleOfTheProcess(benchmark::State& state) {
  Recorder recorder;
  for (auto _ : state) recorder.writer().Record(FlightEventKind::kStep, v1::TIER_UNSPECIFIED, 0);
}
BENCHMARK(SampleOfTheProcess);

void Instruction(benchmark::State& state) {
  Recorder recorder;
  int32_t done = 0;
  for (auto _ : state)
    recorder.writer().progress()[0].finished.store(++done, std::memory_order_release);
}
BENCHMARK(Instruction);

}  // namespace
}  // namespace terrace

BENCHMARK_MAIN();
