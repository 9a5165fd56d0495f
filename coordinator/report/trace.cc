// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/trace.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/report/drawing.h"
#include "coordinator/report/stages.h"
#include "kernels/tensor_view.h"

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

}  // namespace

std::string PlanTrace(const Prepared& prepared) {
  std::string events;
  for (size_t stage = 0; stage < prepared.programs.size(); ++stage) {
    const v1::Program& program = prepared.programs[stage];
    AddNames(program, &events);
    const v1::Sequence& sequence = TrainOf(program);
    for (int i = 0; i < sequence.instructions_size(); ++i) {
      const v1::Instruction& instruction = sequence.instructions(i);
      const RunInstruction& run = prepared.simulation.stages[stage].instructions[i];
      if (!run.ran()) continue;
      absl::StrAppendFormat(
          &events,
          ",\n"
          R"({"ph":"X","pid":%u,"tid":%u,"name":%s,"cat":"%s","ts":%.3f,"dur":%.3f,)"
          R"("args":{"id":%u,"step":0,"layer":%d,"micro_batch":%d%s}})",
          program.stage(), instruction.stream(), Quoted(instruction.text()),
          absl::AsciiStrToLower(v1::Phase_Name(instruction.phase())), run.start_seconds * 1e6,
          (run.end_seconds - run.start_seconds) * 1e6, instruction.id(), instruction.layer(),
          instruction.micro_batch(), CopyArguments(instruction));
    }
  }
  return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", events, "\n]}\n");
}

}  // namespace terrace
