// SPDX-License-Identifier: Apache-2.0
#include "worker/data/chat/template_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"
#include "worker/data/chat/render_chats.h"

namespace terrace {
namespace {

constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";
constexpr int kAnswerSecondsMax = 300;  // processor time is what is limited; others may use it
constexpr size_t kAnswerBytesMax = 8 * kRenderedBytesMax;  // with all characters escaped, and spans
constexpr rlim_t kFilesMax = 64;
constexpr long kCloseRange = 436;

// Exit codes of the child before it is python3.
constexpr int kCannotConfine = 125, kNotFound = 127;

void Limit(int resource, rlim_t most) {
  rlimit limit = {};
  if (::getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max = std::min(most, limit.rlim_max);
  ::setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

// Not a script that looks for an interpreter, as version managers put into PATH: it would need
// files and variables that a confined process lacks.
bool IsBinary(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4> magic = {};
  return fd.valid() && ::read(fd.get(), magic.data(), magic.size()) == 4 &&
         std::string_view(magic.data(), magic.size()) ==
             "\x7f"
             "ELF";
}

struct Program {
  std::string path;
  std::vector<std::string> arguments, environment;
};

Program PythonProgram() {
  Program program;
  program.path = FindPython();
  // Isolated: of the environment and the current folder it takes nothing.
  program.arguments = {program.path, "-I", "-B", "-c", std::string(RenderChatsScript())};
  program.environment = {absl::StrCat("PATH=", kDefaultPath), "LC_ALL=C.UTF-8", "PYTHONHASHSEED=0"};
  if (const char* const zone = std::getenv("TZ"))
    program.environment.push_back(absl::StrCat("TZ=", zone));
  return program;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What a process that blocks and ignores signals hands on through exec.
void ResetSignals() {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGPROF, SIGHUP})
    ::signal(signal, SIG_DFL);
}

// Until there is a first line; the other end may close without one.
void WaitForWork(int socket) {
  char first = 0;
  ssize_t got = 0;
  do {
    got = ::recv(socket, &first, 1, MSG_PEEK);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) _exit(0);
}

[[noreturn]] void RunChild(int socket, pid_t parent, Program& program,
                           const TemplateProcess::Confine& confine) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) _exit(0);
  ResetSignals();
  if (::dup2(socket, STDIN_FILENO) < 0 || ::dup2(socket, STDOUT_FILENO) < 0) _exit(kCannotConfine);
  if (::syscall(kCloseRange, 3U, ~0U, 0) != 0) {  // before Linux 5.9
    for (int fd = 3; fd < 4096; ++fd) ::close(fd);
  }
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_NOFILE, kFilesMax);
  std::vector<char*> arguments = Pointers(program.arguments);
  std::vector<char*> environment = Pointers(program.environment);
  if (confine && !program.path.empty() && !confine(program.path).ok()) _exit(kCannotConfine);
  WaitForWork(STDIN_FILENO);
  if (program.path.empty()) _exit(kNotFound);
  Limit(RLIMIT_AS, kTemplateMemoryMax);
  ::execve(program.path.c_str(), arguments.data(), environment.data());
  _exit(errno == EPERM || errno == EACCES ? kCannotConfine : kNotFound);
}

}  // namespace

std::string FindPython() {
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder :
       absl::StrSplit(path == nullptr ? kDefaultPath : path, ':', absl::SkipEmpty())) {
    const std::string file = absl::StrCat(folder, "/python3");
    if (folder[0] == '/' && ::access(file.c_str(), X_OK) == 0 && IsBinary(file)) return file;
  }
  return "";
}

absl::StatusOr<std::unique_ptr<TemplateProcess>> TemplateProcess::Start(const Confine& confine) {
  std::array<int, 2> ends = {};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return absl::ErrnoToStatus(errno, "cannot make a socket for the chat template");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  Program program = PythonProgram();  // before fork: afterwards nothing should be allocated
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "cannot start a process for the chat template");
  if (child == 0) RunChild(theirs.get(), parent, program, confine);
  return std::unique_ptr<TemplateProcess>(new TemplateProcess(child, std::move(ours)));
}

TemplateProcess::~TemplateProcess() { Close(); }

void TemplateProcess::Close() {
  if (child_ <= 0) return;
  socket_.Reset();
  ::kill(child_, SIGKILL);  // a confined rank may not; then the end of its input ends it
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
  child_ = 0;
}

absl::Status TemplateProcess::WhyItEnded() {
  if (child_ <= 0) return absl::FailedPreconditionError("the process for chat templates has ended");
  socket_.Reset();
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  child_ = 0;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF) {
    return absl::InvalidArgumentError(
        absl::StrCat("the chat template takes more than ", kTemplateCpuSecondsMax,
                     " s of processor time; it may loop without end: mend it, or split the "
                     "conversation"));
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  if (code == kNotFound) {
    return absl::FailedPreconditionError(
        "chat templates need python3 with jinja2, and there is no python3 in PATH; install them "
        "(Debian: python3-jinja2)");
  }
  if (code == kCannotConfine) {
    return absl::FailedPreconditionError(
        "python3, which renders chat templates, cannot be started confined; install it below /usr "
        "(Debian: python3-jinja2), or start the worker with --no-rank-sandbox");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("python3, which renders the chat template, ended ",
                   WIFSIGNALED(status) ? absl::StrCat("by signal ", WTERMSIG(status))
                                       : absl::StrCat("with code ", code),
                   "; its last words are in the log of this process"));
}

absl::StatusOr<std::string> TemplateProcess::Exchange(std::string_view line) {
  using Clock = std::chrono::steady_clock;
  if (child_ <= 0) return WhyItEnded();
  const auto deadline = Clock::now() + std::chrono::seconds(kAnswerSecondsMax);
  const std::string out = absl::StrCat(Absl(line), "\n");
  size_t sent = 0;
  std::array<char, 1 << 16> block;
  for (;;) {
    if (const size_t end = read_.find('\n'); sent == out.size() && end != std::string::npos) {
      std::string answer = read_.substr(0, end);
      read_.erase(0, end + 1);
      return answer;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || read_.size() > kAnswerBytesMax) {
      Close();
      return absl::InvalidArgumentError("the chat template gives no answer that ends");
    }
    pollfd waits = {socket_.get(),
                    static_cast<short>(sent < out.size() ? POLLIN | POLLOUT : POLLIN), 0};
    const int ready = ::poll(&waits, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
    if (ready <= 0) continue;
    if ((waits.revents & POLLIN) != 0 || (waits.revents & POLLOUT) == 0) {
      const ssize_t got = ::recv(socket_.get(), block.data(), block.size(), 0);
      if (got == 0 || (got < 0 && errno != EINTR)) return WhyItEnded();
      if (got > 0) read_.append(block.data(), static_cast<size_t>(got));
    } else {
      const ssize_t wrote =
          ::send(socket_.get(), out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (wrote < 0 && errno != EINTR && errno != EAGAIN) return WhyItEnded();
      if (wrote > 0) sent += static_cast<size_t>(wrote);
    }
  }
}

}  // namespace terrace
