// SPDX-License-Identifier: Apache-2.0
#include "client/print.h"

#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <cstdint>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exit_code.h"
#include "base/strings.h"
#include "base/text/duration.h"
#include "base/utf8.h"

namespace terrace {
std::string JsonNumber(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "null";
}

std::string ToJson(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = pretty;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  return json;
}

std::string JsonString(const std::string& text) {
  // A string field's JSON is the quoted, escaped string.
  v1::StateEvent carrier;
  // Protobuf writes no string that is not UTF-8; control characters it escapes itself.
  carrier.set_message(FindInvalidUtf8(text) == text.size() ? text : CleanText(text, SIZE_MAX));
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(carrier, &json, options);
  const size_t colon = json.find(':');
  return colon == std::string::npos ? "\"\"" : json.substr(colon + 1, json.size() - colon - 2);
}

void PrintJson(const google::protobuf::Message& message) {
  std::fputs(ToJson(message, /*pretty=*/true).c_str(), stdout);
}

void PrintWritten(const GlobalOptions& global, const std::vector<WrittenFile>& files,
                  std::string_view hint) {
  std::string text;
  for (const WrittenFile& file : files) {
    if (global.json()) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", "{\"path\": ", JsonString(file.path),
                      ", \"bytes\": ", file.bytes, "}");
    } else {
      absl::StrAppend(&text, "wrote ", file.path, ", ", file.bytes, " bytes", Absl(hint), "\n");
    }
  }
  if (global.json()) text = absl::StrCat("{\"files\": [", text, "]}\n");
  std::fputs(text.c_str(), stdout);
}

int Fail(const GlobalOptions& global, const absl::Status& status) {
  const std::string message = CleanText(Std(status.message()));
  const int code = ToInt(ExitCodeOf(status));
  if (global.json()) {
    std::printf(
        "{\"event\": \"error\", \"exit_code\": %d, \"error\": {\"code\": \"%s\", \"message\": "
        "%s}}\n",
        code, absl::StatusCodeToString(status.code()).c_str(), JsonString(message).c_str());
    std::fflush(stdout);
  }
  std::fprintf(stderr, "terrace: %s\n", message.c_str());
  return code;
}

std::string FormatDuration(double seconds) {
  if (!(seconds >= 0)) return "-";
  if (seconds > 0 && seconds < 0.1) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 60) return absl::StrFormat(seconds < 10 ? "%.2f s" : "%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%d m %02d s", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%d h %02d m", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%d d %02d h", whole / 86400, whole / 3600 % 24);
}

std::string FormatCount(double value) {
  if (value < 1e3) return absl::StrFormat("%.0f", value);
  if (value < 1e6) return absl::StrFormat("%.1fk", value / 1e3);
  if (value < 1e9) return absl::StrFormat("%.1fM", value / 1e6);
  return absl::StrFormat("%.1fG", value / 1e9);
}

std::string FormatAge(int64_t then_unix_ms, int64_t now_unix_ms) {
  return then_unix_ms == 0
             ? "-"
             : FormatDuration(std::max<double>(0, (now_unix_ms - then_unix_ms) / 1e3));
}

std::string DeviceText(const v1::Node& node) {
  if (node.device().empty()) return "cpu";
  return node.device_name().empty() ? node.device()
                                    : absl::StrCat(node.device(), ": ", node.device_name());
}

std::string_view StateName(v1::JobState state) { return v1::JobState_Name(state); }

std::string ReasonName(v1::Reason reason) {
  if (reason == v1::REASON_NONE) return "";
  const std::string& name = v1::Reason_Name(reason);
  return absl::StartsWith(name, "REASON_") ? name.substr(7) : name;
}

