// SPDX-License-Identifier: Apache-2.0
#include "proto/check/program_check.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/side_by_side.h"
#include "base/status_macros.h"
#include "proto/check/instruction/dynamic.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/instruction/structure.h"
#include "proto/check/instruction/written.h"
#include "proto/check/joint.h"
#include "proto/check/loops.h"
#include "proto/check/order.h"
#include "proto/check/value/state.h"
#include "proto/check/value/train.h"
#include "proto/program/grid.h"
#include "proto/program/loops.h"

namespace terrace {
namespace {

// Everything that is asked of the program before its loops are written out.
absl::Status CheckForm(const v1::Program& program) {
  RETURN_IF_ERROR(CheckCanBeWrittenOut(program));
  RETURN_IF_ERROR(check::CheckPersistentSpace(program));
  return check::CheckState(program);
}

absl::StatusOr<check::CheckedSequence> CheckSequence(const v1::Program& program,
                                                     const v1::Sequence& sequence) {
  ASSIGN_OR_RETURN(check::CheckedSequence checked, check::CheckInstructions(program, sequence));
  const HappensBefore order(program, sequence);
  RETURN_IF_ERROR(check::CheckChannelStreams(program, sequence));
  RETURN_IF_ERROR(check::CheckConflicts(program, checked, order));
  RETURN_IF_ERROR(check::CheckSharedSpace(program, checked, order));
  return checked;
}

// Of a program without loops: `written`, if it is not null, says which it had.
absl::StatusOr<check::StageFacts> CheckStraight(
    const v1::Program& program, const std::vector<check::WrittenSequence>* written) {
  std::vector<check::CheckedSequence> sequences;
  for (int q = 0; q < program.sequences_size(); ++q) {
    ASSIGN_OR_RETURN(check::CheckedSequence checked, CheckSequence(program, program.sequences(q)));
    if (written != nullptr) checked.written = &(*written)[q];
    sequences.push_back(std::move(checked));
  }
  RETURN_IF_ERROR(check::CheckDynamic(program));
  RETURN_IF_ERROR(check::CheckReads(program, sequences));
  return check::CheckTraining(program, sequences);
}

absl::StatusOr<check::StageFacts> CheckWritten(const check::Written& written) {
  return CheckStraight(written.program, &written.sequences);
}

absl::StatusOr<check::Written> WriteLoops(const v1::Program& program, int64_t left_out) {
  RETURN_IF_ERROR(check::CheckWrittenSize(program, left_out));
  return check::WriteForCheck(program, left_out);
}

// All ranks of a stage run the same program.
absl::Status OfStage(absl::Span<const v1::Program> stages, size_t s, const absl::Status& status) {
  const uint64_t rank = RanksOf(stages[s].grid()) / stages.size() * s;
  return check::Refuse("stage ", s, ", from rank ", rank, " on: ", status.message());
}

// Calls check(s) for each stage. The first that is refused is told.
absl::Status ForEachStage(absl::Span<const v1::Program> stages,
                          const std::function<absl::Status(size_t)>& check) {
  std::vector<absl::Status> statuses(stages.size());
  SideBySide(stages.size(), [&](size_t s) { statuses[s] = check(s); });
  for (size_t s = 0; s < stages.size(); ++s) {
    if (!statuses[s].ok()) return OfStage(stages, s, statuses[s]);
  }
  return absl::OkStatus();
}

absl::Status CheckWithLoops(absl::Span<const v1::Program> stages) {
  RETURN_IF_ERROR(check::CheckLoopsAgree(stages));
  const int64_t alike_left_out = check::IterationsLeftOutAlike(stages);
  const bool sums = std::any_of(stages.begin(), stages.end(), [](const v1::Program& program) {
    return check::SumsOverStagesInLoops(program);
  });
  std::vector<v1::Program> programs(stages.size());
  std::vector<check::StageFacts> facts(stages.size());
  check::WrittenAlike alike = {.stages = std::vector<v1::Program>(stages.size()),
                               .written = {stages.size(), std::vector<check::WrittenSequence>()}};
  RETURN_IF_ERROR(ForEachStage(stages, [&](size_t s) -> absl::Status {
    ASSIGN_OR_RETURN(check::Written own,
                     WriteLoops(stages[s], sums ? 0 : check::IterationsLeftOut(stages[s])));
    ASSIGN_OR_RETURN(facts[s], CheckWritten(own));
    programs[s] = std::move(own.program);
    ASSIGN_OR_RETURN(check::Written written, WriteLoops(stages[s], alike_left_out));
    alike.stages[s] = std::move(written.program);
    alike.written[s] = std::move(written.sequences);
    return absl::OkStatus();
  }));
  return check::CheckJoint(programs, facts, &alike);
}

}  // namespace

absl::Status CheckCanBeWrittenOut(const v1::Program& program) {
  RETURN_IF_ERROR(check::CheckStructure(program));
  for (const v1::Sequence& sequence : program.sequences()) {
    RETURN_IF_ERROR(check::CheckSchedule(program, sequence));
  }
  return check::CheckLoops(program);
}

absl::Status CheckProgram(const v1::Program& program) {
  RETURN_IF_ERROR(CheckForm(program));
  if (!HasLoops(program)) return CheckStraight(program, nullptr).status();
  ASSIGN_OR_RETURN(const check::Written written,
                   WriteLoops(program, check::IterationsLeftOut(program)));
  return CheckWritten(written).status();
}

absl::Status CheckPrograms(absl::Span<const v1::Program> stages) {
  const bool loops = std::any_of(stages.begin(), stages.end(), HasLoops);
  std::vector<check::StageFacts> facts(stages.size());
  RETURN_IF_ERROR(ForEachStage(stages, [&](size_t s) -> absl::Status {
    RETURN_IF_ERROR(CheckForm(stages[s]));
    if (loops) return absl::OkStatus();
    ASSIGN_OR_RETURN(facts[s], CheckStraight(stages[s], nullptr));
    return absl::OkStatus();
  }));
  return loops ? CheckWithLoops(stages) : check::CheckJoint(stages, facts, nullptr);
}

}  // namespace terrace
