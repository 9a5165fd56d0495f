// Walks the YAML tree along the key table: finds each key, converts its value, gathers problems
// with line and column.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/spec/keys.h"
#include "proto/v1/job.pb.h"

namespace YAML {
class Node;
}

namespace terrace {

// Thread-compatible.
class SpecReader {
 public:
  explicit SpecReader(std::string_view base_directory) : base_directory_(base_directory) {}

  // Reads `root` into `spec`. Problems are in problems() afterwards; `spec` is meaningful only
  // without any.
  void Read(const YAML::Node& root, v1::JobSpec* spec);

  // Adds a problem found elsewhere (validate.cc), placed at the key when the text has it.
  void Problem(std::string_view path, std::string_view got, std::string_view must,
               std::string_view way_out = {});
  // Whether the text has the key with a value; defaults and null do not count.
  bool Has(const std::string& path) const {
    const auto place = places_.find(path);
    return place != places_.end() && !place->second.is_null;
  }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  struct Place {
    int line = 0, column = 0;  // from 1; 0: not in the text (overrides.h)
    bool is_null = false;
  };
  // Visits every mapping: limits, duplicate and unknown keys; remembers where each known key
  // stands.
  void Walk(const YAML::Node& node, const std::string& path, int depth);
  void CheckKey(const YAML::Node& key, const std::string& path, const std::string& child);
  void Unknown(const std::string& path, const std::string& key);
  void ReadWritten(const SpecKey& key, const std::string& section, const YAML::Node& value,
                   v1::JobSpec* spec);
  // read_key.cc
  void ReadKey(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadPaths(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadWords(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadList(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadBetas(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadShares(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  bool ReadShare(const SpecKey& key, const YAML::Node& tier, const YAML::Node& part,
                 v1::TierShares* shares);
  // read_mixture.cc
  void ReadMixture(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadSource(const std::string& path, const YAML::Node& value, v1::DataSpec* data);
  bool ReadSourcePaths(const std::string& path, const YAML::Node& value, v1::DataSpec* data);
  void CheckShares(const SpecKey& key, const v1::DataSpec& data);
  // read_precision.cc
  void ReadPrecision(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadPrecisionRule(const SpecKey& key, const YAML::Node& where, const YAML::Node& value,
                         v1::TrainSpec* train);
  // read_groups.cc
  void ReadGroups(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadGroup(const std::string& path, const YAML::Node& value, v1::ParameterGroup* group);
  // read_key.cc
  void ReadNodes(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  void ReadModelConfig(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec);
  std::string Absolute(const std::string& path) const;

  std::string base_directory_;
  std::map<std::string, Place> places_;
  std::vector<std::string> problems_;
  int nodes_ = 0;
  bool too_large_ = false;
};

}  // namespace terrace
