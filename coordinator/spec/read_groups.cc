// train.optimizer.groups: patterns of tensors' names, and how what they match is updated, or that
// it is not trained.
//
// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "coordinator/spec/reader.h"
#include "coordinator/spec/values.h"

namespace terrace {
namespace {

constexpr size_t kGroupsMax = 256;
constexpr size_t kPatternBytesMax = 256;
constexpr double kScaleMax = 1000, kDecayMax = 10;
constexpr char kKeysText[] = "lr_scale, weight_decay, rule or frozen";

// NaN, which is in no range, when it is none.
double NumberOf(const YAML::Node& node) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  return node.IsScalar() ? ParseNumber(node.Scalar()).value_or(kNone) : kNone;
}

}  // namespace

void SpecReader::ReadGroup(const std::string& path, const YAML::Node& value,
                           v1::ParameterGroup* group) {
  group->set_lr_scale(1);
  if (!value.IsMap() || value.size() == 0)
    return Problem(path, Quoted(value), absl::StrCat("a mapping of ", kKeysText),
                   "{lr_scale: 0.1}");
  for (const auto& item : value) {
    const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
    const std::string key = absl::StrCat(path, ".", name);
    const bool again = places_.contains(key);
    places_[key] = {item.first.Mark().line + 1, item.first.Mark().column + 1};
    const double number = NumberOf(item.second);
    if (again) {
      Problem(key, "the key twice", "given once");
    } else if (name == "lr_scale") {
      if (!(number > 0 && number <= kScaleMax))
        Problem(key, Quoted(item.second), absl::StrCat("a number above 0, at most ", kScaleMax));
      group->set_lr_scale(number);
    } else if (name == "weight_decay") {
      if (!(number >= 0 && number <= kDecayMax))
        Problem(key, Quoted(item.second), absl::StrCat("a number from 0 to ", kDecayMax));
      group->set_weight_decay(number);
    } else if (name == "rule") {
      const std::string word = item.second.IsScalar() ? item.second.Scalar() : "";
      if (word != "adamw" && word != "muon") Problem(key, Quoted(item.second), "adamw or muon");
      group->set_rule(word);
    } else if (name == "frozen") {
      const std::string word = item.second.IsScalar() ? item.second.Scalar() : "";
      if (word != "true" && word != "false") Problem(key, Quoted(item.second), "true or false");
      group->set_frozen(word == "true");
    } else {
      Problem(key, "an unknown key", kKeysText,
              Nearest(name, {"lr_scale", "weight_decay", "rule", "frozen"}));
    }
  }
  if (!group->frozen() || value.size() == 1) return;
  Problem(path, "frozen beside how it is trained",
          "one or the other: what is frozen is not trained", "{frozen: true}");
}

void SpecReader::ReadGroups(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  if (!value.IsMap()) {
    return Problem(key.path, Quoted(value), RuleText(key),
                   "{\"*.bias\": {lr_scale: 2, weight_decay: 0}}");
  }
  if (value.size() > kGroupsMax) {
    return Problem(key.path, absl::StrCat(value.size(), " patterns"),
                   absl::StrCat("at most ", kGroupsMax), "patterns that match more");
  }
  for (const auto& item : value) {
    const std::string pattern = item.first.IsScalar() ? item.first.Scalar() : "";
    const std::string path = absl::StrCat(Absl(key.path), ".", pattern);
    const bool again = places_.contains(path);
    places_[path] = {item.first.Mark().line + 1, item.first.Mark().column + 1};
    if (pattern.empty() || pattern.size() > kPatternBytesMax) {
      Problem(path, Quoted(item.first),
              absl::StrCat("a pattern of 1 to ", kPatternBytesMax, " bytes"), "*.bias");
    } else if (again) {
      Problem(path, "the pattern twice", "given once");
    } else {
      v1::ParameterGroup* group = spec->mutable_train()->mutable_optimizer()->add_groups();
      group->set_match(pattern);
      ReadGroup(path, item.second, group);
    }
  }
}

}  // namespace terrace
