// The answers to the web page, as JSON. Text may come from outside: bytes that are not UTF-8
// are replaced. Numbers that are not finite are null.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/http/http_server.h"
#include "proto/v1/history.pb.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/list.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

HttpResponse JsonResponse(std::string body);
// {"error": ...} with the HTTP code of the status's kind.
HttpResponse ErrorResponse(const absl::Status& status);
// A message in proto3's JSON, with its own field names.
HttpResponse MessageResponse(const google::protobuf::Message& message);

// `counts` are of all jobs there are, by state.
std::string RowsJson(const v1::ListPageResponse& page,
                     const std::map<v1::JobState, int64_t>& counts, bool has_operator,
                     int64_t unix_ms);
std::string HistoryJson(const v1::JobHistory& history);
std::string EventsJson(const std::vector<v1::JobEvent>& events, int64_t last_sequence,
                       bool is_over);
std::string LogJson(const std::string& text, const v1::LogPosition& position);

}  // namespace terrace
