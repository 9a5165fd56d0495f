// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/model/config_keys.h"

namespace terrace {
namespace {

constexpr double kLargeFactor = 1e6;
constexpr double kThetaMin = 1.0 + 1e-6, kThetaMax = 1e12;
constexpr int64_t kTrainedMax = int64_t{1} << 32;
constexpr const char* kTrained = "original_max_position_embeddings";

// Both places that a number of rope may stand at.
struct Places {
  JsonReader& top;
  JsonReader& scaling;
  const RotaryRule& rule;
  std::vector<std::string>* problems;
  std::vector<std::string>* remarks;

  void Remark(std::string text) const { remarks->push_back("model.config: " + std::move(text)); }
};

// The positions that the model was trained with before it was stretched: what stands beside the
// object counts before what stands in it (transformers 5, standardize_rope_params), and so does
// what the family's class has where nothing stands beside it.
int64_t TrainedPositions(const Places& places, int64_t max_positions) {
  const int64_t inside = places.scaling.Int(kTrained, 2, kTrainedMax, max_positions);
  if (places.rule.by_layer_type) return inside;  // nothing beside the objects is read
  const int64_t by_class = places.rule.trained;
  if (!places.top.Has(kTrained) && by_class == 0) return inside;
  const int64_t beside = places.top.Int(kTrained, 2, kTrainedMax, by_class);
  if (places.scaling.Has(kTrained) && inside != beside) {
    places.Remark(absl::StrCat(kTrained, ": ", beside, " counts, not ", places.scaling.path(),
                               kTrained, " ", inside, ", as in transformers 5"));
  }
  return beside;
}

// 1 / theta^(2i/d), Su et al. 2021 (arXiv 2104.09864), equation 15.
std::vector<double> Frequencies(double theta, int64_t head_dim) {
  std::vector<double> out(head_dim / 2);
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::pow(theta, -2.0 * i / head_dim);
  return out;
}

// Wavelengths above the trained range are stretched by `factor`, short ones kept, those between
// blended (Llama 3.1).
void ScaleLlama3(const Places& places, const RopeInput& input, std::vector<double>* frequencies) {
  JsonReader& scaling = places.scaling;
  const double factor = scaling.Real("factor", 1.0, kLargeFactor);
  const double low = scaling.Real("low_freq_factor", 1e-6, kLargeFactor);
  const double high = scaling.Real("high_freq_factor", 1e-6, kLargeFactor);
  const auto trained = static_cast<double>(TrainedPositions(places, input.max_positions));
  if (high <= low) {
    scaling.Problem("high_freq_factor", absl::StrCat(high),
                    absl::StrCat("above low_freq_factor ", low));
    return;
  }
  for (double& f : *frequencies) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < trained / high) continue;
    const double smooth = std::clamp((trained / wavelength - low) / (high - low), 0.0, 1.0);
    f = (1 - smooth) * f / factor + smooth * f;
  }
}

