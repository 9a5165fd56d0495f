// The streams of a program: one thread each, except the compute stream, which is the thread that
// calls Run (the one whose OpenMP pool is warm). Each stream executes its instructions in order,
// those of a loop once an iteration, and publishes how many have finished; other streams wait for
// that number.
//
// Where a stream has a device queue its thread launches what the device executes: it waits on the
// device for other queues, on the host for other threads, and publishes what the device has
// finished (streams_device.cc), so that a thread that waits sees no difference. A whole sequence
// that was captured as a graph is launched by the caller alone (streams_graph.cc).
//
// Run is used only on the thread that made the object. Inside it there are no locks and no
// allocation: a counter a stream, waited for with a short spin and then a futex.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "worker/device/backend.h"
#include "worker/flight/flight_recorder.h"
#include "worker/vm/played_cursor.h"
#include "worker/vm/prepared_program.h"
#include "worker/vm/sequence_io.h"

namespace terrace {

struct StepGraph;

// Holds instructions back from overwriting what somebody still reads. Called before each
// instruction that writes state.
class StateFence {
 public:
  virtual ~StateFence() = default;
  virtual void WaitUntilUnread() = 0;
  // Whether it would hold back nothing, until its owner starts to read again.
  virtual bool IsUnread() const { return false; }
  // How often somebody has begun to read. All ranks of a job count alike: they begin after the same
  // step.
  virtual int64_t reads() const { return 0; }
};

class Streams {
 public:
  // `fence` may be null, and so may any of `groups`, which are all that instructions use.
  // `counters`: one a stream, wherever the owner wants to see them. Borrows all.
  // `backend` may be null: no stream has a queue.
  Streams(std::span<const v1::StreamKind> kinds, const Clock* clock, StateFence* fence,
          std::span<const std::unique_ptr<Communicator>> groups, std::span<FlightCounter> counters,
          Backend* backend = nullptr);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Executes the whole sequence. The first failure of any stream ends all of them, those that wait
  // for a peer included, and is returned; the groups cannot be used after it.
  absl::Status Run(PreparedSequence* sequence, SequenceIo* io);
  // The same, with a graph that was captured of the sequence: the slices keep the times of the last
  // Run. REQUIRES: nothing holds back what writes state.
  absl::Status RunGraph(PreparedSequence* sequence, SequenceIo* io, const StepGraph& graph);

 private:
  // What threads sleep on between runs and turns. libstdc++ keeps the sleepers of an atomic by bits
  // 2 to 5 of its address, and notify_all makes a system call where anybody sleeps under the same
  // bits: a counter, whose bits are 0, would pay one for each instruction that it publishes, for
  // the sake of threads that have nothing to do.
  struct alignas(sizeof(FlightCounter)) Calls {
    int32_t counters_place = 0;     // nobody sleeps under the bits of the counters
    std::atomic<uint32_t> runs{0};  // started
    std::atomic<int32_t> turns{0};  // of collectives, in the present run: those that have ended
  };

  // Of a stream with a queue, during one run.
  struct Launch {
    size_t stream;
    PreparedStream& prepared;
    DeviceQueue& queue;
    PlayedCursor launched;    // the next one to launch
    PlayedCursor finished;    // the next one that this thread has not seen to its end
    int64_t last_end_ns = 0;  // of the one before

    bool empty() const { return finished.position() == launched.position(); }
  };

  void ThreadMain(size_t stream);
  void Execute(size_t stream);
  absl::Status ExecuteOne(PreparedStream* stream, const PlayedCursor& at);
  void ExecuteOnDevice(size_t stream);
  absl::Status LaunchAll(Launch* launch);
  absl::Status LaunchOne(Launch* launch);
  absl::Status MakeRoom(Launch* launch);
  absl::Status WaitToLaunch(const PreparedInstruction& instruction, Launch* launch);
  absl::Status LaunchNow(const PreparedInstruction& instruction, Launch* launch);
  absl::Status WaitWhileFinishing(Launch* launch, std::atomic<int32_t>& counter, int32_t position);
  absl::Status NoteFinished(Launch* launch);
  absl::Status FinishNext(Launch* launch);
  absl::Status EndOnDevice();
  absl::Status LaunchGraph(const PreparedSequence& sequence, SequenceIo* io,
                           const StepGraph& graph);
  absl::Status ExecuteGraph(const PreparedSequence& sequence, const StepGraph& graph);
  void AbortGroups();
  void PublishLaunched(size_t stream, int32_t launched);
  bool WaitFor(uint32_t stream, int32_t position);
  bool WaitForTurn(int32_t turn);
  void PassTurns(int32_t count);
  void Publish(size_t stream, int32_t finished);
  void Fail(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const Clock* const clock_;
  StateFence* const fence_;
  const std::span<const std::unique_ptr<Communicator>> groups_;
  // By stream: finished instructions of the present run, each iteration counted, plus one at its
  // end.
  const std::span<FlightCounter> counters_;
  const size_t caller_stream_;
  Backend* const backend_;
  // By stream, where it has a queue: launched instructions of the present run, plus one at its end.
  const std::unique_ptr<std::atomic<int32_t>[]> launched_;
  std::vector<std::thread> threads_;  // by stream; not joinable for the caller's

  // Of the present run; written by Run while the threads sleep.
  PreparedSequence* sequence_ = nullptr;
  SequenceIo* io_ = nullptr;
  Calls calls_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};

  absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
