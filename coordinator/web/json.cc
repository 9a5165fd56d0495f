// SPDX-License-Identifier: Apache-2.0
#include "coordinator/web/json.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Null where a number is not known yet.
Json IfKnown(double value, bool known) { return known ? Json(value) : Json(nullptr); }
Json IfKnown(int64_t value) { return value == 0 ? Json(nullptr) : Json(value); }

Json RowJson(const v1::JobSummary& row) {
  const bool stepped = row.step_seconds() > 0;  // since it started: no row knows of steps before
  return {{"id", row.id()},
          {"name", row.name()},
          {"owner", row.owner()},
          {"state", v1::JobState_Name(row.state())},
          {"reason", v1::Reason_Name(row.reason())},
          {"message", row.message()},
          {"submitted_unix_ms", IfKnown(row.submitted_unix_ms())},
          {"started_unix_ms", IfKnown(row.started_unix_ms())},
          {"finished_unix_ms", IfKnown(row.finished_unix_ms())},
          {"resumed_unix_ms", IfKnown(row.resumed_unix_ms())},
          {"step", row.step()},
          {"steps", row.steps()},
          {"loss", IfKnown(row.loss(), stepped)},
          {"eval_loss", IfKnown(row.eval_loss(), row.has_eval_loss())},
          {"tokens_per_second", IfKnown(row.tokens_per_second(), stepped)},
          {"step_seconds", IfKnown(row.step_seconds(), stepped)},
          {"ranks", IfKnown(int64_t{row.ranks()})},
          {"parameters", IfKnown(row.parameters())},
          {"layout", row.layout()},
          {"precision", row.precision()},
          {"restarts", row.restarts()},
          {"estimated_start_unix_ms", IfKnown(row.estimated_start_unix_ms())},
          {"estimate", row.estimate()}};
}

template <typename Column>
Json ColumnJson(const Column& column) {
  Json values = Json::array();
  for (const auto value : column) values.push_back(value);
  return values;
}

// The largest of each tier's and class's column, by name; what is reserved stands apart.
Json MemoryJson(const v1::MemoryColumns& memory) {
  Json classes = Json::array(), reserved = Json::array();
  for (const v1::MemoryColumn& column : memory.columns()) {
    Json one = {{"tier", v1::Tier_Name(column.tier())}};
    const bool is_class = column.class_() != v1::BUFFER_CLASS_UNSPECIFIED;
    if (is_class) one["class"] = v1::BufferClass_Name(column.class_());
    one["bytes"] = ColumnJson(column.bytes());
    (is_class ? classes : reserved).push_back(std::move(one));
  }
  return {{"unix_ms", ColumnJson(memory.unix_ms())}, {"tiers", classes}, {"reserved", reserved}};
}

Json MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return {};
  return Json::parse(json, nullptr, /*allow_exceptions=*/false);
}

int HttpCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

}  // namespace

HttpResponse JsonResponse(std::string body) {
  return {.content_type = "application/json", .body = std::move(body)};
}

HttpResponse ErrorResponse(const absl::Status& status) {
  HttpResponse response = JsonResponse(Dump({{"error", CleanText(Std(status.message()))}}));
  response.code = HttpCode(status.code());
  return response;
}

HttpResponse MessageResponse(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (status.ok()) return JsonResponse(std::move(json));
  return ErrorResponse(absl::InternalError("what is asked for cannot be written as JSON"));
}

std::string RowsJson(const v1::ListPageResponse& page,
                     const std::map<v1::JobState, int64_t>& counts, bool has_operator,
                     int64_t unix_ms) {
  Json of_states = Json::object(), shown = Json::array();
  for (const auto& [state, jobs] : counts) of_states[v1::JobState_Name(state)] = jobs;
  for (const v1::JobSummary& row : page.summaries()) shown.push_back(RowJson(row));
  int64_t total = 0;
  for (const v1::ListPageResponse::Count& count : page.counts()) total += count.jobs();
  return Dump({{"total", total},
               {"counts", of_states},
               {"operator", has_operator},
               {"unix_ms", unix_ms},
               {"jobs", shown}});
}

std::string HistoryJson(const v1::JobHistory& history) {
  const v1::StepColumns& steps = history.steps();
  const v1::EvalColumns& evals = history.evals();
  const v1::CheckpointColumns& checkpoints = history.checkpoints();
  return Dump({{"steps",
                {{"step", ColumnJson(steps.step())},
                 {"unix_ms", ColumnJson(steps.unix_ms())},
                 {"loss", ColumnJson(steps.loss())},
                 {"loss_min", ColumnJson(steps.loss_min())},
                 {"loss_max", ColumnJson(steps.loss_max())},
                 {"grad_norm", ColumnJson(steps.grad_norm())},
                 {"learning_rate", ColumnJson(steps.learning_rate())},
                 {"tokens_per_second", ColumnJson(steps.tokens_per_second())},
                 {"step_seconds", ColumnJson(steps.step_seconds())}}},
               {"evals",
                {{"step", ColumnJson(evals.step())},
                 {"unix_ms", ColumnJson(evals.unix_ms())},
                 {"loss", ColumnJson(evals.loss())}}},
               {"checkpoints",
                {{"step", ColumnJson(checkpoints.step())},
                 {"unix_ms", ColumnJson(checkpoints.unix_ms())},
                 {"seconds", ColumnJson(checkpoints.seconds())}}},
               {"memory", MemoryJson(history.memory())},
               {"last_sequence", history.last_sequence()}});
}

std::string EventsJson(const std::vector<v1::JobEvent>& events, int64_t last_sequence,
                       bool is_over) {
  Json list = Json::array();
  for (const v1::JobEvent& event : events) list.push_back(MessageJson(event));
  return Dump({{"events", list}, {"last_sequence", last_sequence}, {"over", is_over}});
}

std::string LogJson(const std::string& text, const v1::LogPosition& position) {
  return Dump({{"text", text}, {"epoch", position.epoch()}, {"offset", position.offset()}});
}

}  // namespace terrace
