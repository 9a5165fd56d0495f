// The ranks of a tiny job on any backend: compiled for it, warmed, initialised, trained for some
// steps; what came out.
//
// The rows of a step are a function of the step and the micro-batch, the weights of a seed, so that
// backends see the same. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "coordinator/model/model.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/vm.h"

namespace terrace {

struct DeviceJob {
  std::string family = "gpt2";
  v1::Layout layout;  // its device says which backend; micro_batch, micro_batches, precision, ...
  int64_t page_bytes = 0;  // > 0: step buffers lie in such pages at second addresses
};

struct Trained {
  std::vector<double> losses, grad_norms;
  std::map<std::string, std::vector<float>> state;  // after the last step, by name in checkpoints
};

// "fp32", one micro-batch of two rows, nothing off the device, on "cpu".
v1::Layout PlainLayout();

class JobOnDevice {
 public:
  // One rank of the job; with others it finds them through `folder`. All share device 0.
  static absl::StatusOr<std::unique_ptr<JobOnDevice>> Make(const DeviceJob& job, uint32_t rank = 0,
                                                           const std::string& folder = "");
  ~JobOnDevice();

  // Warms, and fills the state from the seed.
  absl::Status Prepare();
  // Goes on for so many steps.
  absl::StatusOr<Trained> Train(int64_t steps);

  Backend& backend() { return *backend_; }
  Vm& vm() { return *vm_; }
  const v1::Program& program() const { return program_; }
  const ProgramMemory& memory() const { return *memory_; }
  RankState state() const;
  void set_step(int64_t step) { step_ = step; }

 private:
  JobOnDevice(v1::Program program, uint32_t rank) : program_(std::move(program)), rank_(rank) {}
  absl::Status Connect(const std::string& folder);

  const v1::Program program_;
  const uint32_t rank_;
  const SystemClock clock_;
  std::string folder_;
  std::unique_ptr<Backend> backend_;
  std::optional<ProgramMemory> memory_;
  std::vector<std::unique_ptr<Communicator>> groups_;
  std::unique_ptr<Vm> vm_;
  int64_t step_ = 0;
};

// Makes, prepares and trains the job's only rank.
absl::StatusOr<Trained> TrainOnDevice(const DeviceJob& job, int64_t steps);
// All of its ranks, each on threads of its own; the state of each is what it holds of it.
absl::StatusOr<std::vector<Trained>> TrainRanksOnDevice(const DeviceJob& job, int64_t steps);

// The largest of the relative Frobenius errors of the tensors, against `want`, and whose it is.
// Keys' biases do not count: nothing depends on them, and rounding alone moves them.
struct TensorError {
  double error = 0;
  std::string tensor;
};
TensorError WorstError(const Trained& got, const Trained& want);

}  // namespace terrace
