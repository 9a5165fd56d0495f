// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/draft.h"

#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr std::string_view kSections[] = {"name",      "model",      "data",
                                          "train",     "formats",    "layout",
                                          "resources", "checkpoint", "max_restarts"};

constexpr size_t kSettingBytesMax = 200, kValueBytesMax = 2000;

std::vector<std::string> Split(std::string_view key) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(key)};
  for (std::string part; std::getline(stream, part, '.');) parts.push_back(part);
  return parts;
}

// YAML nodes are handles: assigning to one would change what it stands for.
YAML::Node Find(const YAML::Node& root, std::string_view key) {
  YAML::Node at = YAML::Clone(root);
  for (const std::string& part : Split(key)) {
    if (!at.IsMap() || !at[part]) return YAML::Node(YAML::NodeType::Undefined);
    at.reset(at[part]);
  }
  return at;
}

}  // namespace

std::string_view FateName(Fate fate) {
  switch (fate) {
    case Fate::kMapped:
      return "mapped";
    case Fate::kAutomatic:
      return "automatic";
    case Fate::kAbsent:
      return "absent";
    case Fate::kUnknown:
      return "unknown";
  }
  return "";
}

void SpecDraft::Put(std::string_view key, const YAML::Node& value) {
  YAML::Node at;
  at.reset(root_);
  const std::vector<std::string> parts = Split(key);
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (!at[parts[i]]) at[parts[i]] = YAML::Node(YAML::NodeType::Map);
    at.reset(at[parts[i]]);
  }
  at[parts.back()] = value;
}

void SpecDraft::Set(std::string_view key, const std::string& yaml) { Put(key, YAML::Load(yaml)); }

void SpecDraft::SetText(std::string_view key, const std::string& text) {
  Put(key, YAML::Node(text));
}

void SpecDraft::SetTexts(std::string_view key, const std::vector<std::string>& texts) {
  YAML::Node list(YAML::NodeType::Sequence);
  for (const std::string& text : texts) list.push_back(text);
  list.SetStyle(YAML::EmitterStyle::Flow);
  Put(key, list);
}

void SpecDraft::SetSources(std::string_view key, const std::vector<WeightedPath>& sources) {
  YAML::Node list(YAML::NodeType::Sequence);
  for (const WeightedPath& source : sources) {
    YAML::Node entry(YAML::NodeType::Map);
    entry["path"] = source.path;
    entry["weight"] = absl::StrCat(source.weight);
    entry.SetStyle(YAML::EmitterStyle::Flow);
    list.push_back(entry);
  }
  Put(key, list);
}

void SpecDraft::Drop(std::string_view key) {
  if (!Has(key)) return;
  YAML::Node at;
  at.reset(root_);
  const std::vector<std::string> parts = Split(key);
  for (size_t i = 0; i + 1 < parts.size(); ++i) at.reset(at[parts[i]]);
  at.remove(parts.back());
}

bool SpecDraft::Has(std::string_view key) const { return Find(root_, key).IsDefined(); }

std::string SpecDraft::Get(std::string_view key) const {
  const YAML::Node node = Find(root_, key);
  return node.IsDefined() ? YAML::Dump(node) : "";
}

void SpecDraft::Add(ImportedSetting setting) {
  setting.setting = CleanLine(setting.setting, kSettingBytesMax);
  setting.value = CleanLine(setting.value, kValueBytesMax);
  setting.target = CleanLine(setting.target, kValueBytesMax);
  setting.note = CleanLine(setting.note, kValueBytesMax);
  settings_.push_back(std::move(setting));
}

void SpecDraft::Mapped(std::string setting, std::string value, std::string_view key,
                       const std::string& yaml, std::string note) {
  Set(key, yaml);
  Add({.setting = std::move(setting),
       .value = std::move(value),
       .fate = Fate::kMapped,
       .target = absl::StrCat(Absl(key), ": ", yaml),
       .note = std::move(note)});
}

void SpecDraft::MappedText(std::string setting, std::string value, std::string_view key,
                           const std::string& text, std::string note) {
  SetText(key, text);
  Add({std::move(setting), std::move(value), Fate::kMapped, absl::StrCat(Absl(key), ": ", text),
       std::move(note)});
}

void SpecDraft::MappedTexts(std::string setting, std::string value, std::string_view key,
                            const std::vector<std::string>& texts, std::string note) {
  SetTexts(key, texts);
  Add({std::move(setting), std::move(value), Fate::kMapped,
       absl::StrCat(Absl(key), ": [", absl::StrJoin(texts, ", "), "]"), std::move(note)});
}

void SpecDraft::MappedSources(std::string setting, std::string value, std::string_view key,
                              const std::vector<WeightedPath>& sources, std::string note) {
  SetSources(key, sources);
  std::vector<std::string> shown;
  for (const WeightedPath& source : sources)
    shown.push_back(absl::StrCat("{path: ", source.path, ", weight: ", source.weight, "}"));
  Add({std::move(setting), std::move(value), Fate::kMapped,
       absl::StrCat(Absl(key), ": [", absl::StrJoin(shown, ", "), "]"), std::move(note)});
}

void SpecDraft::Automatic(std::string setting, std::string value, std::string note) {
  Add({std::move(setting), std::move(value), Fate::kAutomatic, "", std::move(note)});
}

void SpecDraft::Absent(std::string setting, std::string value, std::string note) {
  Add({std::move(setting), std::move(value), Fate::kAbsent, "", std::move(note)});
}

void SpecDraft::Unknown(std::string setting, std::string value, std::string note) {
  Add({std::move(setting), std::move(value), Fate::kUnknown, "", std::move(note)});
}

std::string SpecDraft::Yaml() const {
  std::string text;
  for (const std::string_view section : kSections) {
    const YAML::Node node = Find(root_, section);
    if (!node.IsDefined()) continue;
    YAML::Emitter emitter;
    emitter << YAML::BeginMap << YAML::Key << std::string(section) << YAML::Value << node
            << YAML::EndMap;
    text += emitter.c_str();
    text += '\n';
  }
  return text;
}

}  // namespace terrace
