// SPDX-License-Identifier: Apache-2.0
#include "base/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr int kLookEveryMs = 5'000;
constexpr int kNone = -1;  // no signal came in time

}  // namespace

absl::StatusOr<StopSignals> StopSignals::Block(bool watch_parent) {
  StopSignals stop;
  RETURN_IF_ERROR(stop.Take({SIGTERM, SIGINT}));
  if (!watch_parent) return stop;
  stop.parent_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
  if (!stop.parent_.valid()) return absl::ErrnoToStatus(errno, "cannot watch the parent process");
  return stop;
}

absl::Status StopSignals::AlsoReload() { return Take({SIGTERM, SIGINT, SIGHUP}); }

absl::Status StopSignals::Take(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC));
  return signals_.valid() ? absl::OkStatus() : absl::ErrnoToStatus(errno, "signalfd");
}

std::string StopSignals::Wait(const std::function<void()>& reload,
                              const std::function<bool()>& is_due) {
  while (true) {
    const int signal = WaitForOne(is_due ? kLookEveryMs : -1);
    if (signal == kNone) {
      if (is_due()) reload();
      continue;
    }
    if (signal == 0) return "the parent process has ended";
    if (signal != SIGHUP) return absl::StrCat("signal ", signal);
    if (reload) reload();
  }
}

int StopSignals::WaitForOne(int timeout_ms) {
  pollfd fds[2] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                   {.fd = parent_.get(), .events = POLLIN, .revents = 0}};  // -1 is ignored
  int ready = 0;
  while ((ready = poll(fds, 2, timeout_ms)) < 0 && errno == EINTR) {
  }
  if (ready == 0) return kNone;
  if (fds[0].revents == 0) return 0;
  signalfd_siginfo info{};
  if (read(signals_.get(), &info, sizeof info) != sizeof info) return SIGTERM;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace terrace
