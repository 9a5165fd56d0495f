// The answers to the web page, as JSON. Text may come from outside: bytes that are not UTF-8
// are replaced. Numbers that are not finite are null.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/http/http_server.h"
#include "coordinator/jobs/job_row.h"
#include "proto/v1/history.pb.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

// Which rows of a list are asked for.
struct RowFilter {
  std::string state;  // "active", "ended", the name of a state, or "" for all
  std::string text;   // in the id, the name or the message, in any case
  int64_t offset = 0, limit = 100;
};

HttpResponse JsonResponse(std::string body);
// {"error": ...} with the HTTP code of the status's kind.
HttpResponse ErrorResponse(const absl::Status& status);
// A message in proto3's JSON, with its own field names.
HttpResponse MessageResponse(const google::protobuf::Message& message);

// `rows` in order of submission; the newest come first.
std::string RowsJson(const std::vector<JobRow>& rows, const RowFilter& filter, bool has_operator,
                     int64_t unix_ms);
std::string HistoryJson(const v1::JobHistory& history);
std::string EventsJson(const std::vector<v1::JobEvent>& events, int64_t last_sequence,
                       bool is_over);
std::string LogJson(const std::string& text, const v1::LogPosition& position);

}  // namespace terrace
