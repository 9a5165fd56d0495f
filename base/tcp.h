// Addresses that servers listen on. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

// True of a host:port (or unix:path) that only this machine reaches: 127.0.0.0/8, [::1] and
// localhost. A name such as 127.example.com is another machine's.
bool IsLoopback(std::string_view address);

// INVALID_ARGUMENT where `address` is no host:port (or unix:path) with a number for the port: gRPC
// takes 70000 for 4464, and what is missing for 443. The message names `option`, unless that is "".
absl::Status CheckHostPort(std::string_view option, std::string_view address);

// "10.0.0.7:80", "[fe80::1]:80".
std::string JoinHostPort(std::string_view host, int port);

// A socket that connects to host:port, not blocking: it can be written to when that has ended.
// `from` is the numeric address of this machine that it is to have; empty: any. UNAVAILABLE with
// the system's reason.
absl::StatusOr<UniqueFd> DialTcp(const std::string& address, const std::string& from);

// A listening socket, not blocking, on host:port; an empty host is every address of this machine,
// port 0 any that is free. INVALID_ARGUMENT when `address` is none; UNAVAILABLE with the system's
// reason when it cannot be had.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& address);

// The port that a socket is bound to.
int BoundPort(const UniqueFd& fd);

}  // namespace terrace
