// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/interface_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

#include "base/unique_fd.h"

namespace terrace {

// "Connecting" a datagram socket only asks the routing table. The target is a documentation address
// (RFC 5737).
std::string PrimaryAddress() {
  constexpr char kLoopback[] = "127.0.0.1";
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_port = htons(9);
  ::inet_pton(AF_INET, "192.0.2.1", &target.sin_addr);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0)
    return kLoopback;
  sockaddr_in own = {};
  socklen_t length = sizeof own;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return kLoopback;
  char text[INET_ADDRSTRLEN];
  return ::inet_ntop(AF_INET, &own.sin_addr, text, sizeof text) == nullptr ? kLoopback : text;
}

std::string InterfaceOf(const std::string& address) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    const auto* socket_address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    char text[INET_ADDRSTRLEN];
    if (::inet_ntop(AF_INET, &socket_address->sin_addr, text, sizeof text) != nullptr &&
        address == text) {
      return entry->ifa_name;
    }
  }
  return "";
}

}  // namespace terrace
