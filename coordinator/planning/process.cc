// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/planning/frames.h"

extern char** environ;

namespace terrace {
namespace {

constexpr size_t kReceiveBytes = size_t{1} << 20;
constexpr int kNiceness = 10;
// How long we wait for a killed process to exit: one that waits for a dead file server may never.
constexpr absl::Duration kEndTimeout = absl::Seconds(1);

// With both standard streams at the socket, no blocked signals, and away from a terminal's Ctrl-C.
int Spawn(const std::string& program, std::vector<std::string>& words, int socket, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int error =
      posix_spawn(pid, program.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

// Also of a shortage (descriptors, processes, memory), which passes: no plan is refused for it.
absl::Status NotStarted(int error, std::string_view program) {
  return absl::UnavailableError(
      absl::StrCat("cannot start a planner process, ", Absl(program), ": ", std::strerror(error)));
}

bool Retry(int error) { return error == EINTR || error == EAGAIN || error == EWOULDBLOCK; }

// The first message of `received`, taken out; nothing while it is not whole.
absl::StatusOr<std::optional<v1::PlannerAnswer>> TakeAnswer(std::string* received) {
  const int64_t length = FrameLength(*received);
  if (length < 0) return absl::AbortedError("the planner process does not answer in messages");
  const size_t whole = kFrameLengthBytes + static_cast<size_t>(length);
  received->reserve(whole);
  if (received->size() < whole) return std::nullopt;
  v1::PlannerAnswer answer;
  if (!answer.ParseFromArray(received->data() + kFrameLengthBytes, static_cast<int>(length))) {
    return absl::AbortedError("the planner process gave an answer that cannot be read");
  }
  received->erase(0, whole);
  return answer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlannerProcess>> PlannerProcess::Start(
    const std::string& program, std::vector<std::string> arguments) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return NotStarted(errno, program);
  }
  UniqueFd own(ends[0]);
  const UniqueFd other(ends[1]);
  pid_t pid = 0;
  arguments.insert(arguments.begin(), {"terrace-coordinator", "planner"});
  if (const int error = Spawn(program, arguments, other.get(), &pid); error != 0) {
    return NotStarted(error, program);
  }
  return std::unique_ptr<PlannerProcess>(new PlannerProcess(pid, std::move(own)));
}

PlannerProcess::~PlannerProcess() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  HowItEnded();
}

absl::StatusOr<v1::PlannerAnswer> PlannerProcess::Ask(const v1::PlannerRequest& request,
                                                      const Watch& watch, const Tell& tell) {
  std::string sent, received;
  RETURN_IF_ERROR(AppendFrame(request, &sent));
  std::string_view rest = sent;
  absl::Time watched = absl::Now();
  while (true) {
    pollfd fd = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (!rest.empty()) fd.events |= POLLOUT;
    ::poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(kWatchEvery)));
    if (absl::Now() - watched >= kWatchEvery) {
      RETURN_IF_ERROR(watch(HeldBytes()));
      watched = absl::Now();
    }
    if (fd.revents & POLLOUT) RETURN_IF_ERROR(SendSome(&rest));
    if ((fd.revents & ~POLLOUT) == 0) continue;
    ASSIGN_OR_RETURN(const bool closed, ReceiveSome(&received));
    if (closed) return absl::AbortedError(HowItEnded());
    while (received.size() >= kFrameLengthBytes) {
      ASSIGN_OR_RETURN(std::optional<v1::PlannerAnswer> answer, TakeAnswer(&received));
      if (!answer) break;
      if (!answer->has_progress()) return *std::move(answer);
      if (tell) tell(answer->progress());
    }
  }
}

absl::Status PlannerProcess::SendSome(std::string_view* rest) {
  const ssize_t sent =
      ::send(socket_.get(), rest->data(), rest->size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && Retry(errno)) return absl::OkStatus();
  if (sent < 0) return absl::AbortedError(HowItEnded());
  rest->remove_prefix(static_cast<size_t>(sent));
  return absl::OkStatus();
}

absl::StatusOr<bool> PlannerProcess::ReceiveSome(std::string* bytes) {
  const size_t before = bytes->size();
  bytes->resize(before + kReceiveBytes);
  const ssize_t got = ::recv(socket_.get(), bytes->data() + before, kReceiveBytes, MSG_DONTWAIT);
  bytes->resize(before + static_cast<size_t>(std::max<ssize_t>(0, got)));
  return got == 0 || (got < 0 && !Retry(errno));
}

// Whatever can be read now is its end, or nothing that it was asked for.
bool PlannerProcess::IsIdle() const {
  pollfd fd = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&fd, 1, 0) == 0;
}

int64_t PlannerProcess::HeldBytes() const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  int64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("VmRSS:") && !line.starts_with("VmSwap:")) continue;
    int64_t one = 0;
    std::istringstream(line.substr(line.find(':') + 1)) >> one;
    kib += one;
  }
  return kib << 10;
}

void PlannerProcess::Yield() const {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(pid_), kNiceness);
}

std::string PlannerProcess::HowItEnded() {
  const absl::Time deadline = absl::Now() + kEndTimeout;
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(pid_, &status, WNOHANG)) == 0 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (ended != pid_) return "the planner process closed its end";
  pid_ = 0;
  if (WIFEXITED(status)) {
    return absl::StrCat("the planner process ended by itself with status ", WEXITSTATUS(status));
  }
  const int signal = WTERMSIG(status);
  return absl::StrCat("the planner process was killed by signal ", signal, " (",
                      ::strsignal(signal), ")",
                      signal == SIGKILL ? "; the system does that when its memory runs out" : "");
}

}  // namespace terrace
