// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"

namespace terrace {
namespace {

constexpr int kMaxReconnects = 60;
constexpr auto kReconnectDelay = std::chrono::seconds(1);
constexpr int64_t kTailLines = 20'000;     // within which the place is found again
constexpr size_t kRememberedBytes = 4096;  // by which it is found: lines tell the time
constexpr size_t kSkippedBytesMax = 32 << 20;

void Print(const GlobalOptions& global, const std::string& text) {
  if (global.json()) {
    v1::LogsChunk chunk;
    chunk.set_text(text);
    std::printf("%s\n", ToJson(chunk, /*pretty=*/false).c_str());
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  std::fflush(stdout);
}

// Follows a log to the end of its job. Where the stream breaks, because the coordinator or the
// worker is away or the job is started again, it asks again once a second and goes on behind what
// was printed, or with the log of the job's next start.
class Follower {
 public:
  Follower(const GlobalOptions& global, Connection& connection, v1::LogsRequest request)
      : global_(global), connection_(connection), request_(std::move(request)) {}

  absl::Status Run() {
    absl::Status read = connection_.Logs(request_, [this](const std::string& text) { Take(text); });
    for (int failures = 0;;) {
      if (!read.ok() && !IsPassing(read)) return read;
      // Before the last lines are read: what a rank wrote before its job ended is among them.
      const absl::StatusOr<v1::Job> job = connection_.Get(request_.id());
      read = ReadNew();
      if (job.ok() && HasEnded(job->state())) return read;
      failures = job.ok() && read.ok() ? 0 : failures + 1;
      if (failures > kMaxReconnects) return job.ok() ? read : job.status();
      if (failures == 0) read = FollowFromLast();
      std::this_thread::sleep_for(kReconnectDelay);
    }
  }

 private:
  void Take(const std::string& text) {
    if (text.empty()) return;
    Print(global_, text);
    last_ += text;
    if (last_.size() > kRememberedBytes) last_.erase(0, last_.size() - kRememberedBytes);
  }

  // Prints what the log holds now and was not printed before.
  absl::Status ReadNew() {
    request_.set_follow(false);
    request_.set_tail_lines(0);  // all
    std::string all;
    const absl::Status read =
        connection_.Logs(request_, [&all](const std::string& text) { all += text; });
    if (!read.ok()) return read;
    const size_t place = PlaceIn(all);
    if (place == std::string::npos) last_.clear();  // another log, all of which is new
    Take(place == std::string::npos ? all : all.substr(place));
    return read;
  }

  // Skips what was printed, which is the end of the log as it just was.
  absl::Status FollowFromLast() {
    request_.set_follow(true);
    request_.set_tail_lines(kTailLines);
    std::string skipped;
    bool found = last_.empty();
    return connection_.Logs(request_, [&](const std::string& text) {
      if (found) return Take(text);
      skipped += text;
      const size_t place = PlaceIn(skipped);
      if (place == std::string::npos && skipped.size() < kSkippedBytesMax) return;
      found = true;
      Take(place == std::string::npos ? skipped : skipped.substr(place));
    });
  }

  // Behind what was printed last; npos: it is not there.
  size_t PlaceIn(const std::string& text) const {
    if (last_.empty()) return 0;
    const size_t place = text.rfind(last_);
    return place == std::string::npos ? place : place + last_.size();
  }

  // A worker that is away tells nothing of a log that was there before.
  bool IsPassing(const absl::Status& status) const {
    return absl::IsUnavailable(status) || (absl::IsNotFound(status) && !last_.empty());
  }

  const GlobalOptions& global_;
  Connection& connection_;
  v1::LogsRequest request_;
  std::string last_;  // the end of what was printed
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
    status = (*connection)->Logs(request, [&](const std::string& text) { Print(global, text); });
  }
  return status.ok() ? 0 : Fail(global, status);
}

}  // namespace terrace
