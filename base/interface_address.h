// Addresses of this machine: which one others reach it by. Numeric, IPv4 before IPv6. They are read
// off interfaces and routing tables; nothing is sent. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // "10.0.0.7"
  bool loopback = false;
};
// Those that are up, one entry for each address; without link-local IPv6 addresses.
std::vector<Interface> Interfaces();

// The address of the interface that the host's default route leaves by: the one that other hosts
// reach. On an isolated network, which has no such route, that of the first interface that is no
// loopback; where there is none, 127.0.0.1.
std::string PrimaryAddress();

// The address that this machine has for `host_port` (host:port), by its routes. Empty when there is
// no way there, or none that leaves this machine.
std::string AddressTowards(const std::string& host_port);

// Of an interface's name or an address that some interface has. INVALID_ARGUMENT with those there
// are.
absl::StatusOr<std::string> AddressOf(std::string_view interface_or_address);

// `host_port` with an address in place of the name of an interface; else as it is.
std::string WithoutInterface(const std::string& host_port);

// The name of the interface with this address. Empty when there is none.
std::string InterfaceOf(const std::string& address);

}  // namespace terrace
