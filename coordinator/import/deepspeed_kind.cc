// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed_kind.h"

namespace terrace {
namespace {

bool LiesBelow(std::string_view path, std::string_view section) {
  return path.size() > section.size() && path.starts_with(section) && path[section.size()] == '.';
}

bool Matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with(".*")) return pattern == path;
  pattern.remove_suffix(2);
  return path == pattern || LiesBelow(path, pattern);
}

// People put these in any section, and anything below them.
bool HasWord(std::string_view path, std::string_view word) {
  while (!path.empty()) {
    const size_t dot = path.find('.');
    if (path.substr(0, dot) == word) return true;
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return false;
}

}  // namespace

DeepSpeedKind KindOf(std::string_view path) {
  DeepSpeedKind kind;
  const auto mapping = DeepSpeedMappings().find(path);
  if (mapping != DeepSpeedMappings().end()) kind.mapping = mapping->second;
  for (const auto& [key, handler] : DeepSpeedMappings()) kind.section |= LiesBelow(key, path);
  for (const KnownKey& key : DeepSpeedKeysWithoutCounterpart()) {
    kind.section |= LiesBelow(key.path, path);
    if (kind.known == nullptr && Matches(key.path, path)) kind.known = &key;
  }
  for (const KnownKey& key : DeepSpeedKeysThatNeverWere()) {
    if (kind.mapping == nullptr && kind.known == nullptr && HasWord(path, key.path))
      kind.never_was = &key;
  }
  kind.section |= path == "fp16" || path == "bf16" || path == "bfloat16";
  if (kind.mapping != nullptr) kind.section = false;  // "zero_optimization" is both
  kind.parameter = LiesBelow(path, "optimizer.params") || LiesBelow(path, "scheduler.params");
  return kind;
}

}  // namespace terrace
