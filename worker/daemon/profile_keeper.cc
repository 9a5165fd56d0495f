// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/profile_keeper.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr size_t kOutputBytesMax = size_t{4} << 20;

// With its output in `pipe` and no signal blocked, as they are in the daemon.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& command, int pipe) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, pipe, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, words.front(), &files, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return pid;
  return absl::UnavailableError(
      absl::StrCat("cannot start ", command.front(), ": ", std::strerror(error)));
}

bool HasSameRates(v1::HardwareProfile one, v1::HardwareProfile other) {
  one.clear_doubt();
  other.clear_doubt();
  return one.SerializeAsString() == other.SerializeAsString();
}

}  // namespace

ProfileKeeper::ProfileKeeper(Options options, Ports ports, v1::HardwareProfile present)
    : options_(std::move(options)),
      ports_(std::move(ports)),
      present_(std::move(present)),
      pause_(options_.look_again) {}

ProfileKeeper::~ProfileKeeper() { Stop(); }

void ProfileKeeper::Stop() {
  stopped_ = true;
  Kill();
  if (reader_.joinable()) reader_.join();
}

void ProfileKeeper::Doubt(const std::string& why) {
  if (!present_.measured()) return;  // default rates are never said to be right
  log::Warn("the profile of this worker is in doubt: ", why,
            "; it is measured anew when nothing runs here");
  told_ = why;
  to_mark_ = true;
  pause_ = options_.look_again;
}

absl::Duration ProfileKeeper::Advance(bool idle, absl::Time now) {
  if (stopped_) return absl::InfiniteDuration();
  if (!idle) {
    idle_since_ = absl::InfiniteFuture();
    if (work_ == Work::kMeasure) Kill();
  } else if (idle_since_ == absl::InfiniteFuture()) {
    idle_since_ = now;
    next_look_ = now + options_.rest;
  }
  if (work_ != Work::kNone) return absl::InfiniteDuration();
  const std::vector<std::string> probe = {"probe", "--brief", "-o", "json"};
  if (to_mark_) {
    to_mark_ = false;
    std::vector<std::string> mark = probe;
    mark.insert(mark.end(), {"--doubt", told_});
    const absl::Status started = Start(Work::kMark, std::move(mark));
    if (started.ok()) return absl::InfiniteDuration();
    log::Warn("the profile cannot be marked: ", started.message());
  }
  if (!idle || (told_.empty() && present_.doubt().empty())) return absl::InfiniteDuration();
  if (now < next_look_) return next_look_ - now;
  std::vector<std::string> measure = probe;
  const bool waited = now - idle_since_ >= options_.patience;
  if (!told_.empty() && waited) measure.push_back("--refresh");
  const absl::Status started = Start(Work::kMeasure, std::move(measure));
  if (started.ok()) return absl::InfiniteDuration();
  log::Warn("the profile cannot be measured anew: ", started.message());
  LookLater(now);
  return next_look_ - now;
}

void ProfileKeeper::LookLater(absl::Time now) {
  next_look_ = now + std::exchange(pause_, std::min(2 * pause_, options_.look_again_max));
  const absl::Time patience_ends = idle_since_ + options_.patience;
  if (!told_.empty() && now < patience_ends) next_look_ = std::min(next_look_, patience_ends);
}

absl::Status ProfileKeeper::Start(Work work, std::vector<std::string> arguments) {
  if (reader_.joinable()) reader_.join();  // its process has ended
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("no pipe: ", std::strerror(errno)));
  }
  UniqueFd output(ends[0]), input(ends[1]);
  std::vector<std::string> command = {options_.rank_binary};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), options_.of.begin(), options_.of.end());
  ASSIGN_OR_RETURN(const pid_t pid, Spawn(command, input.get()));
  {
    const absl::MutexLock lock(&mutex_);
    pid_ = pid;
  }
  work_ = work;
  killed_ = false;
  reader_ = std::thread(&ProfileKeeper::ReadToEnd, this, std::move(output));
  return absl::OkStatus();
}

void ProfileKeeper::ReadToEnd(UniqueFd output) {
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = ::read(output.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (text.size() < kOutputBytesMax) text.append(buffer.data(), static_cast<size_t>(got));
  }
  pid_t pid = 0;
  {
    const absl::MutexLock lock(&mutex_);
    pid = pid_;
  }
  // Dead, but not gone: until it is waited for nobody else gets its number.
  siginfo_t info;
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  {
    const absl::MutexLock lock(&mutex_);
    pid_ = 0;
  }
  ::waitpid(pid, nullptr, 0);
  ports_.post([this, text = std::move(text)] { Finished(text); });
}

void ProfileKeeper::Kill() {
  killed_ = true;
  const absl::MutexLock lock(&mutex_);
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

void ProfileKeeper::Finished(const std::string& output) {
  const Work work = std::exchange(work_, Work::kNone);
  if (work == Work::kMeasure && !killed_) TakeMeasured(output);
}

void ProfileKeeper::TakeMeasured(const std::string& json) {
  v1::HardwareProfile profile;
  const bool measured =
      google::protobuf::util::JsonStringToMessage(json, &profile).ok() && profile.measured();
  // What the probe cannot know: how much of a device a worker offers.
  if (profile.device_memory_bytes() == 0)
    profile.set_device_memory_bytes(present_.device_memory_bytes());
  if (!measured || HasSameRates(profile, present_)) return LookLater(absl::Now());
  log::Info("the profile was measured anew",
            profile.doubt().empty() ? "" : ", and is in doubt again: ", profile.doubt());
  present_ = std::move(profile);
  if (!to_mark_) told_.clear();
  pause_ = options_.look_again;
  next_look_ = absl::Now() + pause_;
  ports_.changed(present_);
}

}  // namespace terrace
