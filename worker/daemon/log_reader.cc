// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/daemon/run_directory.h"

namespace terrace {
namespace {

int64_t SizeOf(int file) {
  struct stat info {};
  return fstat(file, &info) == 0 ? info.st_size : 0;
}

// Where the last `lines` lines start, at most kLogTailBytesMax before the end; 0 lines: all that
// may be sent.
int64_t TailOffset(int file, int64_t lines) {
  const int64_t size = SizeOf(file);
  const int64_t first = std::max<int64_t>(0, size - kLogTailBytesMax);
  if (lines <= 0) return first;
  std::vector<char> block(static_cast<size_t>(kLogChunkBytes));
  for (int64_t end = size; end > first;) {
    const int64_t begin = std::max(first, end - kLogChunkBytes);
    const ssize_t got = pread(file, block.data(), static_cast<size_t>(end - begin), begin);
    if (got <= 0) break;
    for (int64_t i = got - 1; i >= 0; --i) {
      // The newline that ends the last line separates nothing.
      if (block[static_cast<size_t>(i)] == '\n' && begin + i + 1 < size && --lines == 0) {
        return begin + i + 1;
      }
    }
    end = begin;
  }
  return first;
}

}  // namespace

LogReader::LogReader(std::string_view state_directory, Ports ports)
    : state_directory_(state_directory), ports_(std::move(ports)) {}

void LogReader::Handle(const v1::ReadLog& request) {
  if (request.stop()) {
    open_.erase(request.request());
    return;
  }
  Open open;
  open.request = request;
  if (const absl::Status found = Find(open); !found.ok()) {
    open.error = std::string(found.message());
  }
  const auto [added, inserted] = open_.insert_or_assign(request.request(), std::move(open));
  if (!Advance(added->second)) open_.erase(added);
}

absl::StatusOr<std::string> LogReader::NewestPath(const v1::ReadLog& request) const {
  const auto find = request.trace() ? FindTrace : FindLog;
  return find(state_directory_, request.job(), request.rank());
}

bool LogReader::IsWritten(const Open& open) const {
  return ports_.is_live(open.request.job(), open.request.rank()) &&
         NewestPath(open.request).value_or("") == open.path;
}

absl::Status LogReader::Find(Open& open) const {
  if (open_.size() >= kLogsReadMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this worker reads ", kLogsReadMax, " logs already"));
  }
  const v1::ReadLog& request = open.request;
  if (request.has_after() && !request.trace()) {
    open.epoch = std::max<int64_t>(1, request.after().epoch()) - 1;
    if (OpenNext(open)) {
      if (open.epoch == request.after().epoch()) open.offset = request.after().offset();
      return absl::OkStatus();
    }
    return absl::NotFoundError(absl::StrCat("there is no log of rank ", request.rank(), " of job ",
                                            request.job(), " since its start ",
                                            request.after().epoch(), " on this worker"));
  }
  ASSIGN_OR_RETURN(open.path, NewestPath(request));
  open.file = UniqueFd(::open(open.path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!open.file.valid()) return absl::NotFoundError(absl::StrCat("cannot open ", open.path));
  for (const auto& [epoch, path] : LogsFrom(state_directory_, request.job(), request.rank(), 0)) {
    if (path == open.path) open.epoch = epoch;
  }
  open.offset = TailOffset(open.file.get(), request.tail_lines());
  return absl::OkStatus();
}

bool LogReader::OpenNext(Open& open) const {
  const auto logs =
      LogsFrom(state_directory_, open.request.job(), open.request.rank(), open.epoch + 1);
  for (const auto& [epoch, path] : logs) {
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file.valid()) continue;
    open.file = std::move(file);
    open.path = path;
    open.epoch = epoch;
    open.offset = 0;
    return true;
  }
  return false;
}

LogReader::Sent LogReader::SendRest(Open& open) {
  v1::WorkerMessage message;
  v1::LogText& text = *message.mutable_log_text();
  text.set_request(open.request.request());
  while (!open.request.has_after() || open.sent < kLogTailBytesMax) {
    std::string& block = *text.mutable_text();
    block.resize(static_cast<size_t>(kLogChunkBytes));
    const ssize_t got = pread(open.file.get(), block.data(), block.size(), open.offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      open.error = absl::StrCat("cannot read ", open.path, " from byte ", open.offset,
                                " on: ", std::strerror(errno));
      return Sent::kUnreadable;
    }
    if (got == 0) return Sent::kAll;
    block.resize(static_cast<size_t>(got));
    if (open.epoch > 0) {
      text.mutable_position()->set_epoch(open.epoch);
      text.mutable_position()->set_offset(open.offset + got);
    }
    if (!ports_.send(message)) return Sent::kNoRoom;
    open.offset += got;
    open.sent += got;
  }
  return Sent::kAll;
}

// Where there is no room to send, the next poll goes on from here.
bool LogReader::Advance(Open& open) {
  const bool positioned = open.request.has_after() && !open.request.trace();
  while (open.file.valid()) {
    // Before the read: what a rank wrote before it ended is read below.
    const bool written = open.request.follow() && IsWritten(open);
    const Sent sent = SendRest(open);
    if (sent == Sent::kNoRoom) return true;
    if (sent == Sent::kUnreadable) break;
    const bool full = positioned && open.sent >= kLogTailBytesMax;
    if (written && !full) return true;
    if (!positioned || full || !OpenNext(open)) break;
  }
  v1::WorkerMessage message;
  v1::LogText& text = *message.mutable_log_text();
  text.set_request(open.request.request());
  text.set_end(true);
  text.set_error(open.error);
  if (open.file.valid() && open.epoch > 0) {
    text.mutable_position()->set_epoch(open.epoch);
    text.mutable_position()->set_offset(open.offset);
  }
  return !ports_.send(message);
}

void LogReader::Poll() {
  for (auto entry = open_.begin(); entry != open_.end();) {
    entry = Advance(entry->second) ? std::next(entry) : open_.erase(entry);
  }
}

}  // namespace terrace
