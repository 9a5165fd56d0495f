// train.precision: one for all products, or a default and the layers and modules that have another.
//
// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "coordinator/spec/reader.h"
#include "coordinator/spec/values.h"
#include "proto/precision_place.h"

namespace terrace {
namespace {

constexpr size_t kPlacesMax = 256;

constexpr char kPlaces[] =
    "layers ('0-1, 30', 'first 2', 'last 1'), attention or mlp of all layers ('mlp') or of some "
    "('last 1.mlp'), lm_head, embedding or norms";

// What products may compute in beside a default: activations have its type.
std::vector<absl::string_view> Beside(std::string_view precision) {
  if (precision == "fp16") return {"fp16", "fp32", "tf32"};
  if (precision == "fp32" || precision == "tf32") return {"fp32", "tf32", "bf16"};
  return {"fp8", "bf16", "fp32", "tf32"};
}

// What the place may be, when it is not any of these.
std::vector<absl::string_view> Allowed(PrecisionModule module, std::string_view precision) {
  std::vector<absl::string_view> allowed = Beside(precision);
  if (module == PrecisionModule::kNorms) return {"fp32"};
  if (module == PrecisionModule::kLmHead) std::erase(allowed, "fp8");
  if (module != PrecisionModule::kEmbedding) return allowed;
  // Nothing computes with a table; it is read as it is kept.
  const bool is_fp8 = precision == "fp8";
  if (is_fp8 || precision == "fp32" || precision == "tf32") return {"fp32"};
  return {"fp32", Absl(precision)};
}

std::string Why(PrecisionModule module, std::string_view precision) {
  if (module == PrecisionModule::kNorms) return ": norms compute in fp32 whatever the precision";
  if (module == PrecisionModule::kLmHead && precision == "fp8")
    return ": the loss needs the head's products in 16 bits at least";
  return "";
}

// A place's name, or one that other programs and model files have for it.
struct ModuleName {
  std::string_view name, place;
};
constexpr ModuleName kModuleNames[] = {
    {"lm_head", "lm_head"},
    {"head", "lm_head"},
    {"output", "lm_head"},
    {"embedding", "embedding"},
    {"wte", "embedding"},
    {"embed_tokens", "embedding"},
    {"norms", "norms"},
    {"layernorm", "norms"},
    {"attention", "attention"},
    {"self_attn", "attention"},
    {"attn", "attention"},
    {"mlp", "mlp"},
    {"ffn", "mlp"},
    {"feed_forward", "mlp"},
    {"decoder", "first 1"},
};

std::string NearestModule(std::string_view word) {
  std::vector<std::string_view> names;
  for (const ModuleName& module : kModuleNames) names.push_back(module.name);
  const std::string_view nearest = Nearest(word, names);
  for (const ModuleName& module : kModuleNames) {
    if (module.name == nearest) return std::string(module.place);
  }
  return "";
}

// What may have been meant: "lasst 1" is "last 1", "layers 0-3.ffn" is "0-3.mlp".
std::string NearestPlace(std::string_view text) {
  const size_t dot = std::min(text.rfind('.'), text.size());
  std::string spans(text.substr(0, dot));
  const size_t space = spans.find(' ');
  const std::string_view counted = Nearest(spans.substr(0, space), {"first", "last"});
  if (Nearest(spans.substr(0, space), {"layer", "layers"}) != "") {
    spans = space < spans.size() ? spans.substr(space + 1) : "";
  } else if (space < spans.size() && !counted.empty()) {
    spans = absl::StrCat(Absl(counted), spans.substr(space));
  }
  const std::string module = dot < text.size() ? NearestModule(text.substr(dot + 1)) : "";
  for (const std::string& place :
       {module.empty() ? spans : absl::StrCat(spans, ".", module), NearestModule(text)}) {
    if (ParsePrecisionPlace(place)) return place;
  }
  return "first 1";
}

}  // namespace

void SpecReader::ReadPrecisionRule(const SpecKey& key, const YAML::Node& where,
                                   const YAML::Node& value, v1::TrainSpec* train) {
  const std::string place_text = where.IsScalar() ? where.Scalar() : "";
  const std::string path = absl::StrCat(Absl(key.path), ".layers.", place_text);
  const bool again = places_.contains(path);
  places_[path] = {where.Mark().line + 1, where.Mark().column + 1};
  const auto place = ParsePrecisionPlace(place_text);
  const std::string precision = value.IsScalar() ? value.Scalar() : "";
  const std::string choices = absl::StrCat("one of ", absl::StrJoin(ChoicesOf(key), ", "));
  if (!place) return Problem(path, "an unknown place", kPlaces, NearestPlace(place_text));
  if (again) return Problem(path, "the place twice", "given once");
  if (!IsChoice(key, precision))
    return Problem(path, Quoted(value), choices, Nearest(precision, key.choices));
  const std::vector<absl::string_view> allowed = Allowed(place->module, train->precision());
  if (std::find(allowed.begin(), allowed.end(), precision) == allowed.end()) {
    const std::string must = absl::StrCat(
        allowed.size() > 1 ? "one of " : "", absl::StrJoin(allowed, ", "),
        " with train.precision.default ", train->precision(), Why(place->module, precision));
    return Problem(path, precision, must, std::string(allowed.front()));
  }
  v1::PrecisionRule* rule = train->add_precision_rules();
  rule->set_where(place_text);
  rule->set_precision(precision);
}

void SpecReader::ReadPrecision(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  v1::TrainSpec* train = spec->mutable_train();
  if (value.IsScalar() && IsChoice(key, value.Scalar()))
    return train->set_precision(value.Scalar());
  if (!value.IsMap()) {
    return Problem(key.path, Quoted(value), RuleText(key),
                   value.IsScalar() ? Nearest(value.Scalar(), key.choices) : "");
  }
  train->set_precision(std::string(key.fallback));
  YAML::Node layers;
  for (const auto& item : value) {
    const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
    const std::string path = absl::StrCat(Absl(key.path), ".", name);
    const bool again = places_.contains(path);
    places_[path] = {item.first.Mark().line + 1, item.first.Mark().column + 1};
    if (name != "default" && name != "layers") {
      Problem(path, "an unknown key", "default or layers");
    } else if (again) {
      Problem(path, "the key twice", "given once");
    } else if (name == "layers") {
      layers = item.second;
    } else if (item.second.IsScalar() && IsChoice(key, item.second.Scalar())) {
      train->set_precision(item.second.Scalar());
    } else {
      const std::string choices = absl::StrCat("one of ", absl::StrJoin(ChoicesOf(key), ", "));
      Problem(path, Quoted(item.second), choices);
    }
  }
  if (!layers.IsDefined() || layers.IsNull()) return;
  if (!layers.IsMap()) {
    return Problem(absl::StrCat(Absl(key.path), ".layers"), Quoted(layers),
                   "a mapping from places to precisions", "{first 1: bf16}");
  }
  if (layers.size() > kPlacesMax) {
    return Problem(absl::StrCat(Absl(key.path), ".layers"), absl::StrCat(layers.size(), " places"),
                   absl::StrCat("at most ", kPlacesMax), "spans such as 0-31");
  }
  for (const auto& item : layers) ReadPrecisionRule(key, item.first, item.second, train);
}

}  // namespace terrace
