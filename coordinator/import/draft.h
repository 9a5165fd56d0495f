// A job spec in the making, and what became of each setting of the configuration it is made from.
//
// In: settings one by one. Out: the YAML of a job spec and a table for people. A setting is mapped
// to a key of the spec, is automatic here (nothing to set), has no counterpart, or is unknown to
// the tool it claims to be of. The spec is not validated here.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

enum class Fate { kMapped, kAutomatic, kAbsent, kUnknown };
std::string_view FateName(Fate fate);  // "mapped", "automatic", "absent", "unknown"

// All of it is clean and on one line, whatever the configuration holds.
struct ImportedSetting {
  std::string setting;  // as it was written: "zero_optimization.stage"
  std::string value;
  Fate fate = Fate::kMapped;
  std::string target;  // of kMapped: "layout.zero: 3"
  std::string note;    // one sentence; may be empty for kMapped
};

class SpecDraft {
 public:
  // Sets the key of the spec, "train.optimizer.lr", to YAML of our own that is one value: "3e-4",
  // "[0.9, 0.95]".
  void Set(std::string_view key, const std::string& yaml);
  // To text from outside, which stays one value whatever YAML would make of it; to a list of such
  // texts.
  void SetText(std::string_view key, const std::string& text);
  void SetTexts(std::string_view key, const std::vector<std::string>& texts);
  // To sources of a mixture: texts from outside with the weight of each.
  struct WeightedPath {
    std::string path;
    double weight = 0;
  };
  void SetSources(std::string_view key, const std::vector<WeightedPath>& sources);
  // Leaves the key, or the section of that name, out again.
  void Drop(std::string_view key);
  bool Has(std::string_view key) const;
  std::string Get(std::string_view key) const;  // "" when it is not set

  void Mapped(std::string setting, std::string value, std::string_view key, const std::string& yaml,
              std::string note = "");
  void MappedText(std::string setting, std::string value, std::string_view key,
                  const std::string& text, std::string note = "");
  void MappedTexts(std::string setting, std::string value, std::string_view key,
                   const std::vector<std::string>& texts, std::string note = "");
  void MappedSources(std::string setting, std::string value, std::string_view key,
                     const std::vector<WeightedPath>& sources, std::string note = "");
  void Automatic(std::string setting, std::string value, std::string note);
  void Absent(std::string setting, std::string value, std::string note);
  void Unknown(std::string setting, std::string value, std::string note);

  // What a person must still do; no setting brought it about.
  void Remark(std::string text) { remarks_.push_back(std::move(text)); }

  std::string Yaml() const;  // sections in the order of the reference page
  const std::vector<ImportedSetting>& settings() const { return settings_; }
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  void Put(std::string_view key, const YAML::Node& value);
  void Add(ImportedSetting setting);

  YAML::Node root_{YAML::NodeType::Map};
  std::vector<ImportedSetting> settings_;
  std::vector<std::string> remarks_;
};

}  // namespace terrace
