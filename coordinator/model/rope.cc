// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr double kLargeFactor = 1e6;

// 1 / theta^(2i/d), Su et al. 2021 (arXiv 2104.09864), equation 15.
std::vector<double> Frequencies(double theta, int64_t head_dim) {
  std::vector<double> out(head_dim / 2);
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::pow(theta, -2.0 * i / head_dim);
  return out;
}

// Wavelengths above the trained range are stretched by `factor`, short ones kept, those between
// blended (Llama 3.1).
void ScaleLlama3(JsonReader& scaling, std::vector<double>* frequencies) {
  const double factor = scaling.Real("factor", 1.0, kLargeFactor);
  const double low = scaling.Real("low_freq_factor", 1e-6, kLargeFactor);
  const double high = scaling.Real("high_freq_factor", 1e-6, kLargeFactor);
  const double trained = scaling.Int("original_max_position_embeddings", 1, int64_t{1} << 32);
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
double ScaleYarn(JsonReader& scaling, const RopeInput& input, double theta,
                 std::vector<double>* frequencies) {
  const double factor = scaling.Real("factor", 1.0, kLargeFactor);
  const double beta_fast = scaling.Real("beta_fast", 1e-6, kLargeFactor, 32.0);
  const double beta_slow = scaling.Real("beta_slow", 1e-6, kLargeFactor, 1.0);
  const double trained =
      scaling.Int("original_max_position_embeddings", 1, int64_t{1} << 32, input.max_positions);
  const double d = input.head_dim;
  auto dimension_of = [&](double rotations) {
    return d * std::log(trained / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = dimension_of(beta_fast);
  double high = dimension_of(beta_slow);
  if (scaling.Bool("truncate", true)) {
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
  if (scaling.Has("attention_factor")) return scaling.Real("attention_factor", 1e-6, kLargeFactor);
  if (scaling.Has("mscale") && scaling.Has("mscale_all_dim")) {
    return mscale(scaling.Real("mscale", 0, kLargeFactor)) /
           mscale(scaling.Real("mscale_all_dim", 0, kLargeFactor));
  }
  return mscale(1.0);
}

// LongRoPE, Ding et al. 2024 (arXiv 2402.13753): one factor per frequency.
double ScaleLongRope(JsonReader& scaling, const RopeInput& input, const nlohmann::json& config,
                     std::vector<double>* frequencies) {
  const double trained =
      scaling.Int("original_max_position_embeddings", 2, int64_t{1} << 32,
                  config.value("original_max_position_embeddings", input.max_positions));
  const char* key = input.sequence_length > trained ? "long_factor" : "short_factor";
  const std::vector<double> factors = scaling.Reals(key);
  if (factors.size() != frequencies->size()) {
    scaling.Problem(key, absl::StrCat(factors.size(), " numbers"),
                    absl::StrCat(frequencies->size(), " numbers (half of the head dimension)"));
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

}  // namespace

RopeConfig ReadRope(const nlohmann::json& config, const RopeInput& input,
                    std::vector<std::string>* problems) {
  RopeConfig rope;
  JsonReader top(config, "", problems);
  const nlohmann::json empty = nlohmann::json::object();
  const char* section = top.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const nlohmann::json* object = top.Object(section);
  JsonReader scaling(object == nullptr ? empty : *object, absl::StrCat(section, "."), problems);

  const double theta = scaling.Has("rope_theta")
                           ? scaling.Real("rope_theta", 1.0 + 1e-6, 1e12)
                           : top.Real("rope_theta", 1.0 + 1e-6, 1e12, 10000.0);
  rope.inverse_frequency = Frequencies(theta, input.head_dim);
  const std::string type = scaling.String("rope_type", scaling.String("type", "default"));
  if (type == "linear") {
    const double factor = scaling.Real("factor", 1e-6, kLargeFactor);
    for (double& f : rope.inverse_frequency) f /= factor;
  } else if (type == "dynamic") {
    // NTK-aware base change; without effect up to the trained length.
    const double factor = scaling.Real("factor", 1.0, kLargeFactor);
    const double trained = input.max_positions;
    const double length = std::max<double>(input.sequence_length, trained);
    const double d = input.head_dim;
    if (d > 2) {
      const double grown = theta * std::pow(factor * length / trained - (factor - 1), d / (d - 2));
      rope.inverse_frequency = Frequencies(grown, input.head_dim);
    }
  } else if (type == "llama3") {
    ScaleLlama3(scaling, &rope.inverse_frequency);
  } else if (type == "yarn") {
    rope.attention_factor = ScaleYarn(scaling, input, theta, &rope.inverse_frequency);
  } else if (type == "longrope" || type == "su") {
    rope.attention_factor = ScaleLongRope(scaling, input, config, &rope.inverse_frequency);
  } else if (type != "default") {
    scaling.Problem("rope_type", absl::StrCat("\"", type, "\""),
                    "one of default, linear, dynamic, yarn, llama3, longrope");
  }
  return rope;
}

}  // namespace terrace
