// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/text/terminal_text.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/live_display.h"
#include "client/print.h"

namespace terrace {
namespace {

constexpr int kMaxReconnects = 60;

// A log may hold what libraries and data say. On a terminal that is text and moves no cursor; into
// a file or a pipe it goes as it is.
class Printer {
 public:
  explicit Printer(const GlobalOptions& global)
      : global_(global), is_terminal_(StandardOutputIsTerminal()) {}

  void Print(const std::string& text) {
    if (text.empty()) return;
    if (global_.json()) {
      v1::LogsChunk chunk;
      chunk.set_text(text);
      std::printf("%s\n", ToJson(chunk, /*pretty=*/false).c_str());
    } else {
      const std::string shown = is_terminal_ ? terminal_text_.Next(text) : text;
      std::fwrite(shown.data(), 1, shown.size(), stdout);
    }
    std::fflush(stdout);
  }

 private:
  const GlobalOptions& global_;
  const bool is_terminal_;
  TerminalText terminal_text_;
};

// Follows a log to the end of its job. Where the stream ends, because the coordinator or the worker
// is away or the job is started again, it asks again once a second for what comes behind the place
// that was printed last, in this log and in those of the job's next starts.
class Follower {
 public:
  Follower(const GlobalOptions& global, Connection& connection, v1::LogsRequest request)
      : printer_(global), connection_(connection), request_(std::move(request)) {}

  absl::Status Run() {
    for (int failures = 0;;) {
      // Before it is read: what a rank wrote before its job ended is read as well.
      const absl::StatusOr<v1::Job> job = connection_.Get(request_.id());
      const bool ended = job.ok() && HasEnded(job->state());
      request_.set_follow(!ended);
      printed_ = false;
      const absl::Status read =
          connection_.Logs(request_, [this](const v1::LogsChunk& chunk) { Take(chunk); });
      if (!read.ok() && !IsPassing(read)) return read;
      if (printed_ && !request_.has_after()) return read;  // an older worker knows no places
      if (ended && !printed_ && (read.ok() || absl::IsNotFound(read))) return absl::OkStatus();
      failures = (job.ok() && read.ok()) || printed_ ? 0 : failures + 1;
      if (failures > kMaxReconnects) return job.ok() ? read : job.status();
      if (!printed_) connection_.PauseBeforeRetry();
    }
  }

 private:
  void Take(const v1::LogsChunk& chunk) {
    printed_ = printed_ || !chunk.text().empty();
    printer_.Print(chunk.text());
    if (chunk.has_end()) *request_.mutable_after() = chunk.end();
  }

  // A worker that is away tells nothing of a log that was there before.
  bool IsPassing(const absl::Status& status) const {
    return absl::IsUnavailable(status) || (absl::IsNotFound(status) && request_.has_after());
  }

  Printer printer_;
  Connection& connection_;
  v1::LogsRequest request_;
  bool printed_ = false;  // by the last reading
};

}  // namespace

int LogsCommand(const GlobalOptions& global, const LogsOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  v1::LogsRequest request;
  request.set_id(options.job);
  request.set_rank(options.rank);
  request.set_follow(options.follow);
  request.set_tail_lines(options.tail_lines);
  // Whoever asks where nobody answers is told so at once.
  absl::Status status = (*connection)->Get(options.job).status();
  if (status.ok() && options.follow) {
    status = Follower(global, **connection, std::move(request)).Run();
  } else if (status.ok()) {
    Printer printer(global);
    status = (*connection)->Logs(request, [&printer](const v1::LogsChunk& chunk) {
      printer.Print(chunk.text());
    });
  }
  return status.ok() ? 0 : Fail(global, status);
}

}  // namespace terrace
