// SPDX-License-Identifier: Apache-2.0
#include "client/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr auto kStopGrace = std::chrono::seconds(10);
constexpr auto kPollInterval = std::chrono::milliseconds(10);
constexpr int kExecFailed = 127;

std::vector<char*> Argv(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  return argv;
}

// From its construction on the signals that end a process wait; from HandTo on the child gets them
// in the place of this process, until the destructor puts back what was.
class HandedOnSignals {
 public:
  HandedOnSignals() {
    sigemptyset(&set_);
    for (const int signal : kEndingSignals) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &mask_before_);
  }
  ~HandedOnSignals() {
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    for (size_t i = 0; handed_ && i < kEndingSignals.size(); ++i)
      sigaction(kEndingSignals[i], &before_[i], nullptr);
    Unblock();
  }
  void Unblock() const { pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr); }

  void HandTo(pid_t child) {
    child_ = child;
    seen_ = 0;
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
      seen_ = signal;
      // A terminal sends its signal to the child as well.
      if (info->si_code != SI_KERNEL) kill(child_, signal);
    };
    for (size_t i = 0; i < kEndingSignals.size(); ++i) {
      sigaction(kEndingSignals[i], nullptr, &before_[i]);
      const bool ignored = before_[i].sa_handler == SIG_IGN;  // by nohup, for one
      if (!ignored) sigaction(kEndingSignals[i], &action, nullptr);
    }
    handed_ = true;
    Unblock();
  }
  int seen() const { return seen_; }  // 0: none

 private:
  static constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP};
  // A signal handler has no argument of ours.
  static inline std::atomic<pid_t> child_ = 0;
  static inline std::atomic<int> seen_ = 0;

  sigset_t set_, mask_before_;
  std::array<struct sigaction, kEndingSignals.size()> before_ = {};
  bool handed_ = false;
};

int Decode(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

absl::StatusOr<std::string> SiblingProgram(std::string_view name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path path = self.parent_path() / name;
  if (error || !std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat("cannot find ", Absl(name), " beside ", self.string(),
                                            "; install Terrace's programs in one folder"));
  }
  return path.string();
}

absl::Status Exec(const std::string& program, const std::vector<std::string>& arguments) {
  execv(program.c_str(), Argv(program, arguments).data());
  return absl::InternalError(absl::StrCat("cannot start ", program, ": ", std::strerror(errno)));
}

absl::StatusOr<int> RunToEnd(const std::string& program,
                             const std::vector<std::string>& arguments) {
  const std::vector<char*> argv = Argv(program, arguments);
  HandedOnSignals signals;
  const pid_t pid = fork();
  if (pid < 0)
    return absl::InternalError(absl::StrCat("cannot start ", program, ": ", std::strerror(errno)));
  if (pid == 0) {
    signals.Unblock();
    execv(program.c_str(), argv.data());
    _exit(kExecFailed);
  }
  signals.HandTo(pid);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const int code = Decode(status);
  const int signal = signals.seen();
  return code == 0 && signal != 0 ? 128 + signal : code;  // what comes next is not to be begun
}

absl::StatusOr<BackgroundProcess> BackgroundProcess::Start(
    const std::string& program, const std::vector<std::string>& arguments,
    const std::string& log_path) {
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0)
    return absl::PermissionDeniedError(
        absl::StrCat("cannot write ", log_path, ": ", std::strerror(errno)));
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const std::vector<char*> argv = Argv(program, arguments);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(kExecFailed);
  }
  close(log);
  close(null);
  if (pid < 0)
    return absl::InternalError(absl::StrCat("cannot start ", program, ": ", std::strerror(errno)));
  return BackgroundProcess(pid, log_path);
}

BackgroundProcess::BackgroundProcess(BackgroundProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_status_(other.exit_status_),
      log_path_(std::move(other.log_path_)) {}

BackgroundProcess& BackgroundProcess::operator=(BackgroundProcess&& other) noexcept {
  if (this != &other) {
    Stop();
    pid_ = std::exchange(other.pid_, -1);
    exit_status_ = other.exit_status_;
    log_path_ = std::move(other.log_path_);
  }
  return *this;
}

BackgroundProcess::~BackgroundProcess() { Stop(); }

bool BackgroundProcess::Running() {
  if (pid_ < 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  exit_status_ = Decode(status);
  pid_ = -1;
  return false;
}

void BackgroundProcess::RequestStop() {
  if (pid_ > 0) kill(pid_, SIGTERM);
}

void BackgroundProcess::Stop() {
  if (!Running()) return;
  RequestStop();
  const auto deadline = std::chrono::steady_clock::now() + kStopGrace;
  while (Running()) {
    if (std::chrono::steady_clock::now() > deadline) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace terrace
