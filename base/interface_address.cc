// SPDX-License-Identifier: Apache-2.0
#include "base/interface_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "base/tcp.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

// Empty for what is neither IPv4 nor IPv6.
std::string Text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  }
  return text;
}

bool IsLinkLocal(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// "Connecting" a datagram socket only asks the routing table. Empty: there is no way.
std::string RouteTo(const sockaddr* target, socklen_t bytes) {
  const UniqueFd fd(::socket(target->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), target, bytes) != 0) return "";
  sockaddr_storage own = {};
  socklen_t length = sizeof own;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return "";
  return Text(reinterpret_cast<const sockaddr*>(&own));
}

}  // namespace

std::vector<Interface> Interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    std::string address = Text(entry->ifa_addr);
    if (address.empty() || IsLinkLocal(entry->ifa_addr)) continue;
    found.push_back({.name = entry->ifa_name,
                     .address = std::move(address),
                     .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  std::stable_partition(found.begin(), found.end(), [](const Interface& one) {
    return one.address.find(':') == std::string::npos;
  });
  return found;
}

// The target is a documentation address (RFC 5737).
std::string PrimaryAddress() {
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_port = htons(9);
  ::inet_pton(AF_INET, "192.0.2.1", &target.sin_addr);
  const std::string routed = RouteTo(reinterpret_cast<const sockaddr*>(&target), sizeof target);
  if (!routed.empty()) return routed;
  for (const Interface& one : Interfaces()) {
    if (!one.loopback) return one.address;
  }
  return "127.0.0.1";
}

std::string AddressTowards(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string::npos || host_port.starts_with("unix:")) return "";
  std::string host = host_port.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const std::string own = RouteTo(one->ai_addr, one->ai_addrlen);
    if (!own.empty() && !IsLoopback(JoinHostPort(own, 0))) return own;
  }
  return "";
}

absl::StatusOr<std::string> AddressOf(std::string_view interface_or_address) {
  const std::vector<Interface> interfaces = Interfaces();
  for (const Interface& one : interfaces) {
    if (one.name == interface_or_address || one.address == interface_or_address) {
      return one.address;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "got ", Absl(interface_or_address),
      ", must be an interface of this machine that is up and has an address, or such an address: ",
      absl::StrJoin(interfaces, ", ", [](std::string* out, const Interface& one) {
        absl::StrAppend(out, one.name, " (", one.address, ")");
      })));
}

std::string WithoutInterface(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string::npos) return host_port;
  for (const Interface& one : Interfaces()) {
    if (one.name != host_port.substr(0, colon)) continue;
    const bool is_v6 = one.address.find(':') != std::string::npos;
    return absl::StrCat(is_v6 ? absl::StrCat("[", one.address, "]") : one.address,
                        host_port.substr(colon));
  }
  return host_port;
}

std::string InterfaceOf(const std::string& address) {
  for (const Interface& one : Interfaces()) {
    if (one.address == address) return one.name;
  }
  return "";
}

}  // namespace terrace
