// data.train: paths, or sources of a mixture, each with its paths and its weight.
//
// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "coordinator/spec/reader.h"
#include "coordinator/spec/values.h"

namespace terrace {
namespace {

constexpr size_t kSourcesMax = 1024;
constexpr double kWeightMax = 1e12;
// A source has at least this share of all weights: shares are kept to 2^-24
// (worker/data/mixture/source_draw.h).
constexpr double kShareMin = 1e-5;
constexpr char kExample[] = "[{path: a.txt, weight: 0.7}, {path: b.txt, weight: 0.3}]";

bool HasMap(const YAML::Node& list) {
  for (const auto& entry : list) {
    if (entry.IsMap()) return true;
  }
  return false;
}

}  // namespace

// One path or a list of them; false, with a problem, where it is neither.
bool SpecReader::ReadSourcePaths(const std::string& path, const YAML::Node& value,
                                 v1::DataSpec* data) {
  const auto add = [&](const YAML::Node& one) {
    const bool good = one.IsScalar() && !one.Scalar().empty();
    if (good) data->add_train(Absolute(one.Scalar()));
    if (!good) Problem(path, Quoted(one), "a path or a list of paths");
    return good;
  };
  if (!value.IsSequence()) return add(value);
  if (value.size() == 0) Problem(path, "an empty list", "a path or a list of paths");
  for (const auto& one : value) {
    if (!add(one)) return false;
  }
  return value.size() > 0;
}

void SpecReader::ReadSource(const std::string& path, const YAML::Node& value, v1::DataSpec* data) {
  const int before = data->train_size();
  std::optional<double> weight;
  bool has_weight = false, good = true;
  for (const auto& item : value) {
    const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
    const std::string key = absl::StrCat(path, ".", name);
    const bool again = places_.contains(key);
    places_[key] = {item.first.Mark().line + 1, item.first.Mark().column + 1};
    if (again) {
      Problem(key, "the key twice", "given once");
    } else if (name == "path") {
      good = ReadSourcePaths(key, item.second, data);
    } else if (name == "weight") {
      has_weight = true;
      weight = item.second.IsScalar() ? ParseNumber(item.second.Scalar()) : std::nullopt;
      if (!(weight.value_or(0) > 0 && *weight <= kWeightMax)) {
        Problem(key, Quoted(item.second),
                absl::StrCat("a number above 0, at most ", kWeightMax,
                             "; leave out a source that is not to be used"));
      }
    } else {
      Problem(key, "an unknown key", "path or weight", Nearest(name, {"path", "weight"}));
    }
  }
  const int files = data->train_size() - before;
  if (files == 0 && good) Problem(path, "no path", "a mapping of path and weight", kExample);
  if (!has_weight) {
    Problem(path, "no weight", "a mapping of path and weight: all entries have one, or none has",
            kExample);
  }
  v1::MixtureSource* source = data->add_mixture();
  source->set_files(static_cast<uint32_t>(files));
  source->set_weight(weight.value_or(1));
}

void SpecReader::CheckShares(const SpecKey& key, const v1::DataSpec& data) {
  double all = 0;
  for (const v1::MixtureSource& source : data.mixture()) all += source.weight();
  for (int i = 0; i < data.mixture_size(); ++i) {
    const double weight = data.mixture(i).weight();
    if (weight >= kShareMin * all) continue;
    Problem(absl::StrCat(Absl(key.path), "[", i, "].weight"), absl::StrCat(weight),
            absl::StrCat("at least ", kShareMin, " of all weights, which are ", all, " together"),
            "a larger one, or leave the source out");
  }
}

void SpecReader::ReadMixture(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  const bool is_mixture = value.IsSequence() && HasMap(value);
  if (value.IsMap()) return Problem(key.path, "a mapping", RuleText(key), kExample);
  if (!is_mixture) return ReadPaths(key, value, spec);
  if (value.size() > kSourcesMax) {
    return Problem(key.path, absl::StrCat(value.size(), " sources"),
                   absl::StrCat("at most ", kSourcesMax),
                   "one source of several paths where they have one weight");
  }
  const size_t problems = problems_.size();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string path = absl::StrCat(Absl(key.path), "[", i, "]");
    places_[path] = {value[i].Mark().line + 1, value[i].Mark().column + 1};
    if (value[i].IsMap()) {
      ReadSource(path, value[i], spec->mutable_data());
    } else {
      Problem(path, Quoted(value[i]),
              "a mapping of path and weight: all entries have a weight, or none has", kExample);
    }
  }
  if (problems_.size() == problems) CheckShares(key, spec->data());
}

}  // namespace terrace
