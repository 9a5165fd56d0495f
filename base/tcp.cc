// SPDX-License-Identifier: Apache-2.0
#include "base/tcp.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr int kPortMax = 65535;

struct HostPort {
  std::string host, port;
};

// "[::1]:80" -> {"::1", "80"}; an empty port when there is none.
HostPort Split(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return {std::string(address), ""};
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {std::string(host), std::string(address.substr(colon + 1))};
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const std::string& address) {
  if (const absl::Status port = CheckHostPort("", address); !port.ok()) return port;
  const HostPort parts = Split(address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(parts.host.empty() ? nullptr : parts.host.c_str(),
                                 parts.port.c_str(), &hints, &found);
  if (failed != 0) return absl::UnavailableError(gai_strerror(failed));
  return AddressList(found, &freeaddrinfo);
}

}  // namespace

absl::Status CheckHostPort(std::string_view option, std::string_view address) {
  int port = 0;
  if (address.starts_with("unix:")) return absl::OkStatus();
  if (absl::SimpleAtoi(Split(address).port, &port) && port >= 0 && port <= kPortMax)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(option), option.empty() ? "got \"" : ": got \"", CleanLine(address),
      "\", must be host:port with a port from 0 to ", kPortMax, "; try 127.0.0.1:9400"));
}

bool IsLoopback(std::string_view address) {
  if (address.starts_with("unix:")) return true;
  const std::string host = Split(address).host;
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& address) {
  absl::StatusOr<AddressList> found = Resolve(address);
  if (!found.ok()) return found.status();
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = found->get(); one != nullptr; one = one->ai_next) {
    UniqueFd fd(socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int yes = 1;
    if (fd.get() >= 0 && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(fd.get(), one->ai_addr, one->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    error = errno;
  }
  return absl::UnavailableError(std::strerror(error));
}

std::string JoinHostPort(std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return absl::StrCat(v6 ? "[" : "", Absl(host), v6 ? "]:" : ":", port);
}

absl::StatusOr<UniqueFd> DialTcp(const std::string& address, const std::string& from) {
  absl::StatusOr<AddressList> found = Resolve(address);
  if (!found.ok()) return found.status();
  const addrinfo* to = found->get();
  UniqueFd fd(socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(std::strerror(errno));
  if (!from.empty()) {
    absl::StatusOr<AddressList> own = Resolve(JoinHostPort(from, 0));
    if (!own.ok()) return own.status();
    if (bind(fd.get(), (*own)->ai_addr, (*own)->ai_addrlen) != 0) {
      return absl::UnavailableError(absl::StrCat("from ", from, ": ", std::strerror(errno)));
    }
  }
  if (connect(fd.get(), to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(absl::StrCat(address, ": ", std::strerror(errno)));
  }
  return fd;
}

int BoundPort(const UniqueFd& fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace terrace
