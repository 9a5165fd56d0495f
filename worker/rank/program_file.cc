// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/program_file.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "google/protobuf/util/json_util.h"
#include "proto/check/program_check.h"
#include "proto/program/program_hash.h"

namespace terrace {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

}  // namespace

absl::StatusOr<v1::RankConfig> ReadRankConfig(std::string_view path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxFileBytes));
  v1::RankConfig config;
  if (absl::EndsWith(Absl(path), ".json")) {
    const auto status = google::protobuf::util::JsonStringToMessage(text, &config);
    if (status.ok()) return config;
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(path), ": ", std::string(status.message())));
  }
  if (config.ParseFromString(text)) return config;
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(path), ": not a RankConfig (name it .json when it is JSON)"));
}

absl::StatusOr<std::unique_ptr<v1::Program>> ReadProgram(std::string_view path,
                                                         std::string_view sha256) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadTextFile(path, kMaxFileBytes));
  if (const std::string actual = Sha256Hex(bytes); !sha256.empty() && actual != sha256) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(path), ": SHA-256 is ", actual, ", must be ", Absl(sha256)));
  }
  auto program = std::make_unique<v1::Program>();
  if (!program->ParseFromString(bytes))
    return absl::InvalidArgumentError(absl::StrCat(Absl(path), ": not a Program"));
  const absl::Status checked = CheckProgram(*program);
  if (checked.ok()) return program;
  return absl::Status(checked.code(), absl::StrCat(Absl(path), ": ", checked.message()));
}

}  // namespace terrace
