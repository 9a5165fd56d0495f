// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/continues.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/strings.h"
#include "proto/report/manifest_text.h"
#include "proto/spec_changes.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kEntriesMax = 100'000;  // of the directory
constexpr size_t kManifestsMax = 8;      // that are looked at; older ones are none to go on from

// By step, the newest first.
std::vector<std::pair<int64_t, std::string>> Checkpoints(const std::string& directory) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  size_t entries = 0;
  for (fs::directory_iterator it(directory, error), end;
       !error && it != end && ++entries <= kEntriesMax; it.increment(error)) {
    const std::string name = it->path().filename().string();
    int64_t step = 0;
    if (name.starts_with(kStepPrefix) && absl::SimpleAtoi(name.substr(kStepPrefix.size()), &step)) {
      found.emplace_back(step, it->path().string());
    }
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

}  // namespace

absl::Status CheckContinues(const v1::JobSpec& spec) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  // The ranks refuse to begin where one is, if they must not resume.
  if (checkpoint.resume() == "always" || checkpoint.resume() == "never") return absl::OkStatus();
  if (!checkpoint.directory().starts_with('/')) return absl::OkStatus();
  size_t seen = 0;
  for (const auto& [step, path] : Checkpoints(checkpoint.directory())) {
    if (++seen > kManifestsMax) break;
    const absl::StatusOr<std::string> text =
        ReadTextFile(absl::StrCat(path, "/manifest.json"), kManifestBytesMax);
    if (!text.ok() || !CheckManifestSeal(*text).ok()) continue;  // passed over
    const std::optional<v1::JobSpec> then = SpecOfManifest(*text);
    if (!then || !then->has_train()) return absl::OkStatus();
    const std::string refusal = WhyNoContinuation(path, SpecChanges(*then, spec), spec);
    if (refusal.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.directory: ", refusal));
  }
  return absl::OkStatus();
}

}  // namespace terrace
