// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/paths/new_file.h"
#include "base/unique_fd.h"
#include "base/utf8.h"
#include "worker/daemon/run_directory.h"
#include "worker/daemon/supervisor.h"

// Where ranks stand, and what is written down of them when their job hangs.
namespace terrace {
namespace {

// What reads the rank's log finds it there, whatever the rank does.
void AppendToLog(const std::string& run_directory, const std::string& line) {
  const UniqueFd log(
      open(LogPath(run_directory).c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC));
  if (!log.valid() || write(log.get(), line.data(), line.size()) < 0)
    log::Warn("cannot write into the log in ", run_directory);
}

}  // namespace

void Supervisor::WatchProgress(Rank& rank, int64_t pid) {
  rank.progress = std::make_unique<ProgressWatch>(&rank.config, ProcessReader(pid),
                                                  &watched_programs_, &clock_);
}

absl::Duration Supervisor::SampleProgress() {
  absl::Duration wait = absl::InfiniteDuration();
  for (auto& [key, rank] : ranks_) {
    if (rank.ended || rank.progress == nullptr) continue;
    wait = std::min(wait, rank.progress->Sample(rank.metrics));
    *rank.report.mutable_place() = rank.progress->place();
  }
  return wait;
}

void Supervisor::Dump(const v1::DumpRanks& dump) const {
  const std::string why = CleanLine(dump.why());
  for (const auto& [key, rank] : ranks_) {
    if (key.job != dump.job() || key.epoch != dump.epoch() || rank.progress == nullptr) continue;
    const std::string& folder = rank.config.run_directory();
    const std::string path = HangPath(folder);
    const absl::Status written =
        ReplaceFile(path, absl::StrCat(why, "\n\n", rank.progress->Page()), 0644);
    if (!written.ok()) log::Warn(written.message());
    log::Warn("job ", key.job, " hangs: ", why, "; where rank ", key.rank, " stands: ", path);
    AppendToLog(folder,
                absl::StrCat("the job hangs: ", why, "; where this rank stands: ", path, "\n"));
  }
}

}  // namespace terrace
