// The value of one key: converted by its kind, or a problem.
//
// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "base/text/duration.h"
#include "coordinator/spec/reader.h"
#include "coordinator/spec/values.h"

namespace terrace {

void SpecReader::ReadBetas(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  std::vector<double> betas;
  for (size_t i = 0; value.IsSequence() && i < value.size(); ++i) {
    const auto number = value[i].IsScalar() ? ParseNumber(value[i].Scalar()) : std::nullopt;
    if (!number || *number < 0 || *number >= 1) {
      return Problem(key.path, QuotedEntry(value[i], i), RuleText(key), "[0.9, 0.95]");
    }
    betas.push_back(*number);
  }
  if (betas.size() != 2) {
    const std::string got =
        value.IsSequence() ? absl::StrCat("a list of ", betas.size()) : Quoted(value);
    return Problem(key.path, got, RuleText(key), "[0.9, 0.95]");
  }
  spec->mutable_train()->mutable_optimizer()->set_beta1(betas[0]);
  spec->mutable_train()->mutable_optimizer()->set_beta2(betas[1]);
}

void SpecReader::ReadNodes(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  const std::vector<std::string> parts =
      value.IsScalar() ? std::vector<std::string>(absl::StrSplit(value.Scalar(), ':'))
                       : std::vector<std::string>();
  int64_t low = 0, high = 0;
  const bool ok = !parts.empty() && parts.size() <= 2 && absl::SimpleAtoi(parts.front(), &low) &&
                  absl::SimpleAtoi(parts.back(), &high) && low >= key.low && high <= key.high &&
                  low <= high;
  if (!ok) {
    return Problem(key.path, Quoted(value), RuleText(key), "1:4");
  }
  spec->mutable_resources()->set_nodes_min(low);
  spec->mutable_resources()->set_nodes_max(high);
}

void SpecReader::ReadModelConfig(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  v1::ModelSpec* model = spec->mutable_model();
  if (value.IsMap()) {
    if (const auto path = RepeatedKey(value, std::string(key.path)))
      Problem(*path, "the key twice", "given once");
    model->set_config("(inline)");
    model->set_config_json(ToJson(value).dump(2));
  } else if (value.IsScalar() && !value.Scalar().empty()) {
    // A preset has no slash and no .json; what else it is shows when it is looked up.
    const std::string& text = value.Scalar();
    const bool is_path = absl::StrContains(text, "/") || absl::EndsWith(text, ".json");
    model->set_config(is_path ? Absolute(text) : text);
  } else {
    Problem(key.path, Quoted(value), RuleText(key), "gpt2");
  }
}

void SpecReader::ReadPaths(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  const Field field = FindField(key, spec);
  std::vector<std::string> paths;
  if (value.IsMap()) return Problem(key.path, Quoted(value), RuleText(key));
  if (value.IsScalar()) paths.push_back(value.Scalar());
  for (size_t i = 0; value.IsSequence() && i < value.size(); ++i) {
    if (!value[i].IsScalar() || value[i].Scalar().empty()) {
      return Problem(key.path, QuotedEntry(value[i], i), "a path in each entry");
    }
    paths.push_back(value[i].Scalar());
  }
  for (const std::string& path : paths) {
    if (path.empty()) return Problem(key.path, "nothing", RuleText(key));
    field.message->GetReflection()->AddString(field.message, field.descriptor, Absolute(path));
  }
  if (paths.empty() && key.required) Problem(key.path, Quoted(value), RuleText(key));
}

void SpecReader::ReadWords(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  const Field field = FindField(key, spec);
  const auto add = [&](const YAML::Node& word) {
    const bool good = word.IsScalar() && !word.Scalar().empty() &&
                      static_cast<double>(word.Scalar().size()) <= key.high;
    if (good)
      field.message->GetReflection()->AddString(field.message, field.descriptor, word.Scalar());
    return good;
  };
  if (value.IsScalar() && add(value)) return;
  const bool is_list = value.IsSequence() && value.size() > 0 && value.size() <= kWordsMax;
  if (!is_list) return Problem(key.path, Quoted(value), RuleText(key));
  for (size_t i = 0; i < value.size(); ++i) {
    if (!add(value[i])) return Problem(key.path, QuotedEntry(value[i], i), RuleText(key));
  }
}

namespace {

// `number` is in the key's range, and so in the field's.
void AddInteger(const Field& field, int64_t number) {
  const google::protobuf::Reflection* reflection = field.message->GetReflection();
  if (field.descriptor->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT64) {
    reflection->AddInt64(field.message, field.descriptor, number);
  } else {
    reflection->AddUInt32(field.message, field.descriptor, static_cast<uint32_t>(number));
  }
}

}  // namespace

// All entries, or one problem with the first that is wrong.
void SpecReader::ReadList(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  const Field field = FindField(key, spec);
  const google::protobuf::Reflection* reflection = field.message->GetReflection();
  const bool numbers = key.kind == KeyKind::kIntegers;
  const std::string must = RuleText(key);
  if (!value.IsSequence()) return Problem(key.path, Quoted(value), must);
  for (size_t i = 0; i < value.size(); ++i) {
    const YAML::Node item = value[i];
    if (!item.IsScalar()) return Problem(key.path, QuotedEntry(item, i), must);
    const auto number = numbers ? ParseNumber(item.Scalar()) : std::nullopt;
    if (IsInteger(key, number)) {
      AddInteger(field, static_cast<int64_t>(*number));
    } else if (!numbers && IsChoice(key, item.Scalar())) {
      reflection->AddString(field.message, field.descriptor, item.Scalar());
    } else {
      return Problem(key.path, QuotedEntry(item, i), must, Nearest(item.Scalar(), key.choices));
    }
  }
}

namespace {

// By the tier's name, which is that of its field.
void SetShare(const std::string& tier, double part, v1::TierShares* shares) {
  const auto* field = shares->GetDescriptor()->FindFieldByName(tier);
  shares->GetReflection()->SetDouble(shares, field, part);
}

std::string WordInstead(const SpecKey& key, const std::string& word) {
  const std::string instead = key.instead == nullptr ? "" : key.instead(word);
  return instead.empty() ? std::string(Nearest(word, key.choices)) : instead;
}

}  // namespace

// False, with a problem, when the tier or its part is wrong.
bool SpecReader::ReadShare(const SpecKey& key, const YAML::Node& tier, const YAML::Node& part,
                           v1::TierShares* shares) {
  const std::string name = tier.IsScalar() ? tier.Scalar() : "";
  const std::string path = absl::StrCat(Absl(key.path), ".", name);
  const bool again = places_.contains(path);
  places_[path] = {tier.Mark().line + 1, tier.Mark().column + 1};
  const double number = part.IsScalar() ? ParseNumber(part.Scalar()).value_or(-1) : -1;
  if (!IsChoice(key, name)) {
    const std::string_view near = Nearest(name, key.choices);
    Problem(path, "an unknown tier", "one of " + absl::StrJoin(ChoicesOf(key), ", "), near);
  } else if (again) {
    Problem(path, "the tier twice", "given once");
  } else if (number < 0 || number > 1) {
    Problem(path, Quoted(part), "a part from 0 to 1");
  } else {
    SetShare(name, number, shares);
    return true;
  }
  return false;
}

void SpecReader::ReadShares(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  constexpr double kSumTolerance = 1e-6;
  const Field field = FindField(key, spec);
  auto* shares = static_cast<v1::TierShares*>(
      field.message->GetReflection()->MutableMessage(field.message, field.descriptor));
  if (value.IsScalar() && IsChoice(key, value.Scalar())) {
    return SetShare(value.Scalar(), 1, shares);
  }
  if (!value.IsMap()) {
    return Problem(key.path, Quoted(value), RuleText(key),
                   value.IsScalar() ? Nearest(value.Scalar(), key.choices) : "");
  }
  bool good = true;
  for (const auto& item : value) good &= ReadShare(key, item.first, item.second, shares);
  const double sum = shares->device() + shares->host() + shares->nvme();
  if (good && std::abs(sum - 1) > kSumTolerance) {
    Problem(key.path, absl::StrCat("parts that sum to ", sum), "parts that sum to 1");
  }
}

void SpecReader::ReadKey(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  switch (key.kind) {
    case KeyKind::kBetas:
      return ReadBetas(key, value, spec);
    case KeyKind::kShares:
      return ReadShares(key, value, spec);
    case KeyKind::kPrecision:
      return ReadPrecision(key, value, spec);
    case KeyKind::kGroups:
      return ReadGroups(key, value, spec);
    case KeyKind::kNodes:
      return ReadNodes(key, value, spec);
    case KeyKind::kModelConfig:
      return ReadModelConfig(key, value, spec);
    case KeyKind::kMixture:
      return ReadMixture(key, value, spec);
    case KeyKind::kPaths:
      return ReadPaths(key, value, spec);
    case KeyKind::kWords:
      return ReadWords(key, value, spec);
    case KeyKind::kIntegers:
    case KeyKind::kChoices:
      return ReadList(key, value, spec);
    default:
      break;
  }
  const Field field = FindField(key, spec);
  if (!value.IsScalar()) return Problem(key.path, Quoted(value), RuleText(key));
  const std::string& text = value.Scalar();
  const bool chosen = IsChoice(key, text);
  switch (key.kind) {
    case KeyKind::kString:
      return SetString(field, text);
    case KeyKind::kPath:
      return text.empty() ? Problem(key.path, "nothing", RuleText(key))
                          : SetString(field, Absolute(text));
    case KeyKind::kPathOrWord:
      return text.empty() ? Problem(key.path, "nothing", RuleText(key))
                          : SetString(field, chosen ? text : Absolute(text));
    case KeyKind::kChoice:
      if (chosen) return SetString(field, text);
      return Problem(key.path, Quoted(value), RuleText(key), WordInstead(key, text));
    case KeyKind::kBytes: {
      const auto bytes = ParseBytes(text);
      if (bytes && *bytes >= key.low && *bytes <= key.high) return SetNumber(field, *bytes);
      return Problem(key.path, Quoted(value), RuleText(key),
                     "a number with a unit, such as 512MiB or 80GiB");
    }
    case KeyKind::kSpan: {
      const auto seconds = ParseSpan(text);
      const bool fits = seconds && static_cast<double>(*seconds) >= key.low &&
                        static_cast<double>(*seconds) <= key.high;
      if (fits) return SetNumber(field, static_cast<double>(*seconds));
      return Problem(key.path, Quoted(value), RuleText(key));
    }
    case KeyKind::kBoolean:
      if (text == "true" || text == "false") return SetNumber(field, text == "true" ? 1 : 0);
      return Problem(key.path, Quoted(value), RuleText(key));
    default: {
      const auto number = ParseNumber(text);
      const bool real = key.kind == KeyKind::kReal;
      if (real ? number && *number >= key.low && *number <= key.high : IsInteger(key, number)) {
        return SetNumber(field, *number);
      }
      return Problem(key.path, Quoted(value), RuleText(key));
    }
  }
}

}  // namespace terrace
