// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace terrace {

// The numeric address of the interface that the host's default route leaves by: the one that other
// hosts reach. The loopback address on a host without a route. Sends nothing. Thread-safe.
std::string PrimaryAddress();

// The name of the interface with this numeric address: "eth0". Empty when there is none.
// Thread-safe.
std::string InterfaceOf(const std::string& address);

}  // namespace terrace
