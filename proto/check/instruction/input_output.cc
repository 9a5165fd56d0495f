// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "proto/check/instruction/families.h"
#include "proto/check/instruction/refuse.h"

namespace terrace::check {
namespace {

absl::Status CheckLoadBatch(const v1::Instruction& instruction, const InstructionName& where) {
  const OperandRule ids = {.access = v1::WRITE, .dtype = v1::I32, .shape = {0}, .optional = true};
  const OperandRule places = {
      .access = v1::WRITE, .dtype = v1::I32, .shape = {0, 2}, .optional = true};
  std::vector<OperandRule> rules = {ids, ids, places, ids};
  const auto count = static_cast<size_t>(instruction.operands_size());
  rules.resize(std::clamp<size_t>(count, 2, rules.size()));
  RETURN_IF_ERROR(CheckRules(instruction, rules, where));
  std::set<int64_t> lengths;
  for (const v1::Operand& operand : instruction.operands()) {
    if (operand.access() != v1::ACCESS_UNSPECIFIED) lengths.insert(operand.shape(0));
  }
  if (lengths.empty())
    return Refuse(where, ": loads neither tokens nor targets nor places nor starts");
  if (lengths.size() == 1) return absl::OkStatus();
  return Refuse(where, ": tokens, targets, places and starts must be of one length");
}

absl::Status CheckLoadPrompt(const v1::Instruction& instruction, const InstructionName& where) {
  const OperandRule ids = {.access = v1::WRITE, .dtype = v1::I32, .shape = {0}};
  const OperandRule spans = {.access = v1::WRITE, .dtype = v1::I32, .shape = {0, 2}};
  RETURN_IF_ERROR(CheckRules(instruction, {ids, ids, spans, ids}, where));
  const int64_t tokens = instruction.operands(0).shape(0);
  if (instruction.operands(1).shape(0) == tokens) return absl::OkStatus();
  return Refuse(where, ": ", tokens, " tokens have ", instruction.operands(1).shape(0),
                " positions");
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
      return CheckLoadPrompt(instruction, where);
    default:
      return Refuse(where, ": input kind ", instruction.input().kind(), " does not exist");
  }
}

absl::Status CheckOutput(const v1::Instruction& instruction, const InstructionName& where) {
  switch (instruction.output().kind()) {
    case v1::STEP_STATS:
      return CheckRules(instruction, {{.shape = {4}}}, where);
    case v1::LOSS_TOTAL:
    case v1::PREFERENCE:
      return CheckRules(instruction, {{.shape = {2}}}, where);
    case v1::LOGITS:
      return CheckRules(instruction, {{.shape = {0, 0}}}, where);
    default:
      return Refuse(where, ": output kind ", instruction.output().kind(), " does not exist");
  }
}

}  // namespace terrace::check