bool HasEnded(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

bool HasStepped(const v1::Progress& progress) { return progress.step_seconds() > 0; }

namespace {

// Of an fp16 job.
std::string LossScaleFields(const v1::StepEvent& step) {
  if (step.loss_scale() <= 0) return "";
  return absl::StrCat(", \"loss_scale\": ", JsonNumber(step.loss_scale()),
                      ", \"skipped_steps\": ", step.skipped_steps());
}

// The JSON field that describes a job's hang; empty where there is none.
std::string HangField(const v1::StateEvent& state) {
  if (!state.has_hang()) return "";
  return absl::StrCat(", \"hang\": ", ToJson(state.hang(), /*pretty=*/false));
}

// Why a step changed nothing.
std::string SkippedText(const v1::StepEvent& step) {
  if (!step.skipped()) return "";
  if (step.loss_scale() <= 0) return "  (skipped: not finite)";
  return absl::StrCat("  (skipped: not finite at loss scale ", step.loss_scale(), ")");
}

}  // namespace

std::string EventLine(const v1::JobEvent& event) {
  switch (event.event_case()) {
    case v1::JobEvent::kStep: {
      const v1::StepEvent& e = event.step();
      return absl::StrCat(
          "{\"event\": \"step\", \"step\": ", e.step(), ", \"loss\": ", JsonNumber(e.loss()),
          ", \"grad_norm\": ", JsonNumber(e.grad_norm()),
          ", \"tokens_per_second\": ", JsonNumber(e.tokens_per_second()),
          ", \"step_seconds\": ", JsonNumber(e.step_seconds()),
          ", \"learning_rate\": ", JsonNumber(e.learning_rate()), ", \"tokens\": ", e.tokens(),
          ", \"skipped\": ", e.skipped() ? "true" : "false", LossScaleFields(e), "}");
    }
    case v1::JobEvent::kEval:
      return absl::StrCat("{\"event\": \"eval\", \"step\": ", event.eval().step(),
                          ", \"loss\": ", JsonNumber(event.eval().loss()),
                          ", \"tokens\": ", event.eval().tokens(),
                          ", \"seconds\": ", JsonNumber(event.eval().seconds()), "}");
    case v1::JobEvent::kState:
      return absl::StrCat(
          "{\"event\": \"state\", \"state\": \"", v1::JobState_Name(event.state().state()),
          "\", \"reason\": \"", ReasonName(event.state().reason()),
          "\", \"message\": ", JsonString(event.state().message()), HangField(event.state()), "}");
    case v1::JobEvent::kCheckpoint:
      return absl::StrCat("{\"event\": \"checkpoint\", \"step\": ", event.checkpoint().step(),
                          ", \"path\": ", JsonString(event.checkpoint().path()),
                          ", \"bytes\": ", event.checkpoint().bytes(),
                          ", \"seconds\": ", JsonNumber(event.checkpoint().seconds()),
                          ", \"stall_seconds\": ", JsonNumber(event.checkpoint().stall_seconds()),
                          "}");
    case v1::JobEvent::kActivity:
      return absl::StrCat(
          "{\"event\": \"activity\", \"text\": ", JsonString(event.activity().text()),
          ", \"fraction\": ", JsonNumber(event.activity().fraction()), "}");
    case v1::JobEvent::kWarning:
      return absl::StrCat("{\"event\": \"warning\", \"rank\": ", event.warning().rank(),
                          ", \"text\": ", JsonString(event.warning().text()), "}");
    case v1::JobEvent::kSlow:
      return absl::StrCat("{\"event\": \"slow\", \"rank\": ", event.slow().rank().rank(),
                          ", \"over\": ", event.slow().over() ? "true" : "false",
                          ", \"text\": ", JsonString(event.slow().text()), "}");
    case v1::JobEvent::EVENT_NOT_SET:
      break;
  }
  return "";
}

std::string EventText(const v1::JobEvent& event, int64_t steps) {
  switch (event.event_case()) {
    case v1::JobEvent::kStep: {
      const v1::StepEvent& e = event.step();
      return absl::StrFormat("step %d/%d  loss %.4f  grad norm %.3f  %s tokens/s  %s a step%s",
                             e.step(), steps, e.loss(), e.grad_norm(),
                             FormatCount(e.tokens_per_second()), FormatDuration(e.step_seconds()),
                             SkippedText(e));
    }
    case v1::JobEvent::kEval:
      return absl::StrFormat("validation after step %d: loss %.4f nats a token over %d tokens (%s)",
                             event.eval().step(), event.eval().loss(), event.eval().tokens(),
                             FormatDuration(event.eval().seconds()));
    case v1::JobEvent::kState: {
      const v1::StateEvent& e = event.state();
      std::string text = v1::JobState_Name(e.state());
      if (e.reason() != v1::REASON_NONE) absl::StrAppend(&text, " (", ReasonName(e.reason()), ")");
      if (!e.message().empty()) absl::StrAppend(&text, ": ", e.message());
      return text;
    }
    case v1::JobEvent::kCheckpoint:
      return absl::StrFormat("checkpoint of step %d: %s", event.checkpoint().step(),
                             event.checkpoint().path());
    case v1::JobEvent::kActivity:
      return absl::StrFormat("%s %.0f %%", event.activity().text(),
                             event.activity().fraction() * 100);
    case v1::JobEvent::kWarning:
      return absl::StrCat("warning: rank ", event.warning().rank(), ": ", event.warning().text());
    case v1::JobEvent::kSlow:
      return absl::StrCat(event.slow().over() ? "" : "warning: ", event.slow().text());
    case v1::JobEvent::EVENT_NOT_SET:
      break;
  }
  return "";
}

std::string LeftText(const v1::Job& job) {
  return job.remaining_seconds() > 0 ? FormatDuration(job.remaining_seconds()) : "";
}

std::string TimeLimitText(const v1::Job& job) {
  const int64_t limit = job.spec().time_limit_seconds();
  if (limit == 0) return "";
  return absl::StrCat(SpanText(limit), ", ", FormatDuration(job.held_seconds()), " used");
}

int ExitCodeOfJob(const v1::Job& job) {
  if (job.state() == v1::SUCCEEDED) return ToInt(ExitCode::kOk);
  if (job.state() == v1::CANCELLED) return ToInt(ExitCode::kCancelled);
  switch (job.reason()) {
    case v1::REASON_INVALID_SPEC:
    case v1::REASON_DATA_ERROR:
    case v1::REASON_WEIGHTS_ERROR:
      return ToInt(ExitCode::kInvalidInput);
    case v1::REASON_DOES_NOT_FIT:
    case v1::REASON_CHECKPOINT_ERROR:
    case v1::REASON_OUT_OF_MEMORY:
    case v1::REASON_TIME_LIMIT:
      return ToInt(ExitCode::kResources);
    default:
      return ToInt(ExitCode::kFailure);
  }
}

}  // namespace terrace
