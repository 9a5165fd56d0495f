// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/reader.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/spec/validate.h"
#include "coordinator/spec/values.h"

namespace terrace {
namespace {

constexpr int kMaxDepth = 16;
constexpr int kMaxNodes = 10'000;
constexpr size_t kQuotedBytesMax = 500;  // of what the user wrote, in a message

// True when the section may be one value that the key gets.
bool IsShortFormOf(std::string_view section, std::string_view key) {
  for (const ShortForm& form : ShortForms()) {
    if (form.section != section) continue;
    return std::find(form.keys.begin(), form.keys.end(), key) != form.keys.end();
  }
  return false;
}

bool HasShortForm(std::string_view section) {
  return std::any_of(ShortForms().begin(), ShortForms().end(),
                     [&](const ShortForm& form) { return form.section == section; });
}

struct Written {
  YAML::Node value = YAML::Node(YAML::NodeType::Undefined);
  std::string section;  // under which it stands in short form; empty: at the key's own path
};
Written Lookup(const YAML::Node& root, std::string_view path) {
  YAML::Node node = YAML::Clone(YAML::Node());
  node.reset(root);
  std::string section;
  for (absl::string_view part : absl::StrSplit(Absl(path), '.')) {
    if (!node.IsMap()) {
      if (IsShortFormOf(section, path) && !node.IsNull()) return {node, section};
      return {};
    }
    const YAML::Node child = node[std::string(part)];
    if (!child.IsDefined()) return {};
    node.reset(child);
    absl::StrAppend(&section, section.empty() ? "" : ".", part);
  }
  return {node, ""};
}

// A path that holds a NUL names another file than it shows; an escape sequence in a name acts on
// the terminals of all who list it.
bool HasControlCharacter(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\n' && c != '\t';
  });
}

bool IsSection(const std::string& path) {
  for (const SpecKey& key : SpecKeys()) {
    if (absl::StartsWith(Absl(key.path), path + ".")) return true;
  }
  return false;
}

const SpecKey* FindKey(const std::string& path) {
  for (const SpecKey& key : SpecKeys()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

}  // namespace

void SpecReader::Problem(std::string_view path, std::string_view got, std::string_view must,
                         std::string_view way_out) {
  std::string text;
  auto place = places_.find(std::string(path));
  if (place != places_.end() && place->second.line > 0) {
    text = absl::StrCat("line ", place->second.line, ", column ", place->second.column, ": ");
  }
  absl::StrAppend(&text, CleanLine(path, kQuotedBytesMax), ": got ",
                  CleanLine(got, kQuotedBytesMax), ", must be ", Absl(must));
  if (!way_out.empty()) absl::StrAppend(&text, "; try ", Absl(way_out));
  problems_.push_back(std::move(text));
}

std::string SpecReader::Absolute(const std::string& path) const {
  std::filesystem::path p(path);
  if (p.is_relative()) p = std::filesystem::path(base_directory_) / p;
  return p.lexically_normal().string();
}

void SpecReader::Unknown(const std::string& path, const std::string& key) {
  std::vector<std::string_view> siblings;
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const SpecKey& known : SpecKeys()) {
    if (!absl::StartsWith(Absl(known.path), prefix)) continue;
    const std::string_view rest = known.path.substr(prefix.size());
    const std::string_view name = rest.substr(0, rest.find('.'));
    if (siblings.empty() || siblings.back() != name) siblings.push_back(name);
  }
  std::string_view near = Nearest(key, siblings);
  std::string elsewhere;
  for (const SpecKey& known : SpecKeys()) {  // the right key in the wrong section
    if (near.empty() && known.path.substr(known.path.rfind('.') + 1) == key)
      elsewhere = std::string(known.path);
  }
  std::vector<absl::string_view> names;
  for (std::string_view name : siblings) names.push_back(Absl(name));
  const std::string must = absl::StrCat("one of ", absl::StrJoin(names, ", "));
  const std::string try_this = !near.empty() ? prefix + std::string(near) : elsewhere;
  Problem(prefix + key, "an unknown key", must, try_this);
}

void SpecReader::CheckKey(const YAML::Node& key, const std::string& path,
                          const std::string& child) {
  const bool seen = places_.contains(child);
  places_[child] = {key.Mark().line + 1, key.Mark().column + 1};
  if (seen) Problem(child, "the key twice", "given once");
  if (FindKey(child) == nullptr && !IsSection(child)) Unknown(path, key.Scalar());
}

void SpecReader::Walk(const YAML::Node& node, const std::string& path, int depth) {
  if (++nodes_ > kMaxNodes || depth > kMaxDepth) too_large_ = true;
  if (too_large_) return;
  const SpecKey* leaf = FindKey(path);
  if (node.IsMap()) {
    for (const auto& item : node) {
      if (!item.first.IsScalar()) {
        Problem(path, "a key that is not a word", "a mapping with plain keys");
        continue;
      }
      const std::string child =
          path.empty() ? item.first.Scalar() : absl::StrCat(path, ".", item.first.Scalar());
      const bool ours = leaf == nullptr && (path.empty() || IsSection(path));
      if (ours) {
        CheckKey(item.first, path, child);
        places_[child].is_null = item.second.IsNull();
      }
      Walk(item.second, child, depth + 1);
    }
  } else if (node.IsSequence()) {
    // "optimizer:\n  - lr: 0.1": all of it would be passed over.
    if (leaf == nullptr && IsSection(path) && !HasShortForm(path))
      return Problem(path, "a list", "a mapping", "its keys without dashes in front of them");
    for (const auto& item : node) Walk(item, path, depth + 1);
  } else if (node.IsScalar() && HasControlCharacter(node.Scalar())) {
    Problem(path, Quoted(node), "text without control characters");
  } else if (leaf == nullptr && IsSection(path) && !node.IsNull() && !HasShortForm(path) &&
             !(path == "layout" && node.Scalar() == "auto")) {
    Problem(path, Quoted(node), path == "layout" ? "auto or a mapping" : "a mapping");
  }
}

// In short form the section is what the user wrote and what messages name.
void SpecReader::ReadWritten(const SpecKey& key, const std::string& section,
                             const YAML::Node& value, v1::JobSpec* spec) {
  if (section.empty()) return ReadKey(key, value, spec);
  SpecKey named = key;
  named.path = section;
  if (named.field.empty()) named.field = key.path;
  ReadKey(named, value, spec);
}

void SpecReader::Read(const YAML::Node& root, v1::JobSpec* spec) {
  Walk(root, "", 0);
  if (too_large_) {
    problems_ = {absl::StrCat("the spec: got more than ", kMaxNodes, " values or ", kMaxDepth,
                              " levels, must be smaller; try fewer aliases")};
    return;
  }
  std::string refused;  // the short form that was found wrong: it is said once
  for (const SpecKey& key : SpecKeys()) {
    const Written written = Lookup(root, key.path);
    if (written.value.IsDefined() && !written.value.IsNull()) {
      if (!written.section.empty() && written.section == refused) continue;
      const size_t problems = problems_.size();
      ReadWritten(key, written.section, written.value, spec);
      if (problems_.size() > problems) refused = written.section;
    } else if (key.required) {
      if (!Has(std::string(key.unless))) Problem(key.path, "nothing", RuleText(key), key.unless);
    } else if (!key.fallback.empty()) {
      if (MeansChosen(key)) {
        SetNumber(FindField(key, spec), *ParseNumber(std::string(key.fallback)));
      } else {
        ReadKey(key, YAML::Load(std::string(key.fallback)), spec);
      }
    }
  }
  if (problems_.empty()) ValidateSpec(*this, spec);
}

}  // namespace terrace
