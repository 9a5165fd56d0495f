// A rendezvous in a folder that all ranks see: one file a key. For ranks that run without a daemon,
// and for tests.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "worker/comm/communicator.h"

namespace terrace {

// `folder` is created. It must be empty at the start of each epoch: keys of an earlier one would be
// found. Thread-safe.
class FileRendezvous final : public RendezvousStore {
 public:
  explicit FileRendezvous(std::string folder);
  absl::Status Set(const std::string& key, const std::vector<char>& value) override;
  absl::StatusOr<std::vector<std::vector<char>>> Wait(const std::vector<std::string>& keys,
                                                      int64_t timeout_ms) override;

 private:
  std::string PathOf(const std::string& key) const;
  const std::string folder_;
};

}  // namespace terrace
