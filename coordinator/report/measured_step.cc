// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/measured_step.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "coordinator/report/stages.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

double NumberAt(const Json& object, const char* key, double otherwise) {
  const auto found = object.find(key);
  const bool is_number = found != object.end() && found->is_number();
  const double number = is_number ? found->get<double>() : otherwise;
  return std::isfinite(number) && std::abs(number) < 1e15 ? number : otherwise;
}

int64_t WholeAt(const Json& object, const char* key, int64_t otherwise) {
  return static_cast<int64_t>(NumberAt(object, key, static_cast<double>(otherwise)));
}

// A slice of one instruction.
bool IsSlice(const Json& event) {
  if (!event.is_object() || event.value("ph", Json()) != "X") return false;
  const auto arguments = event.find("args");
  return arguments != event.end() && arguments->is_object() && WholeAt(*arguments, "id", -1) >= 0;
}

}  // namespace

absl::StatusOr<MeasuredStep> ReadMeasuredStep(std::string_view trace, const Prepared& prepared) {
  const Json read = Json::parse(trace, nullptr, /*allow_exceptions=*/false);
  const Json* events = &read;
  if (read.is_object() && read.contains("traceEvents")) events = &read["traceEvents"];
  if (!events->is_array()) return absl::DataLossError("this is no trace of a rank");
  MeasuredStep measured{.step = -1};
  for (const Json& event : *events) {
    if (!IsSlice(event)) continue;
    measured.rank =
        static_cast<uint32_t>(std::clamp<int64_t>(WholeAt(event, "pid", 0), 0, UINT32_MAX));
    measured.step = std::max(measured.step, WholeAt(event["args"], "step", -1));
  }
  const v1::Layout& layout = prepared.plan.layout();
  const uint32_t ranks_of_a_stage =
      std::max(1u, layout.ranks() / std::max(1u, layout.pipeline_parallel()));
  measured.stage = static_cast<int>(measured.rank / ranks_of_a_stage);
  if (measured.step < 0 || measured.stage >= static_cast<int>(prepared.programs.size()))
    return absl::DataLossError("the trace has no step of these programs");
  std::unordered_map<int64_t, const v1::Instruction*> by_id;
  for (const v1::Instruction& one : TrainOf(prepared.programs[measured.stage]).instructions())
    by_id[one.id()] = &one;
  double begin = INFINITY, end = 0;
  for (const Json& event : *events) {
    if (!IsSlice(event) || WholeAt(event["args"], "step", -1) != measured.step) continue;
    const auto found = by_id.find(WholeAt(event["args"], "id", -1));
    if (found == by_id.end()) continue;
    const double start = NumberAt(event, "ts", 0) * 1e-6;
    const double seconds = std::max(0.0, NumberAt(event, "dur", 0) * 1e-6);
    begin = std::min(begin, start);
    end = std::max(end, start + seconds);
    measured.instructions.push_back(
        {.instruction = found->second,
         .micro_batch = static_cast<int>(WholeAt(event["args"], "micro_batch", -1)),
         .start_seconds = start,
         .end_seconds = start + seconds});
  }
  if (measured.instructions.empty())
    return absl::DataLossError("the trace has no step of these programs");
  for (MeasuredInstruction& one : measured.instructions) {
    one.start_seconds -= begin;
    one.end_seconds -= begin;
  }
  measured.seconds = end - begin;
  return measured;
}

}  // namespace terrace
