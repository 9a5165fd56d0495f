// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>

#include "base/status_macros.h"
#include "proto/check/instruction/families.h"
#include "proto/check/instruction/refuse.h"

namespace terrace::check {
namespace {

absl::Status CheckLoadBatch(const v1::Instruction& instruction, const InstructionName& where) {
  const OperandRule ids = {.access = v1::WRITE, .dtype = v1::I32, .shape = {0}, .optional = true};
  const OperandRule places = {.access = v1::WRITE, .dtype = v1::I32, .shape = {0, 2}};
  const bool loads_places = instruction.operands_size() > 2;
  RETURN_IF_ERROR(loads_places ? CheckRules(instruction, {ids, ids, places}, where)
                               : CheckRules(instruction, {ids, ids}, where));
  const v1::Operand& tokens = instruction.operands(0);
  const v1::Operand& targets = instruction.operands(1);
  const bool loads_tokens = tokens.access() != v1::ACCESS_UNSPECIFIED;
  const bool loads_targets = targets.access() != v1::ACCESS_UNSPECIFIED;
  if (!loads_tokens && !loads_targets && !loads_places)
    return Refuse(where, ": loads neither tokens nor targets nor places");
  std::set<int64_t> lengths;
  if (loads_tokens) lengths.insert(tokens.shape(0));
  if (loads_targets) lengths.insert(targets.shape(0));
  if (loads_places) lengths.insert(instruction.operands(2).shape(0));
  if (lengths.size() == 1) return absl::OkStatus();
  return Refuse(where, ": tokens, targets and places must be of one length");
}

}  // namespace

absl::Status CheckInput(const v1::Instruction& instruction, const InstructionName& where) {
  const OperandRule ids = {.access = v1::WRITE, .dtype = v1::I32, .shape = {0}};
  switch (instruction.input().kind()) {
    case v1::LOAD_BATCH:
      return CheckLoadBatch(instruction, where);
    case v1::LOAD_SCHEDULE: {
      const OperandRule schedule = {.access = v1::WRITE, .shape = {4}};
      if (instruction.operands_size() == 1) return CheckRules(instruction, {schedule}, where);
      const OperandRule step = {.access = v1::WRITE, .dtype = v1::I32, .shape = {1}};
      return CheckRules(instruction, {schedule, step}, where);
    }
    case v1::LOAD_PROMPT:
      return CheckRules(instruction, {ids, ids}, where);
    default:
      return Refuse(where, ": input kind ", instruction.input().kind(), " does not exist");
  }
}

absl::Status CheckOutput(const v1::Instruction& instruction, const InstructionName& where) {
  switch (instruction.output().kind()) {
    case v1::STEP_STATS:
      return CheckRules(instruction, {{.shape = {4}}}, where);
    case v1::LOSS_TOTAL:
      return CheckRules(instruction, {{.shape = {2}}}, where);
    case v1::LOGITS:
      return CheckRules(instruction, {{.shape = {0, 0}}}, where);
    default:
      return Refuse(where, ": output kind ", instruction.output().kind(), " does not exist");
  }
}

}  // namespace terrace::check
