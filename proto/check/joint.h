// The checker's last part: all stages together. What they send each other fits, what they sum fits,
// and the joint execution terminates when every communication blocks until all its parties have
// reached it (rendezvous; nothing is buffered).
//
// One rank of each stage stands for all. All ranks of a stage run the same straight list, so there
// is an execution in which they are at the same instruction at all times, and in it a collective
// inside a stage has all its members there at once. Straight lists of blocking communication with
// fixed partners are a Kahn network (1974): whether it ends does not depend on who is faster, so
// that this one execution decides for all. Only transfers and groups with the axis PIPELINE couple
// stages.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/check/instruction/written.h"
#include "proto/check/value/train.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// By stage and sequence: what of it was written out; empty when no stage has loops.
using AllWritten = std::vector<std::vector<WrittenSequence>>;

// The same stages, as many iterations of each loop written out in all of them.
struct WrittenAlike {
  std::vector<v1::Program> stages;
  AllWritten written;
};

// REQUIRES: each program, without loops, passed the local checks, which gave `facts`. `alike` is
// null where no stage had loops.
absl::Status CheckJoint(absl::Span<const v1::Program> stages, const std::vector<StageFacts>& facts,
                        const WrittenAlike* alike);

// Of programs with loops, not written out: all stages have them, of as many micro-batches an
// iteration, and in each as many messages of every channel. So leaving out as many iterations of
// each leaves out the same messages.
absl::Status CheckLoopsAgree(absl::Span<const v1::Program> stages);

// Grid, groups, rules and sequences are those of one job.
absl::Status CheckAgree(absl::Span<const v1::Program> stages);

// All sequences end together. REQUIRES: CheckAgree passed, and CheckChannelStreams of each.
absl::Status CheckTermination(absl::Span<const v1::Program> stages, const AllWritten& written = {});

// Of one program: the collectives of a group share one stream, and so do the transfers of one kind
// with one peer in one group: what is communicated in which order is then the order of the list.
absl::Status CheckChannelStreams(const v1::Program& program, const v1::Sequence& sequence);

}  // namespace terrace::check
