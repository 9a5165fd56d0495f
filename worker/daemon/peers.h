// Whether the machines of workers reach each other where their ranks will: each has a listener at
// its data address that says whose it is, and dials others when the coordinator asks for it.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

inline constexpr int64_t kDialPeerMs = 3'000;

// The address that ranks of this machine connect by: `named` is an interface or an address of this
// machine; empty: the one that it has for the coordinator, or else its primary address.
absl::StatusOr<std::string> DataAddress(const std::string& named, const std::string& coordinator);

class PeerListener {
 public:
  // On `host`, any free port. Whoever connects gets `name` and is let go: nobody holds it up.
  static absl::StatusOr<std::unique_ptr<PeerListener>> Start(const std::string& host,
                                                             const std::string& name);
  ~PeerListener();

  const std::string& address() const { return address_; }  // host:port

 private:
  PeerListener(UniqueFd socket, UniqueFd stop, std::string address, std::string name);
  void Run();

  const UniqueFd socket_;
  const UniqueFd stop_;  // an eventfd
  const std::string address_;
  const std::string name_;
  std::thread thread_;
};

// Blocks for up to kDialPeerMs, or until `give_up` is set. UNAVAILABLE with the system's reason, or
// because another answers. `from` is the own data address; empty: any.
absl::Status DialPeer(const std::string& from, const std::string& address, std::string_view name,
                      const std::atomic<bool>& give_up);

}  // namespace terrace
