// The flight recorder of a rank: what it holds and how far it has come, kept outside of it, so that
// a rank killed without a word still gets a verdict.
//
// A fixed-size file that the rank maps shared and writes, and that others read as bytes: a header,
// one progress counter a stream (the streams publish into it what they count anyway), a ring of
// the newest memory events and one of the newest steps, which may not have been told yet. The bytes
// live in /dev/shm where there is one, because a page of a disk
// file may block its writer while the system writes it back; <run_directory>/flight points there
// and becomes the file itself when the rank ends (SettleFlight). SIGKILL loses nothing.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "proto/v1/program.pb.h"

namespace terrace {

inline constexpr size_t kFlightEvents = 1024;       // the newest are kept
inline constexpr size_t kFlightStreamsMax = 4096;   // of one program
inline constexpr int32_t kFlightNoSequence = -1;    // nothing of the program is being executed
inline constexpr size_t kFlightTiers = 4;           // by v1::Tier
inline constexpr int64_t kFlightSampleMs = 100;     // between two samples of the process at least
inline constexpr size_t kFlightSteps = 512;         // the newest are kept
inline constexpr size_t kFlightStepBytesMax = 116;  // of one

// Finished instructions of one stream in the present execution of a sequence, plus one at its end.
// Alone on its cache line: each stream has its writer.
struct alignas(64) FlightCounter {
  std::atomic<int32_t> finished{0};
};
static_assert(sizeof(FlightCounter) == 64 && std::atomic<int32_t>::is_always_lock_free);

enum class FlightEventKind : uint32_t {
  kNone = 0,
  kReserve = 1,     // `bytes` of `tier` were reserved: an arena, the NVMe file
  kPrepared = 2,    // `bytes` were found outside the arenas before the first step
  kStep = 3,        // a step has ended; `bytes` is 0
  kCheckpoint = 4,  // a checkpoint of `bytes` was written
  kRetry = 5,       // an allocator gave `bytes` back to the system and tried again
  kOom = 6,         // an allocator could not get `bytes` of `tier`
};

// What the trainer is about, in the order of a step.
enum class FlightActivity : uint32_t {
  kPreparing = 0,   // it does not train yet
  kStep = 1,        // executes the step
  kAgreeing = 2,    // learns from all ranks whether to go on
  kBetween = 3,     // reports, starts a checkpoint
  kEvaluating = 4,  // a batch of an evaluation
  kCheckpoint = 5,  // waits until a checkpoint is written
};

struct FlightEvent {
  int64_t unix_ms = 0;
  FlightEventKind kind = FlightEventKind::kNone;
  uint32_t tier = 0;
  int64_t step = 0;  // being executed, the first is 1
  int64_t bytes = 0;
  int64_t resident_bytes = 0;   // of the process then; 0: not sampled
  int64_t anonymous_bytes = 0;  // of these: not files, so the system cannot take them back
};

// What the process holds by /proc/<pid>/statm.
struct ProcessBytes {
  int64_t resident = 0;
  int64_t anonymous = 0;
  bool operator==(const ProcessBytes&) const = default;
};

// What one process holds. Its file stays open: reading it again costs a fifth, and is never about
// another process of the same number. Thread-safe.
class ProcessMemory {
 public:
  // 0: this one.
  explicit ProcessMemory(int64_t pid);
  // Empty when there is no such process, or none any more.
  std::optional<ProcessBytes> Read() const;

