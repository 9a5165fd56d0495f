// Reads typed, bounded values out of one JSON object, gathers every problem instead of stopping at
// the first, and remembers which keys it was asked for: the others decide nothing.
//
// Used while a config.json is parsed; borrows the object. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

class JsonReader {
 public:
  // `path` prefixes messages ("rope_scaling."). Problems go to `problems`.
  JsonReader(const nlohmann::json& object, std::string path, std::vector<std::string>* problems);

  // Lets `alias` stand for `key`, as the attribute map of a Hugging Face configuration class does.
  // Both with different values are a problem. Messages name the key that was written.
  void Alias(std::string_view key, std::string_view alias);

  bool Has(std::string_view key) const;       // present and not null
  bool Contains(std::string_view key) const;  // present, perhaps null
  // The value, or `fallback` when absent; without a fallback an absent key is a problem. Out of
  // [low, high] is a problem.
  int64_t Int(std::string_view key, int64_t low, int64_t high,
              std::optional<int64_t> fallback = {});
  double Real(std::string_view key, double low, double high, std::optional<double> fallback = {});
  bool Bool(std::string_view key, bool fallback);
  std::string String(std::string_view key, std::string_view fallback);
  std::vector<double> Reals(std::string_view key);
  std::vector<std::string> Strings(std::string_view key);
  // Null when absent; a problem when it is not an object.
  const nlohmann::json* Object(std::string_view key);

  // Of one key only the first is kept.
  void Problem(std::string_view key, std::string_view got, std::string_view must,
               std::string_view way_out = {});

  // The keys of the object that no call above was about, sorted; and those that one was about.
  std::vector<std::string> NotAsked() const;
  const std::set<std::string>& asked() const { return asked_; }
  const nlohmann::json& object() const { return object_; }
  const std::string& path() const { return path_; }

 private:
  std::string Written(std::string_view key) const;
  const nlohmann::json* Find(std::string_view key) const;

  const nlohmann::json& object_;
  std::string path_;
  std::vector<std::string>* problems_;
  std::map<std::string, std::string, std::less<>> aliases_;  // of keys that stand under these
  mutable std::set<std::string> asked_;
};

// A value as messages show it: on one line, not longer than a line.
std::string ShownJson(const nlohmann::json& value);

}  // namespace terrace
