// Folders that appear whole or not at all, and those that are there.
//
// A PendingFolder is filled under a temporary name, then renamed. Whoever fills the folder of a
// step holds the lock of its directory (".write.lock"), so a temporary step folder that is there
// while the lock is free was left by a killed writer.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

// "step-00000200"
std::string StepFolderName(int64_t step);
// The step of such a name; -1 for any other.
int64_t StepOfFolderName(std::string_view name);

class PendingFolder {
 public:
  // Creates `parent` when it is missing, and the temporary folder. For a step: takes the lock first
  // and removes leftovers. UNAVAILABLE when another process keeps writing there for half a minute.
  // `attempt` tells this one from others of the same name: what a rank of a dead job still writes
  // does not land in it.
  static absl::StatusOr<PendingFolder> Create(std::string_view parent, std::string_view name,
                                              int64_t attempt);
  // Where that is, for the other ranks that fill it.
  static std::string TemporaryPath(std::string_view parent, std::string_view name, int64_t attempt);
  PendingFolder(PendingFolder&& other) = default;
  PendingFolder& operator=(PendingFolder&& other) = default;
  // Removes the temporary folder unless it was committed.
  ~PendingFolder();

  const std::string& path() const { return temporary_; }
  // fsyncs the folder and renames it; a folder of the final name is replaced.
  absl::Status Commit();
  // Removes all but the newest `keep` folders of steps that `is_complete` (0: none are removed) and
  // that of step `spared`. After Commit.
  absl::Status Prune(uint32_t keep, int64_t spared,
                     bool (*is_complete)(const std::string& path)) const;

 private:
  PendingFolder() = default;
  absl::Status Replace(const std::string& final_path);
  std::string parent_;
  std::string name_;
  std::string temporary_;  // empty after Commit
  UniqueFd lock_;
};

// Paths of the step folders in `directory`, oldest step first. NOT_FOUND when it does not exist.
absl::StatusOr<std::vector<std::string>> ListStepFolders(std::string_view directory);

}  // namespace terrace