 private:
  UniqueFd statm_;
};

// Everything but the ring, as one consistent reading.
struct FlightState {
  std::string program_sha256;
  int64_t pid = 0;
  int64_t step = 0;                      // being executed, the first is 1
  int32_t sequence = kFlightNoSequence;  // index in Program.sequences
  std::vector<int32_t> finished;         // by stream; of no meaning without a sequence
  uint64_t changes = 0;                  // of the sequence since the start
  FlightActivity activity = FlightActivity::kPreparing;
  int64_t places = 0;  // activities entered since the start: the smaller, the farther behind
  std::array<int64_t, kFlightTiers> reserved_bytes{};  // by v1::Tier
  int64_t pinned_bytes = 0;
  int64_t external_bytes = 0;            // outside the arenas, measured before the first step
  int64_t prepared_anonymous_bytes = 0;  // of the process then
};

// What there was to tell of a step.
struct FlightStep {
  int64_t step = 0;
  std::string message;  // bytes that only writer and reader understand
};

struct FlightLayout;

// The rank's side. progress(), Begin and End belong to the VM, KeepStep to one thread; the others
// are thread-safe. Nothing here allocates or locks after Create.
class FlightWriter {
 public:
  // With an empty `run_directory` nothing is kept outside the process. Borrows `clock`.
  static absl::StatusOr<std::unique_ptr<FlightWriter>> Create(std::string_view run_directory,
                                                              std::string_view program_sha256,
                                                              size_t streams, const Clock* clock);
  // Leaves the file in the run directory.
  ~FlightWriter();
  FlightWriter(const FlightWriter&) = delete;
  FlightWriter& operator=(const FlightWriter&) = delete;

  // One a stream, by index in Program.streams.
  std::span<FlightCounter> progress();

  // A sequence of the program (its index) starts: all counters are set to 0. No stream may run.
  void Begin(int32_t sequence);
  void End();

  // The step that is executed next, the first is 1.
  void SetStep(int64_t step);
  // Of the trainer alone. All ranks of a job enter the same activities in the same order, so that
  // their counts can be compared.
  void Enter(FlightActivity activity);
  // Records the step's end with a sample of the process, at most every kFlightSampleMs.
  void StepDone();

  void Reserved(v1::Tier tier, int64_t bytes);  // adds to what the tier has
  void SetPinned(int64_t bytes);
  void Prepared(int64_t external_bytes);
  void Record(FlightEventKind kind, v1::Tier tier, int64_t bytes);

  // Keeps what is to be told of a step, the first is 1. What is longer than kFlightStepBytesMax is
  // not kept.
  void KeepStep(int64_t step, std::string_view message);
  // All steps up to this one have reached somebody.
  void SetToldStep(int64_t step);

 private:
  FlightWriter(std::string run_directory, FlightLayout* layout, size_t mapped_bytes,
               const Clock* clock);
  FlightEvent Sampled(FlightEventKind kind, v1::Tier tier, int64_t bytes) const;
  void Add(const FlightEvent& event);

  const std::string run_directory_;
  FlightLayout* const layout_;
  const size_t mapped_bytes_;
  const Clock* const clock_;
  const ProcessMemory process_{0};
  std::atomic<int64_t> sampled_ms_{0};
};

// The side of whoever watches; the rank may be alive or dead. Thread-safe.
class FlightReader {
 public:
  // NOT_FOUND when the rank has left none; DATA_LOSS when it is not a whole one.
  static absl::StatusOr<FlightReader> Open(std::string_view run_directory);
  static absl::StatusOr<FlightReader> OpenFile(const std::string& path);

  // UNAVAILABLE while the rank changes sequences too fast to be read in between.
  absl::StatusOr<FlightState> State() const;
  // Oldest first.
  absl::StatusOr<std::vector<FlightEvent>> Events() const;
  // Steps that are kept and that nobody was told, in order. Of a rank that is dead; one that lives
  // may be writing over what is read.
  absl::StatusOr<std::vector<FlightStep>> UntoldSteps() const;
  // Of the rank.
  absl::StatusOr<int64_t> Pid() const;

 private:
  FlightReader(UniqueFd fd, size_t streams) : fd_(std::move(fd)), streams_(streams) {}

  UniqueFd fd_;
  size_t streams_ = 0;
};

// Puts what a rank recorded into its run directory as a plain file and frees the shared memory.
// Nothing happens the second time. Call only when the rank is dead.
absl::Status SettleFlight(std::string_view run_directory);

// As FlightWriter::SetToldStep does. Call only when the rank is dead.
absl::Status MarkStepsTold(std::string_view run_directory, int64_t step);

}  // namespace terrace
