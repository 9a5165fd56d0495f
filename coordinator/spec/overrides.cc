// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/overrides.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kQuotedBytesMax = 200;  // of what the user wrote, in a message

absl::Status Wrong(const v1::ArrayMember::Value& value, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(CleanLine(value.key(), kQuotedBytesMax), ": got ",
                                                 CleanLine(value.value(), kQuotedBytesMax), ", ",
                                                 Absl(why)));
}

absl::StatusOr<YAML::Node> Parse(const v1::ArrayMember::Value& value) {
  try {
    return YAML::Load(value.value());
  } catch (const YAML::Exception& error) {
    return Wrong(value, absl::StrCat("which is not YAML: ", error.msg));
  }
}

// "layout: auto" means a section without keys.
bool MayBecomeSection(const YAML::Node& node, const std::string& path) {
  return !node.IsDefined() || node.IsNull() || node.IsMap() ||
         (path == "layout" && node.IsScalar() && node.Scalar() == "auto");
}

absl::Status Apply(const v1::ArrayMember::Value& value, YAML::Node* root) {
  const std::vector<std::string> parts = absl::StrSplit(value.key(), '.');
  const bool is_path = std::none_of(parts.begin(), parts.end(),
                                    [](const std::string& part) { return part.empty(); });
  if (!is_path)
    return Wrong(value, "must be the path of a key of the spec, such as train.optimizer.lr");
  ASSIGN_OR_RETURN(const YAML::Node written, Parse(value));
  YAML::Node section;
  section.reset(*root);
  std::string path;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    absl::StrAppend(&path, path.empty() ? "" : ".", parts[i]);
    YAML::Node child = section[parts[i]];
    if (!MayBecomeSection(child, path))
      return Wrong(value, absl::StrCat("but the spec gives ", path,
                                       " a value; write it there as a mapping"));
    if (!child.IsDefined() || !child.IsMap()) child = YAML::Node(YAML::NodeType::Map);
    section.reset(child);
  }
  section[parts.back()] = written;
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyOverrides(const v1::ArrayMember& member, YAML::Node* root) {
  for (const v1::ArrayMember::Value& value : member.values()) RETURN_IF_ERROR(Apply(value, root));
  return absl::OkStatus();
}

absl::StatusOr<std::string> FolderOf(const v1::ArrayMember& member) {
  constexpr std::string_view kPlain = "._=+-[]";
  constexpr size_t kNameBytesMax = 250;  // file systems take 255
  std::string name;
  for (const v1::ArrayMember::Value& value : member.values()) {
    if (!name.empty()) name += ',';
    for (const char c : absl::StrCat(value.key(), "=", value.value())) {
      if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
          Absl(kPlain).find(c) != absl::string_view::npos) {
        name += c;
      } else {
        absl::StrAppend(&name, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
      }
    }
  }
  if (name.size() <= kNameBytesMax) return name;
  return absl::InvalidArgumentError(
      absl::StrCat("checkpoint.directory: the values of this job are too long for the name of a "
                   "folder (",
                   name.size(), " bytes, at most ", kNameBytesMax,
                   "); make checkpoint.directory one of the keys"));
}

}  // namespace terrace
