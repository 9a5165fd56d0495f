// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/job_spec.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/spec/overrides.h"
#include "coordinator/spec/reader.h"

namespace terrace {
namespace {

constexpr size_t kMaxSpecBytes = 1 << 20;

// yaml-cpp throws; this is the edge where its exceptions become a status.
absl::StatusOr<YAML::Node> ParseYaml(std::string_view yaml) {
  RETURN_IF_ERROR(CheckUtf8("the spec", yaml));
  try {
    YAML::Node root = YAML::Load(std::string(yaml));
    if (root.IsMap()) return root;
    return absl::InvalidArgumentError(
        "line 1, column 1: the spec: got no mapping, must be a mapping of keys (name, model, data, "
        "train, ...)");
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("line ", error.mark.line + 1, ", column ",
                                                   error.mark.column + 1,
                                                   ": the spec: is not YAML: ", error.msg));
  }
}

bool SetsDirectory(const v1::ArrayMember& member) {
  return std::any_of(
      member.values().begin(), member.values().end(),
      [](const v1::ArrayMember::Value& value) { return value.key() == "checkpoint.directory"; });
}

}  // namespace

absl::StatusOr<v1::JobSpec> ParseJobSpec(std::string_view yaml, std::string_view base_directory,
                                         const v1::ArrayMember& member) {
  if (yaml.size() > kMaxSpecBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the spec: got ", yaml.size(), " bytes, must be at most ", kMaxSpecBytes));
  }
  absl::StatusOr<YAML::Node> root = ParseYaml(yaml);
  if (!root.ok()) return root.status();
  RETURN_IF_ERROR(ApplyOverrides(member, &*root));
  v1::JobSpec spec;
  SpecReader reader(base_directory);
  try {
    reader.Read(*root, &spec);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("line ", error.mark.line + 1, ", column ",
                                                   error.mark.column + 1,
                                                   ": the spec: ", error.msg));
  }
  if (!reader.problems().empty())
    return absl::InvalidArgumentError(absl::StrJoin(reader.problems(), "\n"));
  if (spec.checkpoint().directory().empty()) {
    spec.mutable_checkpoint()->set_directory(
        (std::filesystem::path(std::string(base_directory)) / "checkpoints" / spec.name())
            .lexically_normal()
            .string());
  }
  if (member.size() > 0 && !SetsDirectory(member)) {
    ASSIGN_OR_RETURN(const std::string folder, FolderOf(member));
    spec.mutable_checkpoint()->set_directory(
        (std::filesystem::path(spec.checkpoint().directory()) / folder).string());
  }
  spec.set_yaml(std::string(yaml));
  return spec;
}

}  // namespace terrace
