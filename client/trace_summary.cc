// SPDX-License-Identifier: Apache-2.0
#include "client/trace_summary.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/table.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

struct Operation {
  int64_t calls = 0;
  double microseconds = 0;
};
using OperationName = std::pair<std::string, std::string>;  // stream, text

double NumberAt(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : 0;
}

std::string TextAt(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t StepOf(const Json& slice) {
  const auto arguments = slice.find("args");
  return arguments != slice.end() && arguments->is_object()
             ? static_cast<int64_t>(NumberAt(*arguments, "step"))
             : 0;
}

struct Step {
  std::map<OperationName, Operation> operations;
  double begin = 0, end = 0;  // microseconds
};

Step LastStep(const Json& events) {
  std::map<int64_t, std::string> streams;
  int64_t last = 0;
  for (const Json& event : events) {
    if (TextAt(event, "name") == "thread_name" && event.contains("args"))
      streams[static_cast<int64_t>(NumberAt(event, "tid"))] = TextAt(event["args"], "name");
    if (TextAt(event, "ph") == "X") last = std::max(last, StepOf(event));
  }
  Step step;
  for (const Json& event : events) {
    if (TextAt(event, "ph") != "X" || StepOf(event) != last) continue;
    const double begin = NumberAt(event, "ts"), duration = NumberAt(event, "dur");
    step.begin = step.operations.empty() ? begin : std::min(step.begin, begin);
    step.end = std::max(step.end, begin + duration);
    Operation& operation = step.operations[{streams[static_cast<int64_t>(NumberAt(event, "tid"))],
                                            TextAt(event, "name")}];
    ++operation.calls;
    operation.microseconds += duration;
  }
  return step;
}

}  // namespace

absl::StatusOr<std::string> TraceSummary(std::string_view trace) {
  const Json json = Json::parse(trace, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array()) {
    return absl::DataLossError("the trace cannot be read: it is no JSON with traceEvents");
  }
  const Step step = LastStep(json["traceEvents"]);
  if (step.operations.empty()) return absl::DataLossError("the trace holds no step");
  std::vector<std::pair<OperationName, Operation>> rows(step.operations.begin(),
                                                        step.operations.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.microseconds > b.second.microseconds;
  });
  Table table({"STREAM", "OPERATION", "CALLS", "MS", "OF THE STEP"});
  for (const auto& [name, operation] : rows) {
    table.Add({name.first, name.second, absl::StrCat(operation.calls),
               absl::StrFormat("%.3f", operation.microseconds * 1e-3),
               absl::StrFormat("%.1f %%", 100 * operation.microseconds / (step.end - step.begin))});
  }
  return absl::StrCat(table.ToString(),
                      absl::StrFormat("step: %.3f ms\n", (step.end - step.begin) * 1e-3));
}

}  // namespace terrace
