// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/peers.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/interface_address.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tcp.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kNameBytesMax = 512;
constexpr int kPollMs = 100;

absl::Status Unreachable(const std::string& address, std::string_view why) {
  return absl::UnavailableError(absl::StrCat(address, ": ", Absl(why)));
}

struct Patience {
  absl::Time deadline;
  const std::atomic<bool>& give_up;
};

// Until the socket can be read from or written to.
bool Await(const UniqueFd& fd, short events, const Patience& patience) {
  pollfd one = {.fd = fd.get(), .events = events, .revents = 0};
  int ready = 0;
  while (ready != 1 && absl::Now() < patience.deadline && !patience.give_up.load()) {
    ready = ::poll(&one, 1, kPollMs);
  }
  return ready == 1;
}

// The end says that it is all.
absl::StatusOr<std::string> ReadName(const UniqueFd& fd, const std::string& address,
                                     const Patience& patience) {
  std::string name;
  char buffer[kNameBytesMax];
  while (name.size() < kNameBytesMax) {
    if (!Await(fd, POLLIN, patience)) return Unreachable(address, "connected, but says nothing");
    const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got == 0) break;
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
      return Unreachable(address, std::strerror(errno));
    }
    if (got > 0) name.append(buffer, static_cast<size_t>(got));
  }
  return name;
}

}  // namespace

absl::StatusOr<std::string> DataAddress(const std::string& named, const std::string& coordinator) {
  if (!named.empty()) {
    const absl::StatusOr<std::string> address = AddressOf(named);
    if (address.ok()) return address;
    return absl::InvalidArgumentError(absl::StrCat("--data-address: ", address.status().message()));
  }
  std::string towards = AddressTowards(coordinator);
  return towards.empty() ? PrimaryAddress() : towards;
}

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::Start(const std::string& host,
                                                                  const std::string& name) {
  absl::StatusOr<UniqueFd> socket = ListenTcp(JoinHostPort(host, 0));
  if (!socket.ok()) {
    return absl::UnavailableError(
        absl::StrCat("--data-address: cannot listen on ", host, ": ", socket.status().message()));
  }
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  std::string address = JoinHostPort(host, BoundPort(*socket));
  return std::unique_ptr<PeerListener>(
      new PeerListener(*std::move(socket), std::move(stop), std::move(address), name));
}

PeerListener::PeerListener(UniqueFd socket, UniqueFd stop, std::string address, std::string name)
    : socket_(std::move(socket)),
      stop_(std::move(stop)),
      address_(std::move(address)),
      name_(std::move(name)) {
  thread_ = std::thread([this] { Run(); });
}

PeerListener::~PeerListener() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void PeerListener::Run() {
  pollfd fds[2] = {{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                   {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  while (true) {
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    const UniqueFd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer.valid()) {
      // No descriptors, for example: whoever waits there goes on waiting.
      if (errno != EAGAIN && errno != ECONNABORTED) absl::SleepFor(absl::Milliseconds(100));
      continue;
    }
    // It fits into any socket's buffer.
    ::send(peer.get(), name_.data(), std::min(name_.size(), kNameBytesMax), MSG_NOSIGNAL);
  }
}

absl::Status DialPeer(const std::string& from, const std::string& address, std::string_view name,
                      const std::atomic<bool>& give_up) {
  const Patience patience = {absl::Now() + absl::Milliseconds(kDialPeerMs), give_up};
  ASSIGN_OR_RETURN(const UniqueFd fd, DialTcp(address, from));
  if (!Await(fd, POLLOUT, patience)) return Unreachable(address, "no answer within 3 s");
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return Unreachable(address, std::strerror(error));
  ASSIGN_OR_RETURN(const std::string answered, ReadName(fd, address, patience));
  if (answered == name) return absl::OkStatus();
  return Unreachable(address,
                     absl::StrCat("another one answers, ", CleanLine(answered, kNameBytesMax)));
}

}  // namespace terrace
