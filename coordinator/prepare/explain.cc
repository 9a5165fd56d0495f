// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/explain.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/compiler/pipeline/schedule.h"
#include "coordinator/layout/rules.h"
#include "proto/report/program_text.h"

namespace terrace {
namespace {

constexpr int kTableColumns = 100;

std::string ScheduleText(const v1::Layout& given) {
  const v1::Layout layout = Completed(given);
  const compiler::ScheduleShape shape = {.name = layout.schedule(),
                                         .stages = static_cast<int>(layout.pipeline_parallel()),
                                         .chunks = static_cast<int>(layout.interleave()),
                                         .micro_batches = static_cast<int>(layout.micro_batches())};
  const auto schedule = compiler::MakeSchedule(shape);
  if (!schedule.ok()) return "";
  std::string text = absl::StrCat("schedule ", shape.name, ": ", shape.stages, " stages, ",
                                  shape.micro_batches, " micro-batches");
  if (shape.chunks > 1) absl::StrAppend(&text, ", ", shape.chunks, " chunks a stage (a, b, ...)");
  const double bubble = compiler::PlayIdeal(shape, *schedule, {}).bubble_ratio;
  absl::StrAppendFormat(&text, ", ideal bubble %.1f %% of busy time\n", 100 * bubble);
  text +=
      compiler::SplitsBackward(shape.name)
          ? "3 is the forward pass of micro-batch 3, 3' the gradients of its inputs, 3w those of "
            "its weights\n"
          : "3 is the forward pass of micro-batch 3, 3' its backward pass, which takes twice as "
            "long\n";
  return text + compiler::ScheduleTable(shape, *schedule, kTableColumns) + "\n";
}

}  // namespace

absl::StatusOr<std::vector<v1::Program>> SelectStage(std::vector<v1::Program> programs,
                                                     std::optional<uint32_t> stage) {
  if (!stage) return programs;
  const size_t stages = programs.size();
  std::erase_if(programs, [&](const v1::Program& program) { return program.stage() != *stage; });
  if (!programs.empty()) return programs;
  return absl::InvalidArgumentError(
      stages == 1 ? absl::StrCat("--stage: got ", *stage, ", the job has only stage 0")
                  : absl::StrCat("--stage: got ", *stage, ", must be 0 to ", stages - 1));
}

std::string ExplainText(const v1::Layout& layout, const std::vector<v1::Program>& programs,
                        const std::string& sequence) {
  std::string text;
  if (layout.pipeline_parallel() > 1) text = ScheduleText(layout);
  for (const v1::Program& program : programs) {
    text += ProgramText(program, {.sequence = sequence});
  }
  return text;
}

}  // namespace terrace
