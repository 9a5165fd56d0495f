// The loop over steps: execute, agree, report, evaluate, checkpoint, stop.
//
// All parts are borrowed. Used only on the thread that owns the VM.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/v1/program.pb.h"
#include "proto/v1/worker.pb.h"
#include "worker/data/token_dataset.h"
#include "worker/device/driver_watch.h"
#include "worker/flight/flight_recorder.h"
#include "worker/reporting/reporter.h"
#include "worker/train/agreement.h"
#include "worker/train/checkpointer.h"
#include "worker/train/train_io.h"
#include "worker/train/train_sequences.h"
#include "worker/train/validation.h"
#include "worker/vm/vm.h"

namespace terrace {

// A job whose loss stays not finite for so many steps in a row has failed; so has one whose
// gradient does, unless its loss scale still falls.
inline constexpr int64_t kMaxSkippedSteps = 10;

struct TrainerParts {
  const v1::RankConfig* config = nullptr;
  const v1::Program* program = nullptr;
  const TokenDataset* dataset = nullptr;
  Vm* vm = nullptr;
  Agreement* agreement = nullptr;
  Checkpointer* checkpointer = nullptr;  // null when the job writes none
  Reporter* reporter = nullptr;
  const Clock* clock = nullptr;
  const std::atomic<bool>* stop = nullptr;  // set when somebody asks for an early end
  FlightWriter* flight = nullptr;
  const DriverWatch* driver_watch = nullptr;  // null: nobody asks the driver
  v1::RankMetrics metrics;                    // what does not change: memory
};

class Trainer {
 public:
  explicit Trainer(const TrainerParts& parts);

  // Runs steps [start, rules.steps), then writes the final checkpoint. True when it was stopped
  // before the last step; the end for want of a better validation loss counts as the last.
  // `training` is that of the checkpoint; without one it starts anew.
  absl::StatusOr<bool> Run(int64_t start, const TrainingState& training = {});

 private:
  absl::Status Step(int64_t step, bool traced);
  // Model FLOPs of the last step's real tokens: padding is no use.
  double UsefulFlops() const;
  // Of the last step.
  absl::Status CheckFinite(int64_t steps_done);
  // Of the last steps of all: a job that most of them changed nothing in has failed if its loss
  // did not come back, and is told of else.
  absl::Status CheckEnd(int64_t steps_done, bool complete);
  // No loss of the whole job, also before this start, was finite.
  bool NeverFinite(int64_t steps_done) const { return lost_in_a_row_ == steps_done; }
  std::string WayOut(int64_t steps_done) const;
  void Report(int64_t steps_done, double seconds);
  void UpdateMetrics(int64_t steps_done, double seconds);
  // Makes what lasts beside the state of what the state is now.
  absl::Status Restore();
  absl::Status Evaluate(int64_t steps_done);
  // Ends the step together with all ranks. True when the loop must end.
  absl::StatusOr<bool> AgreeToStop();
  // Reports a written checkpoint; a failure is kept until all ranks agree to end.
  void TakeCheckpoint(std::optional<absl::StatusOr<WrittenCheckpoint>> result);
  // What has come of the one that is being written, if any.
  std::optional<absl::StatusOr<WrittenCheckpoint>> AwaitCheckpoint();
  void StartCheckpoint(int64_t steps_done);
  absl::Status WriteLastCheckpoint(int64_t steps_done);
  bool Due(int64_t every, int64_t steps_done) const { return every > 0 && steps_done % every == 0; }

  const TrainerParts parts_;
  const v1::JobSpec& spec_;
  const v1::StepRules& rules_;
  const TrainSequences sequences_;
  TrainIo train_io_;
  EvalIo eval_io_;
  Validation validation_;
  v1::RankMetrics metrics_;
  int64_t length_ = 0;            // tokens of a sample of the last step, with padding
  int64_t step_tokens_ = 0;       // of the last step, all ranks; padding does not count
  int64_t tokens_ = 0;            // of all steps so far
  int64_t skipped_in_a_row_ = 0;  // steps up to the last whose loss or gradient was not finite
  int64_t lost_in_a_row_ = 0;     // those whose loss was not
  int64_t checkpoint_started_step_ = -1;
  int64_t evaluated_step_ = -1;
  absl::Status checkpoint_status_;  // of the last one that ended
};

}  // namespace terrace
