// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/trace.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "coordinator/report/stages.h"
#include "kernels/tensor_view.h"
#include "proto/drawing/svg.h"
#include "proto/report/plan_text.h"

namespace terrace {
namespace {

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int64_t CopiedBytes(const v1::Instruction& instruction) {
  int64_t bytes = 0;
  for (int i = 0; i < instruction.operands_size(); i += 2) {
    const v1::Operand& operand = instruction.operands(i);
    int64_t size = kernels::SizeOf(static_cast<kernels::DType>(operand.dtype()));
    for (const int64_t extent : operand.shape()) size *= extent;
    bytes += size;
  }
  return bytes;
}

// Where a copy's bytes go; nothing for other instructions.
std::string CopyArguments(const v1::Instruction& instruction) {
  if (!instruction.has_copy()) return "";
  const v1::CopyKind kind = instruction.copy().kind();
  const v1::Tier from = kind == v1::NVME_LOAD ? v1::NVME
                        : kind == v1::TO_HOST ? v1::DEVICE
                                              : v1::HOST;
  const v1::Tier to = kind == v1::NVME_STORE  ? v1::NVME
                      : kind == v1::TO_DEVICE ? v1::DEVICE
                                              : v1::HOST;
  return absl::StrFormat(R"(,"from":"%s","to":"%s","bytes":%d)", TierWord(from), TierWord(to),
                         CopiedBytes(instruction));
}

std::string StreamName(const v1::Stream& stream) {
  return stream.name().empty() ? absl::AsciiStrToLower(v1::StreamKind_Name(stream.kind()))
                               : stream.name();
}

void AddNames(const v1::Program& program, std::string* events) {
  absl::StrAppendFormat(events,
                        R"(%s{"ph":"M","pid":%u,"name":"process_name","args":{"name":"stage %u"}})",
                        events->empty() ? "" : ",\n", program.stage(), program.stage());
  for (int i = 0; i < program.streams_size(); ++i) {
    absl::StrAppendFormat(events,
                          ",\n"
                          R"({"ph":"M","pid":%u,"tid":%d,"name":"thread_name","args":{"name":%s}})",
                          program.stage(), i, Quoted(StreamName(program.streams(i))));
  }
}

double SecondsOf(const RunInstruction& run) { return run.end_seconds - run.start_seconds; }

size_t InstructionsOf(const Prepared& prepared, int stage) {
  const auto& instructions = prepared.simulation.stages[stage].instructions;
  return std::count_if(instructions.begin(), instructions.end(),
                       [](const RunInstruction& run) { return run.ran(); });
}

// As many stages as there are slices for, evenly chosen; one at least.
std::set<int> StagesFor(const Prepared& prepared, size_t slices_most) {
  const int stages = static_cast<int>(prepared.programs.size());
  for (size_t shown = stages; shown > 1; --shown) {
    const std::set<int> chosen = EvenlyChosen(stages, shown);
    size_t slices = 0;
    for (const int stage : chosen) slices += InstructionsOf(prepared, stage);
    if (slices <= slices_most) return chosen;
  }
  return {0};
}

// Shorter ones are left out, so that no more than so many are left.
double ShortestShown(const std::vector<RunInstruction>& instructions, size_t slices_most) {
  std::vector<double> seconds;
  for (const RunInstruction& run : instructions) {
    if (run.ran()) seconds.push_back(SecondsOf(run));
  }
  if (seconds.size() <= slices_most) return 0;
  const auto last = seconds.begin() + static_cast<int64_t>(slices_most);
  std::nth_element(seconds.begin(), last, seconds.end(), std::greater<>());
  return std::nextafter(*last, 1e300);
}

// Returns how many are left out.
size_t AddStage(const Prepared& prepared, int stage, size_t slices_most, std::string* events) {
  const PlayedProgram drawn = DrawnOf(prepared, stage);
  const v1::Program& program = drawn.program();
  AddNames(program, events);
  const v1::Sequence& sequence = TrainOf(program);
  const int train = drawn.IndexOf(sequence);
  const auto& instructions = prepared.simulation.stages[stage].instructions;
  const double shortest = ShortestShown(instructions, slices_most);
  size_t left_out = 0;
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    const RunInstruction& run = instructions[i];
    if (!run.ran()) continue;
    if (SecondsOf(run) < shortest) {
      ++left_out;
      continue;
    }
    absl::StrAppendFormat(
        events,
        ",\n"
        R"({"ph":"X","pid":%u,"tid":%u,"name":%s,"cat":"%s","ts":%.3f,"dur":%.3f,)"
        R"("args":{"id":%d,"step":0,"layer":%d,"micro_batch":%d%s}})",
        program.stage(), instruction.stream(), Quoted(instruction.text()),
        absl::AsciiStrToLower(v1::Phase_Name(instruction.phase())), run.start_seconds * 1e6,
        SecondsOf(run) * 1e6, drawn.PlayedAt(train, i).instruction, instruction.layer(),
        instruction.micro_batch(), CopyArguments(instruction));
  }
  return left_out;
}

}  // namespace

std::string PlanTrace(const Prepared& prepared, size_t slices_most) {
  std::string events;
  const std::set<int> shown = StagesFor(prepared, slices_most);
  size_t left_out = 0;
  for (const int stage : shown) left_out += AddStage(prepared, stage, slices_most, &events);
  std::string words;
  if (shown.size() < prepared.programs.size()) {
    words = absl::StrCat(shown.size(), " of ", prepared.programs.size(), " stages are shown");
  }
  if (left_out > 0) {
    absl::StrAppend(&words, words.empty() ? "" : "; ", Grouped(static_cast<int64_t>(left_out)),
                    " short instructions are left out");
  }
  if (!words.empty()) absl::StrAppend(&words, "; terrace explain lists all of them");
  if (const std::string left = LeftOutText(prepared); !left.empty()) {
    absl::StrAppend(&words, words.empty() ? "" : "; ", left);
  }
  if (!words.empty()) {
    absl::StrAppendFormat(&events,
                          ",\n"
                          R"({"ph":"i","s":"g","pid":%u,"tid":0,"ts":0,"name":%s})",
                          prepared.programs[0].stage(), Quoted(words));
  }
  return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"left_out\":", Quoted(words),
                      "},\"traceEvents\":[\n", events, "\n]}\n");
}

std::string PlanTrace(const Prepared& prepared) { return PlanTrace(prepared, kTraceSlicesMost); }

}  // namespace terrace
