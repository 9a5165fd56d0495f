// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/watched_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/confine/rank_environment.h"
#include "worker/daemon/run_directory.h"

extern char** environ;

namespace terrace {
namespace {

constexpr int kDialIntervalMs = 5;

// The first of a name counts.
std::vector<std::string> Environment(const RankLaunch& launch) {
  std::vector<std::string> variables = {
      absl::StrCat("OMP_NUM_THREADS=", std::max<uint32_t>(1, launch.config.threads()))};
  // Threads that spin at barriers take the cores from the other ranks here.
  if (launch.config.local_ranks() > 1) variables.push_back("OMP_WAIT_POLICY=passive");
  if (const std::optional<RankUser>& user = launch.privileges.user; user.has_value()) {
    for (const char* name : {"USER=", "LOGNAME="})
      variables.push_back(absl::StrCat(name, user->name));
    variables.push_back(absl::StrCat("HOME=", user->home));
  }
  for (std::string& passed : PassedEnvironment(environ, launch.environment))
    variables.push_back(std::move(passed));
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct ChildFiles {
  int log, null, pid;
};

// Between fork and exec: what failed goes into the rank's log, where its end is explained.
[[noreturn]] void EndChild(int log, const char* what) {
  const char* const reason = strerrordesc_np(errno);
  for (const char* text : {"cannot start: cannot ", what, ": ", reason ? reason : "?", "\n"}) {
    if (write(log, text, std::strlen(text)) < 0) break;
  }
  _exit(127);
}

// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void RunChild(const ChildFiles& files, const RankLaunch& launch, pid_t daemon,
                           char* const* arguments, char* const* environment) {
  setsid();
  if (const char* failed = DropPrivileges(launch.privileges)) EndChild(files.log, failed);
  // Behind the change of the user, which takes it back.
  if (launch.die_with_daemon) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != daemon) _exit(127);  // it died before the call above
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  char digits[24];
  char* first = digits + sizeof digits;
  for (pid_t rest = getpid(); rest > 0; rest /= 10) *--first = static_cast<char>('0' + rest % 10);
  // The child writes it: no moment in which a process runs that no file knows.
  if (write(files.pid, first, static_cast<size_t>(digits + sizeof digits - first)) < 0) _exit(127);
  dup2(files.null, 0);
  dup2(files.log, 1);
  dup2(files.log, 2);
  syscall(SYS_close_range, 3, ~0U, 0);
  execve(arguments[0], arguments, environment);
  EndChild(STDERR_FILENO, "execute terrace-rank");
}

absl::StatusOr<UniqueFd> OpenFor(const std::string& path, int flags) {
  UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WatchedProcess>> WatchedProcess::Start(const RankLaunch& launch,
                                                                      Handlers handlers) {
  const std::string& folder = launch.config.run_directory();
  ASSIGN_OR_RETURN(UniqueFd log, OpenFor(LogPath(folder), O_WRONLY | O_CREAT | O_APPEND));
  ASSIGN_OR_RETURN(UniqueFd null, OpenFor("/dev/null", O_RDONLY));
  ASSIGN_OR_RETURN(UniqueFd pid_file, OpenFor(PidPath(folder), O_WRONLY | O_CREAT | O_TRUNC));
  std::vector<std::string> arguments = {launch.binary, "run", "--config", ConfigPath(folder),
                                        "--daemon"};
  arguments.insert(arguments.end(), launch.arguments.begin(), launch.arguments.end());
  std::vector<std::string> environment = Environment(launch);
  const std::vector<char*> argument_pointers = Pointers(arguments);
  const std::vector<char*> environment_pointers = Pointers(environment);
  const pid_t daemon = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot start a rank process");
  if (pid == 0) {
    RunChild({log.get(), null.get(), pid_file.get()}, launch, daemon, argument_pointers.data(),
             environment_pointers.data());
  }
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) return absl::ErrnoToStatus(errno, "cannot watch a rank process");
  return std::unique_ptr<WatchedProcess>(
      new WatchedProcess(pid, std::move(pidfd), /*is_child=*/true, folder, std::move(handlers)));
}

absl::StatusOr<std::unique_ptr<WatchedProcess>> WatchedProcess::Adopt(
    pid_t pid, const std::string& run_directory, Handlers handlers) {
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) return absl::ErrnoToStatus(errno, "cannot watch a rank process");
  return std::unique_ptr<WatchedProcess>(new WatchedProcess(
      pid, std::move(pidfd), /*is_child=*/false, run_directory, std::move(handlers)));
}

WatchedProcess::WatchedProcess(pid_t pid, UniqueFd pidfd, bool is_child, std::string run_directory,
                               Handlers handlers)
    : pid_(pid),
      pidfd_(std::move(pidfd)),
      is_child_(is_child),
      run_directory_(std::move(run_directory)),
      handlers_(std::move(handlers)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) == 0) {
    stop_pipe_read_.Reset(ends[0]);
    stop_pipe_write_.Reset(ends[1]);
  }
  thread_ = std::thread([this] { Watch(); });
}

WatchedProcess::~WatchedProcess() {
  stopping_ = true;
  stop_pipe_write_.Reset();
  {
    absl::MutexLock lock(&mutex_);
    if (link_ != nullptr) link_->Shutdown();
  }
  thread_.join();
}

absl::Status WatchedProcess::Send(const v1::LinkMessage& message) {
  std::shared_ptr<LinkConnection> link;
  {
    absl::MutexLock lock(&mutex_);
    link = link_;
  }
  if (link == nullptr) return absl::UnavailableError("the rank does not listen");
  return link->Send(message);
}

void WatchedProcess::Kill() {
  kill(-pid_, SIGKILL);  // its session's process group
  syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

void WatchedProcess::Watch() {
  while (true) {
    std::shared_ptr<LinkConnection> link = Dial();
    if (link == nullptr) break;
    {
      absl::MutexLock lock(&mutex_);
      link_ = link;
    }
    handlers_.on_linked();
    ReceiveAll(*link);
    absl::MutexLock lock(&mutex_);
    link_ = nullptr;
  }
  if (!stopping_) handlers_.on_end(Reap());
}

std::shared_ptr<LinkConnection> WatchedProcess::Dial() {
  while (!stopping_) {
    if (auto link = DialLink(SocketPath(run_directory_)); link.ok()) return *std::move(link);
    if (HasEnded(kDialIntervalMs)) return nullptr;
  }
  return nullptr;
}

void WatchedProcess::ReceiveAll(LinkConnection& link) {
  while (!stopping_) {
    const absl::StatusOr<v1::LinkMessage> message = link.Receive();
    if (!message.ok()) {
      if (!absl::IsUnavailable(message.status())) {
        log::Warn("link of ", run_directory_, ": ", message.status().message());
      }
      return;
    }
    handlers_.on_message(*message);
  }
}

bool WatchedProcess::HasEnded(int timeout_ms) {
  pollfd fds[2] = {{.fd = pidfd_.get(), .events = POLLIN, .revents = 0},
                   {.fd = stop_pipe_read_.get(), .events = POLLIN, .revents = 0}};
  return poll(fds, 2, timeout_ms) > 0 && fds[0].revents != 0;
}

std::string WatchedProcess::Reap() {
  if (!is_child_) return "";
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return "";
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const char* name = sigabbrev_np(number);
    return absl::StrCat("killed by signal ", number, name == nullptr ? "" : " (SIG",
                        name == nullptr ? "" : name, name == nullptr ? "" : ")");
  }
  return absl::StrCat("exited with status ", WEXITSTATUS(status));
}

}  // namespace terrace
