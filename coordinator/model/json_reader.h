// Reads typed, bounded values out of one JSON object and gathers every problem instead of stopping
// at the first.
//
// Used while a config.json is parsed; borrows the object. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

class JsonReader {
 public:
  // `path` prefixes messages ("rope_scaling."). Problems go to `problems`.
  JsonReader(const nlohmann::json& object, std::string path, std::vector<std::string>* problems);

  bool Has(std::string_view key) const;  // present and not null
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

  void Problem(std::string_view key, std::string_view got, std::string_view must,
               std::string_view way_out = {});

 private:
  const nlohmann::json* Find(std::string_view key) const;

  const nlohmann::json& object_;
  std::string path_;
  std::vector<std::string>* problems_;
};

}  // namespace terrace
