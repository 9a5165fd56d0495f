// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
  Open open{.request = request, .file = {}, .path = "", .offset = 0, .error = ""};
  const absl::Status found = Find(open);
  if (found.ok()) {
    open.offset = TailOffset(open.file.get(), request.tail_lines());
  } else {
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
  ASSIGN_OR_RETURN(open.path, NewestPath(open.request));
  open.file = UniqueFd(::open(open.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!open.file.valid()) return absl::NotFoundError(absl::StrCat("cannot open ", open.path));
  return absl::OkStatus();
}

// Where there is no room to send, the next poll goes on from here.
bool LogReader::Advance(Open& open) {
  // Before the read: what a rank wrote before it ended is read below.
  const bool written = open.file.valid() && open.request.follow() && IsWritten(open);
  v1::WorkerMessage message;
  v1::LogText& text = *message.mutable_log_text();
  text.set_request(open.request.request());
  while (open.file.valid()) {
    std::string& block = *text.mutable_text();
    block.resize(static_cast<size_t>(kLogChunkBytes));
    const ssize_t got = pread(open.file.get(), block.data(), block.size(), open.offset);
    if (got <= 0) break;
    block.resize(static_cast<size_t>(got));
    if (!ports_.send(message)) return true;
    open.offset += got;
  }
  if (written) return true;
  text.clear_text();
  text.set_end(true);
  text.set_error(open.error);
  return !ports_.send(message);
}

void LogReader::Poll() {
  for (auto entry = open_.begin(); entry != open_.end();) {
    entry = Advance(entry->second) ? std::next(entry) : open_.erase(entry);
  }
}

}  // namespace terrace
