// The virtual machine of a rank: a program prepared once, then executed sequence by sequence.
//
//   Create   decode, resolve every operand to its address, connect instructions to kernels, groups
//   Warm     every distinct computation once, before initialisation
//   Run      execute one sequence: "train", "eval", "infer" or "restore"
//
// Borrows the program, the arenas and the groups. Used only on the thread that created it; it
// starts the threads of the other streams itself.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/v1/program.pb.h"
#include "worker/rank/prepared_program.h"
#include "worker/rank/sequence_io.h"
#include "worker/rank/streams.h"

namespace terrace {

// Where the time of one execution went, in seconds.
struct SequenceTimes {
  double total = 0;               // from the first start to the last end
  double compute = 0;             // busy, of the compute stream
  double collective = 0;          // busy, of all streams of collectives and transfers
  double collective_exposed = 0;  // the compute stream, or the end of all, waited for one of them
};

class Vm {
 public:
  // `fence` may be null.
  static absl::StatusOr<std::unique_ptr<Vm>> Create(const v1::Program& program,
                                                    const PrepareOptions& options,
                                                    const Clock* clock, StateFence* fence);

  bool Has(std::string_view sequence) const;
  absl::Status Warm();
  // NOT_FOUND when the program has no such sequence. Otherwise what the first failing instruction
  // says: UNAVAILABLE when a peer is lost.
  absl::Status Run(std::string_view sequence, SequenceIo* io);

  // The sequence as prepared, with the slices of its last execution. Null when there is none of
  // that name.
  const PreparedSequence* Find(std::string_view sequence) const;

 private:
  Vm(std::span<const v1::StreamKind> kinds, const PrepareOptions& options, const Clock* clock,
     StateFence* fence)
      : streams_(kinds, clock, fence, options.groups) {}

  std::vector<PreparedSequence> sequences_;
  Streams streams_;
};

// From the slices of the last execution.
SequenceTimes Times(const PreparedSequence& sequence);

}  // namespace terrace