// YaRN, Peng et al. 2023 (arXiv 2309.00071), sections 3.2 and 3.4.
double ScaleYarn(const Places& places, const RopeInput& input, double theta,
                 std::vector<double>* frequencies) {
  JsonReader& scaling = places.scaling;
  const auto trained = static_cast<double>(TrainedPositions(places, input.max_positions));
  const double factor = scaling.Real("factor", 1.0, kLargeFactor);
  const double beta_fast = scaling.Real("beta_fast", 1e-6, kLargeFactor, 32.0);
  const double beta_slow = scaling.Real("beta_slow", 1e-6, kLargeFactor, 1.0);
  const double d = input.head_dim;
  auto dimension_of = [&](double rotations) {
    return d * std::log(trained / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = dimension_of(beta_fast);
  double high = dimension_of(beta_slow);
  // transformers 5 looks for it where a rope for each kind of layers has none.
  if (places.rule.by_layer_type || scaling.Bool("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (high == low) high += 0.001;
  for (size_t i = 0; i < frequencies->size(); ++i) {
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    double& f = (*frequencies)[i];
    f = f / factor * ramp + f * (1 - ramp);
  }
  auto mscale = [factor](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  // Asked for even where attention_factor makes them idle. Zero is as if it were not there.
  const double own = scaling.Real("mscale", 0, kLargeFactor, 0.0);
  const double all = scaling.Real("mscale_all_dim", 0, kLargeFactor, 0.0);
  if (scaling.Has("attention_factor")) return scaling.Real("attention_factor", 1e-6, kLargeFactor);
  return own > 0 && all > 0 ? mscale(own) / mscale(all) : mscale(1.0);
}

// LongRoPE, Ding et al. 2024 (arXiv 2402.13753): one factor per frequency.
double ScaleLongRope(const Places& places, const RopeInput& input,
                     std::vector<double>* frequencies) {
  JsonReader& scaling = places.scaling;
  if (scaling.Has(kTrained) && !places.top.Has(kTrained) && places.rule.trained == 0) {
    places.Remark(absl::StrCat(scaling.path(), kTrained,
                               " counts, as in transformers 5; 4 reads it of longrope only beside ",
                               scaling.path().substr(0, scaling.path().size() - 1)));
  }
  const auto trained = static_cast<double>(TrainedPositions(places, input.max_positions));
  scaling.Has("long_factor");  // both are part of the type, whichever the length asks for
  scaling.Has("short_factor");
  const char* key = input.sequence_length > trained ? "long_factor" : "short_factor";
  const std::vector<double> factors = scaling.Reals(key);
  if (factors.size() != frequencies->size()) {
    scaling.Problem(
        key, absl::StrCat(factors.size(), " numbers"),
        absl::StrCat(frequencies->size(), " numbers (half of what is rotated of a head)"));
    return 1.0;
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(factors[i] > 0)) {
      scaling.Problem(key, absl::StrCat(factors[i]), "numbers above 0");
      return 1.0;
    }
    (*frequencies)[i] /= factors[i];
  }
  const double factor = scaling.Real("factor", 1e-6, kLargeFactor, input.max_positions / trained);
  const double attention = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(trained));
  return scaling.Real("attention_factor", 1e-6, kLargeFactor, attention);
}

// As transformers 5 does: rope_scaling counts before rope_parameters where it says anything.
const char* SectionOf(JsonReader& top, std::vector<std::string>* remarks) {
  const nlohmann::json* older = top.Object("rope_scaling");
  const nlohmann::json* newer = top.Object("rope_parameters");
  if (older == nullptr || older->empty())
    return newer == nullptr ? "rope_scaling" : "rope_parameters";
  if (newer != nullptr && !newer->empty() && *newer != *older) {
    remarks->push_back(absl::StrCat("model.config: rope_parameters: got ", ShownJson(*newer),
                                    ", which is not read beside rope_scaling, as in transformers"));
  }
  return "rope_scaling";
}

// Transformers 4 and 5 prefer different ones.
std::string TypeOf(JsonReader& scaling) {
  const std::string type = scaling.String("type", ""),
                    rope_type = scaling.String("rope_type", type);
  if (!type.empty() && type != rope_type) {
    scaling.Problem("type", absl::StrCat("\"", type, "\""),
                    absl::StrCat("\"", rope_type, "\", as rope_type is"),
                    "transformers 4 reads type and 5 rope_type: leave one of them out");
  }
  return rope_type.empty() ? "default" : rope_type;
}

// A number that stands in the section under one name or beside it under another. Transformers 4
// reads the latter.
struct TwoNames {
  std::string_view inside, beside;
  double min, max, otherwise;
};

double ReadEither(const Places& places, const TwoNames& names) {
  const double beside = places.top.Real(names.beside, names.min, names.max, names.otherwise);
  if (!places.scaling.Has(names.inside)) return beside;
  const double inside = places.scaling.Real(names.inside, names.min, names.max);
  if (places.top.Has(names.beside) && inside != beside) {
    places.Remark(absl::StrCat(places.scaling.path(), Absl(names.inside), " ", inside,
                               " counts, not ", Absl(names.beside), " ", beside,
                               ", as in transformers 5; 4 reads the latter"));
  }
  return inside;
}

void CheckWholeHead(JsonReader& reader) {
  const double part = reader.Real("partial_rotary_factor", 0, 1, 1.0);
  if (part != 1.0) {
    reader.Problem("partial_rotary_factor", absl::StrCat(part), "1",
                   "the family rotates the whole head; models that rotate a part are others");
  }
}

// Elements of a head that are rotated.
int64_t RotatedPart(const Places& places, const RopeInput& input) {
  const RotaryRule& rule = places.rule;
  if (rule.whole_only) {
    CheckWholeHead(places.scaling);
    return input.head_dim;
  }
  const double part = ReadEither(places, {.inside = "partial_rotary_factor",
                                          .beside = rule.part_key,
                                          .min = 0,
                                          .max = 1,
                                          .otherwise = rule.part});
  const auto rotated = static_cast<int64_t>(static_cast<double>(input.head_dim) * part);
  if (rotated >= 2 && rotated % 2 == 0) return rotated;
  constexpr std::string_view kInside = "partial_rotary_factor";
  const bool inside = places.scaling.Has(kInside);
  (inside ? places.scaling : places.top)
      .Problem(inside ? kInside : rule.part_key, absl::StrCat(part),
               absl::StrCat("a part of head_dim ", input.head_dim,
                            " that is an even number of elements, at least 2"));
  return 2;
}

void Scale(std::string_view type, const Places& places, const RopeInput& input, double theta,
           RopeConfig* rope) {
  JsonReader& scaling = places.scaling;
  const bool longrope =
      type == "longrope" || type == "su" || (type == "yarn" && places.rule.longrope_only);
  if (longrope) {
    rope->attention_factor = ScaleLongRope(places, input, &rope->inverse_frequency);
  } else if (places.rule.longrope_only && type != "default") {
    scaling.Problem("rope_type", ShownJson(nlohmann::json(type)), "default or longrope",
                    "the family's class knows no other");
  } else if (type == "linear") {
    const double factor = scaling.Real("factor", 1e-6, kLargeFactor);
    for (double& f : rope->inverse_frequency) f /= factor;
  } else if (type == "dynamic") {
    // NTK-aware base change; without effect up to the trained length.
    const double factor = scaling.Real("factor", 1.0, kLargeFactor);
    const double trained = input.max_positions;
    const double length = std::max<double>(input.sequence_length, trained);
    const double d = input.head_dim;
    if (d > 2) {
      const double grown = theta * std::pow(factor * length / trained - (factor - 1), d / (d - 2));
      rope->inverse_frequency = Frequencies(grown, input.head_dim);
    }
  } else if (type == "llama3") {
    ScaleLlama3(places, input, &rope->inverse_frequency);
  } else if (type == "yarn") {
    rope->attention_factor = ScaleYarn(places, input, theta, &rope->inverse_frequency);
  } else if (type != "default") {
    scaling.Problem("rope_type", ShownJson(nlohmann::json(type)),
                    "one of default, linear, dynamic, yarn, llama3, longrope");
  }
}

// transformers 5 lets some families give each kind of layer its own.
bool IsNested(JsonReader& scaling) {
  for (const auto& [key, value] : scaling.object().items()) {
    if (!value.is_object()) continue;
    scaling.Problem(key, ShownJson(value), "a number or a word",
                    "all layers of these families have one rope");
    return true;
  }
  return false;
}

// The numbers of one rope: those of an object, and beside it the base under `theta_key` (empty:
// nothing stands there).
RopeConfig ReadOne(const Places& places, const RopeInput& input, std::string_view theta_key,
                   double theta_otherwise) {
  RopeConfig rope;
  RopeInput part = input;
  part.head_dim = RotatedPart(places, input);
  const TwoNames names = {.inside = "rope_theta",
                          .beside = theta_key,
                          .min = kThetaMin,
                          .max = kThetaMax,
                          .otherwise = theta_otherwise};
  const double theta =
      theta_key.empty() ? places.scaling.Real(names.inside, names.min, names.max, theta_otherwise)
                        : ReadEither(places, names);
  const std::string type = TypeOf(places.scaling);
  rope.inverse_frequency = Frequencies(theta, part.head_dim);
  Scale(type, places, part, theta, &rope);
  if (places.problems->empty()) JudgeRopeKeys(places.scaling, type, places.remarks);
  return rope;
}

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";

// The object of one kind of layers in rope_parameters; empty where it is not there.
nlohmann::json OfLayers(const nlohmann::json* parameters, std::string_view kind) {
  if (parameters == nullptr) return nlohmann::json::object();
  const auto it = parameters->find(kind);
  return it != parameters->end() && it->is_object() ? *it : nlohmann::json::object();
}

// As transformers 5 reads them: rope_scaling is of layers without a window, and changes what
// rope_parameters says of these.
Ropes ReadByLayerType(const Places& given, const RopeInput& input) {
  JsonReader& top = given.top;
  const RotaryRule& rule = given.rule;
  const nlohmann::json* older = top.Object("rope_scaling");
  const nlohmann::json* newer = top.Object("rope_parameters");
  if (newer != nullptr) {
    for (const auto& [key, value] : newer->items()) {
      if ((key == kFull || key == kSliding) && (value.is_object() || value.is_null())) continue;
      top.Problem("rope_parameters", absl::StrCat("a member ", ShownJson(key)),
                  absl::StrCat("the objects ", Absl(kFull), " and ", Absl(kSliding)),
                  "layers of the two kinds have a rope each");
      return {};
    }
  }
  nlohmann::json full = OfLayers(newer, kFull);
  const nlohmann::json sliding = OfLayers(newer, kSliding);
  const bool of_scaling = full.empty() && older != nullptr;
  if (older != nullptr) full.update(*older);
  JsonReader full_reader(full, of_scaling ? "rope_scaling." : "rope_parameters.full_attention.",
                         given.problems);
  JsonReader sliding_reader(sliding, "rope_parameters.sliding_attention.", given.problems);
  const auto of = [&](JsonReader& scaling) {
    return Places{.top = top,
                  .scaling = scaling,
                  .rule = rule,
                  .problems = given.problems,
                  .remarks = given.remarks};
  };
  if (rule.local_theta_key.empty() && top.Has(rule.theta_key) &&
      !sliding_reader.Has("rope_theta")) {
    const double theta = top.Real(rule.theta_key, kThetaMin, kThetaMax, rule.theta);
    if (theta != rule.local_theta) {
      given.Remark(absl::StrCat(Absl(rule.theta_key), " ", theta,
                                " counts in layers without a window, ", rule.local_theta,
                                " in the others, as in transformers 5; 4 reads it for all"));
    }
  }
  Ropes ropes;
  ropes.rope = ReadOne(of(full_reader), input, rule.theta_key, rule.theta);
  ropes.local = ReadOne(of(sliding_reader), input, rule.local_theta_key, rule.local_theta);
  return ropes;
}

}  // namespace

Ropes ReadRopes(JsonReader& config, const RopeInput& input, const RotaryRule& rule,
                std::vector<std::string>* problems, std::vector<std::string>* remarks) {
  if (rule.whole_only) CheckWholeHead(config);
  const nlohmann::json empty = nlohmann::json::object();
  if (rule.by_layer_type) {
    JsonReader none(empty, "", problems);
    return ReadByLayerType({config, none, rule, problems, remarks}, input);
  }
  const char* section = SectionOf(config, remarks);
  const nlohmann::json* object = config.Object(section);
  JsonReader scaling(object == nullptr ? empty : *object, absl::StrCat(section, "."), problems);
  if (IsNested(scaling)) {
    for (std::string_view key : {std::string_view(kTrained), rule.part_key, rule.theta_key})
      config.Has(key);  // known, not looked at now
    return {};
  }
  return {.rope = ReadOne({config, scaling, rule, problems, remarks}, input, rule.theta_key,
                          rule.theta)};
}

}  // namespace terrace
