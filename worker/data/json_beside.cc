// SPDX-License-Identifier: Apache-2.0
#include "worker/data/json_beside.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text/json_text.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFileLimitBytes = 64 << 20;

}  // namespace

absl::StatusOr<nlohmann::json> ReadJsonBeside(const std::string& folder, const char* name,
                                              std::vector<std::string>* remarks) {
  std::error_code ignored;
  const fs::path path = fs::path(folder) / name;
  if (!fs::exists(fs::symlink_status(path, ignored))) return nlohmann::json();
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path.string(), kFileLimitBytes));
  std::vector<std::string> repeated;
  const absl::Status checked = CheckJson(text, &repeated);
  if (!checked.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), " is not a JSON object: ", checked.message()));
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not a JSON object"));
  for (const std::string& key : repeated) {
    remarks->push_back(absl::StrCat(name, ": ", key, " stands twice; the last one counts"));
  }
  return json;
}

}  // namespace terrace
