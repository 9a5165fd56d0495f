// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "base/strings.h"
#include "coordinator/spec/job_spec.h"
#include "coordinator/spec/keys.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

Json StringList() { return {{"type", "array"}, {"items", {{"type", "string"}}}}; }

Json Choice(const SpecKey& key) {
  Json choices = Json::array();
  for (std::string_view choice : key.choices) choices.push_back(std::string(choice));
  return {{"enum", choices}};
}

Json Integer(const SpecKey& key) {
  return {{"type", "integer"}, {"minimum", int64_t(key.low)}, {"maximum", int64_t(key.high)}};
}

Json Shares(const SpecKey& key) {
  Json parts = {{"type", "object"}, {"additionalProperties", false}};
  for (std::string_view tier : key.choices) {
    parts["properties"][std::string(tier)] = {{"type", "number"}, {"minimum", 0}, {"maximum", 1}};
  }
  return {{"anyOf", {Choice(key), parts}}};
}

Json Precision(const SpecKey& key) {
  Json parts = {{"type", "object"}, {"additionalProperties", false}};
  parts["properties"]["default"] = Choice(key);
  parts["properties"]["layers"] = {{"type", "object"}, {"additionalProperties", Choice(key)}};
  return {{"anyOf", {Choice(key), parts}}};
}

Json Mixture() {
  const Json paths = {{"anyOf", {{{"type", "string"}}, StringList()}}};
  const Json source = {
      {"type", "object"},
      {"additionalProperties", false},
      {"required", {"path", "weight"}},
      {"properties", {{"path", paths}, {"weight", {{"type", "number"}, {"exclusiveMinimum", 0}}}}}};
  return {{"anyOf", {{{"type", "string"}}, StringList(), {{"type", "array"}, {"items", source}}}}};
}

Json Groups() {
  const Json group = {{"type", "object"},
                      {"additionalProperties", false},
                      {"minProperties", 1},
                      {"properties",
                       {{"lr_scale", {{"type", "number"}, {"exclusiveMinimum", 0}}},
                        {"weight_decay", {{"type", "number"}, {"minimum", 0}}},
                        {"rule", {{"enum", {"adamw", "muon"}}}},
                        {"frozen", {{"type", "boolean"}}}}}};
  return {{"type", "object"}, {"additionalProperties", group}};
}

Json KeySchema(const SpecKey& key) {
  switch (key.kind) {
    case KeyKind::kString:
    case KeyKind::kPath:
    case KeyKind::kPathOrWord:
      return {{"type", "string"}};
    case KeyKind::kPaths:
    case KeyKind::kWords:
      return {{"anyOf", {{{"type", "string"}}, StringList()}}};
    case KeyKind::kMixture:
      return Mixture();
    case KeyKind::kChoice:
      return Choice(key);
    case KeyKind::kChoices:
      return {{"type", "array"}, {"items", Choice(key)}};
    case KeyKind::kBoolean:
      return {{"type", "boolean"}};
    case KeyKind::kInteger:
      return Integer(key);
    case KeyKind::kIntegers:
      return {{"type", "array"}, {"items", Integer(key)}};
    case KeyKind::kReal:
      return {{"type", "number"}, {"minimum", key.low}, {"maximum", key.high}};
    case KeyKind::kBytes:
      return {{"anyOf",
               {{{"type", "integer"}, {"minimum", int64_t(key.low)}},
                {{"type", "string"}, {"pattern", "^[0-9._eE+]+ ?([KMGTP]i?)?B$"}}}}};
    case KeyKind::kSpan:
      return {{"type", "string"},
              {"pattern", "^(?=[0-9])([0-9.]+d)?([0-9.]+h)?([0-9.]+m)?([0-9.]+s)?$"}};
    case KeyKind::kShares:
      return Shares(key);
    case KeyKind::kPrecision:
      return Precision(key);
    case KeyKind::kBetas:
      return {{"type", "array"},
              {"minItems", 2},
              {"maxItems", 2},
              {"items", {{"type", "number"}, {"minimum", 0}, {"exclusiveMaximum", 1}}}};
    case KeyKind::kNodes:
      return {{"anyOf",
               {{{"type", "integer"}, {"minimum", 1}},
                {{"type", "string"}, {"pattern", "^[0-9]+(:[0-9]+)?$"}}}}};
    case KeyKind::kGroups:
      return Groups();
    case KeyKind::kModelConfig:
      return {{"anyOf", {{{"type", "string"}}, {{"type", "object"}}}}};
  }
  return Json::object();
}

Json Section() {
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
}

// The schema of a section, seen from the root of the document.
Json& SectionAt(Json* root, std::string_view path) {
  Json* section = root;
  for (absl::string_view part : absl::StrSplit(Absl(path), '.')) {
    section = &(*section)["properties"][std::string(part)];
  }
  return *section;
}

const SpecKey& KeyAt(std::string_view path) {
  return *std::find_if(SpecKeys().begin(), SpecKeys().end(),
                       [&](const SpecKey& key) { return key.path == path; });
}

// A section may be what its short form's keys may be, short of a mapping, which it is itself.
void AddShortForms(Json* root) {
  for (const ShortForm& form : ShortForms()) {
    Json& section = SectionAt(root, form.section);
    const SpecKey& key = KeyAt(form.keys.front());
    const Json brief = key.kind == KeyKind::kShares ? Choice(key) : KeySchema(key);
    section = {{"anyOf", {brief, section}}};
  }
}

}  // namespace

std::string JobSpecJsonSchema() {
  Json root = Section();
  for (const SpecKey& key : SpecKeys()) {
    Json* section = &root;
    const std::vector<std::string> parts = absl::StrSplit(Absl(key.path), '.');
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      if (key.required && std::find((*section)["required"].begin(), (*section)["required"].end(),
                                    parts[i]) == (*section)["required"].end()) {
        (*section)["required"].push_back(parts[i]);
      }
      Json& child = (*section)["properties"][parts[i]];
      if (child.is_null()) child = Section();
      section = &child;
    }
    Json schema = KeySchema(key);
    schema["description"] = std::string(key.meaning);
    if (key.required && key.unless.empty()) (*section)["required"].push_back(parts.back());
    if (!key.fallback.empty() && !MeansChosen(key)) {
      const Json parsed = Json::parse(std::string(key.fallback), nullptr, false);
      schema["default"] = parsed.is_discarded() ? Json(std::string(key.fallback)) : parsed;
    }
    (*section)["properties"][parts.back()] = std::move(schema);
  }
  AddShortForms(&root);
  Json& layout = root["properties"]["layout"];
  layout = {{"anyOf", {{{"const", "auto"}}, layout}}};
  Json out = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
              {"title", "Terrace job spec"}};
  out.update(root);
  return out.dump(2) + "\n";
}

}  // namespace terrace
