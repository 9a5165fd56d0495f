// SPDX-License-Identifier: Apache-2.0
#include "proto/program_check.h"

#include "base/status_macros.h"
#include "proto/check/instructions.h"
#include "proto/check/joint.h"
#include "proto/check/order.h"
#include "proto/check/refuse.h"
#include "proto/check/state.h"
#include "proto/check/structure.h"
#include "proto/check/train.h"

namespace terrace {
namespace {

absl::Status CheckSequence(const v1::Program& program, const v1::Sequence& sequence) {
  ASSIGN_OR_RETURN(const check::CheckedSequence checked,
                   check::CheckInstructions(program, sequence));
  const check::HappensBefore order(program, sequence);
  RETURN_IF_ERROR(check::CheckCollectiveStreams(program, sequence));
  RETURN_IF_ERROR(check::CheckConflicts(program, checked, order));
  RETURN_IF_ERROR(check::CheckSharedSpace(program, checked, order));
  RETURN_IF_ERROR(check::CheckReads(program, checked));
  RETURN_IF_ERROR(check::CheckWeightWrites(program, checked));
  if (sequence.name() == "train") return check::CheckTraining(program, checked);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProgram(const v1::Program& program) {
  RETURN_IF_ERROR(check::CheckStructure(program));
  RETURN_IF_ERROR(check::CheckPersistentSpace(program));
  RETURN_IF_ERROR(check::CheckState(program));
  for (const v1::Sequence& sequence : program.sequences())
    RETURN_IF_ERROR(CheckSequence(program, sequence));
  return absl::OkStatus();
}

absl::Status CheckPrograms(absl::Span<const v1::Program> stages) {
  for (size_t s = 0; s < stages.size(); ++s) {
    const absl::Status status = CheckProgram(stages[s]);
    if (!status.ok()) return check::Refuse("stage ", s, ": ", status.message());
  }
  return check::CheckJoint(stages);
}

}  // namespace terrace
