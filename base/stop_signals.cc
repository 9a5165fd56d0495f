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

namespace terrace {

absl::StatusOr<StopSignals> StopSignals::Block(bool watch_parent) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  StopSignals stop;
  stop.signals_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC));
  if (!stop.signals_.valid()) return absl::ErrnoToStatus(errno, "signalfd");
  if (!watch_parent) return stop;
  stop.parent_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
  if (!stop.parent_.valid()) return absl::ErrnoToStatus(errno, "cannot watch the parent process");
  return stop;
}

std::string StopSignals::Wait() {
  pollfd fds[2] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                   {.fd = parent_.get(), .events = POLLIN, .revents = 0}};  // -1 is ignored
  while (poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  if (fds[0].revents == 0) return "the parent process has ended";
  signalfd_siginfo info{};
  if (read(signals_.get(), &info, sizeof info) != sizeof info) return "a signal";
  return absl::StrCat("signal ", info.ssi_signo);
}

}  // namespace terrace
