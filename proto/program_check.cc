// SPDX-License-Identifier: Apache-2.0
#include "proto/program_check.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "proto/check/dynamic.h"
#include "proto/check/instructions.h"
#include "proto/check/joint.h"
#include "proto/check/order.h"
#include "proto/check/refuse.h"
#include "proto/check/state.h"
#include "proto/check/structure.h"
#include "proto/check/train.h"
#include "proto/grid.h"

namespace terrace {
namespace {

absl::StatusOr<check::CheckedSequence> CheckSequence(const v1::Program& program,
                                                     const v1::Sequence& sequence) {
  ASSIGN_OR_RETURN(check::CheckedSequence checked, check::CheckInstructions(program, sequence));
  const check::HappensBefore order(program, sequence);
  RETURN_IF_ERROR(check::CheckChannelStreams(program, sequence));
  RETURN_IF_ERROR(check::CheckConflicts(program, checked, order));
  RETURN_IF_ERROR(check::CheckSharedSpace(program, checked, order));
  return checked;
}

absl::StatusOr<check::StageFacts> CheckOne(const v1::Program& program) {
  RETURN_IF_ERROR(check::CheckStructure(program));
  RETURN_IF_ERROR(check::CheckPersistentSpace(program));
  RETURN_IF_ERROR(check::CheckState(program));
  std::vector<check::CheckedSequence> sequences;
  for (const v1::Sequence& sequence : program.sequences()) {
    ASSIGN_OR_RETURN(check::CheckedSequence checked, CheckSequence(program, sequence));
    sequences.push_back(std::move(checked));
  }
  RETURN_IF_ERROR(check::CheckDynamic(program));
  RETURN_IF_ERROR(check::CheckReads(program, sequences));
  return check::CheckTraining(program, sequences);
}

}  // namespace

absl::Status CheckProgram(const v1::Program& program) { return CheckOne(program).status(); }

absl::Status CheckPrograms(absl::Span<const v1::Program> stages) {
  std::vector<check::StageFacts> facts;
  for (size_t s = 0; s < stages.size(); ++s) {
    absl::StatusOr<check::StageFacts> of_stage = CheckOne(stages[s]);
    if (!of_stage.ok()) {
      // All ranks of a stage run the same program.
      const uint64_t rank = RanksOf(stages[s].grid()) / stages.size() * s;
      return check::Refuse("stage ", s, ", from rank ", rank, " on: ", of_stage.status().message());
    }
    facts.push_back(*std::move(of_stage));
  }
  return check::CheckJoint(stages, facts);
}

}  // namespace terrace
