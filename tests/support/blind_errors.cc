// SPDX-License-Identifier: Apache-2.0
#include "tests/support/blind_errors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "coordinator/hardware/rates.h"

namespace terrace {
namespace {

// A constant of calibration.cc: what its own sources cite over what the catalogue has, and how far
// (in logarithms) such sources lie apart.
struct Constant {
  Rate rate = Rate::kMatmul;
  const char* precision = "";
  bool one_generation = true;
  Generation generation = Generation::kHopper;
  double cited = 1;
};
constexpr double kCitedSpread = 0.12;
// Of one run around a perfect model: what a report leaves out.
constexpr double kRunSpread = 0.08;

constexpr std::array kConstants = {
    // Best products of sweeps 0.82 to 0.86, against 0.79.
    Constant{Rate::kMatmul, "bf16", true, Generation::kAmpere, 0.84 / 0.79},
    Constant{Rate::kMatmul, "bf16", true, Generation::kAda, 1},
    // 0.80 and 0.73 are cited, against 0.72.
    Constant{Rate::kMatmul, "bf16", true, Generation::kHopper, 0.765 / 0.72},
    Constant{Rate::kMatmul, "fp8", true, Generation::kHopper, 1},
    Constant{Rate::kAttention, "", true, Generation::kAmpere, 1},
    Constant{Rate::kAttention, "", true, Generation::kAda, 1},
    Constant{Rate::kAttention, "", true, Generation::kHopper, 1},
    Constant{.rate = Rate::kMemory, .one_generation = false},
    Constant{.rate = Rate::kNode, .one_generation = false},
    Constant{.rate = Rate::kNetwork, .one_generation = false},
    Constant{.rate = Rate::kLaunch, .one_generation = false},
};
constexpr size_t kCount = kConstants.size();
using Vector = std::array<double, kCount>;  // logarithms of factors on the catalogue's constants

v1::HardwareProfile With(const PublishedRun& run, const Vector& factors) {
  v1::HardwareProfile profile = run.profile;
  for (size_t i = 0; i < kCount; ++i) {
    const Constant& one = kConstants[i];
    if (one.one_generation && one.generation != run.generation) continue;
    if (factors[i] != 0) profile = WithRate(profile, one.rate, std::exp(factors[i]), one.precision);
  }
  return profile;
}

double SpeedWith(const PublishedRun& run, v1::HardwareProfile profile) {
  PublishedRun other = run;
  other.profile = std::move(profile);
  return Predict(other).tokens_per_second_per_device;
}

struct Linear {
  double error = 0;  // logarithm of predicted over measured speed, at what is cited
  Vector slopes = {};
};

Linear Linearised(const PublishedRun& run, const Vector& cited) {
  constexpr double kStep = 0.05;
  Linear linear;
  const double at = std::log(SpeedWith(run, With(run, cited)));
  linear.error = at - std::log(run.tokens_per_second_per_device);
  for (size_t i = 0; i < kCount; ++i) {
    const Constant& one = kConstants[i];
    if (one.one_generation && one.generation != run.generation) continue;
    Vector moved = cited;
    moved[i] -= kStep;
    linear.slopes[i] = (at - std::log(SpeedWith(run, With(run, moved)))) / kStep;
  }
  return linear;
}

// Gauss's elimination of a positive definite system.
Vector Solved(std::array<Vector, kCount> matrix, Vector right) {
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t j = i + 1; j < kCount; ++j) {
      const double times = matrix[j][i] / matrix[i][i];
      for (size_t k = i; k < kCount; ++k) matrix[j][k] -= times * matrix[i][k];
      right[j] -= times * right[i];
    }
  }
  for (size_t i = kCount; i-- > 0;) {
    for (size_t k = i + 1; k < kCount; ++k) right[i] -= matrix[i][k] * right[k];
    right[i] /= matrix[i][i];
  }
  return right;
}

Vector FittedWithout(const std::vector<const PublishedRun*>& runs,
                     const std::vector<Linear>& linear, const std::string& source,
                     const Vector& cited) {
  std::array<Vector, kCount> matrix = {};
  Vector right = {};
  for (size_t i = 0; i < kCount; ++i) matrix[i][i] = 1 / (kCitedSpread * kCitedSpread);
  for (size_t r = 0; r < runs.size(); ++r) {
    if (SourceOf(*runs[r]) == source) continue;
    for (size_t i = 0; i < kCount; ++i) {
      const double weight = linear[r].slopes[i] / (kRunSpread * kRunSpread);
      right[i] -= weight * linear[r].error;
      for (size_t j = 0; j < kCount; ++j) matrix[i][j] += weight * linear[r].slopes[j];
    }
  }
  Vector fitted = Solved(matrix, right);
  for (size_t i = 0; i < kCount; ++i) fitted[i] += cited[i];
  return fitted;
}

std::vector<const PublishedRun*> Comparable(const std::vector<PublishedRun>& runs) {
  std::vector<const PublishedRun*> comparable;
  for (const PublishedRun& run : runs) {
    if (run.not_expressible.empty() && run.tokens_per_second_per_device > 0) {
      comparable.push_back(&run);
    }
  }
  return comparable;
}

}  // namespace

std::vector<BlindPrediction> LeaveOneSourceOut(const std::vector<PublishedRun>& all) {
  const std::vector<const PublishedRun*> runs = Comparable(all);
  Vector cited = {};
  for (size_t i = 0; i < kCount; ++i) cited[i] = std::log(kConstants[i].cited);
  std::vector<Linear> linear;
  std::set<std::string> sources;
  for (const PublishedRun* run : runs) {
    linear.push_back(Linearised(*run, cited));
    sources.insert(SourceOf(*run));
  }
  std::vector<BlindPrediction> predictions;
  for (const std::string& source : sources) {
    const Vector fitted = FittedWithout(runs, linear, source, cited);
    for (const PublishedRun* run : runs) {
      if (SourceOf(*run) != source) continue;
      v1::HardwareProfile profile = With(*run, fitted);
      const double speed = SpeedWith(*run, profile);
      predictions.push_back({run, std::move(profile), speed});
    }
  }
  return predictions;
}

std::vector<BlindPrediction> AsCatalogued(const std::vector<PublishedRun>& all) {
  std::vector<BlindPrediction> predictions;
  for (const PublishedRun* run : Comparable(all)) {
    predictions.push_back({run, run->profile, Predict(*run).tokens_per_second_per_device});
  }
  return predictions;
}

BlindSummary SummaryOf(const std::vector<BlindPrediction>& predictions, const std::string& source) {
  std::vector<double> errors;
  BlindSummary summary;
  for (const BlindPrediction& one : predictions) {
    if (!source.empty() && SourceOf(*one.run) != source) continue;
    const double error = one.TimeRatio() - 1;
    errors.push_back(std::abs(error));
    summary.mean += std::abs(error);
    summary.bias += error;
    summary.worst = std::max(summary.worst, std::abs(error));
  }
  summary.runs = static_cast<int>(errors.size());
  if (errors.empty()) return summary;
  summary.mean /= summary.runs;
  summary.bias /= summary.runs;
  std::sort(errors.begin(), errors.end());
  const size_t middle = errors.size() / 2;
  summary.median =
      errors.size() % 2 == 1 ? errors[middle] : (errors[middle - 1] + errors[middle]) / 2;
  return summary;
}

double TimeRatioAt(const std::vector<BlindPrediction>& predictions, double share) {
  std::map<std::string, double> runs;
  for (const BlindPrediction& one : predictions) runs[SourceOf(*one.run)] += 1;
  std::vector<std::pair<double, double>> weighted;  // ratio, weight
  for (const BlindPrediction& one : predictions) {
    weighted.emplace_back(one.TimeRatio(), 1 / runs[SourceOf(*one.run)]);
  }
  std::sort(weighted.begin(), weighted.end());
  double below = 0;
  for (const auto& [ratio, weight] : weighted) {
    below += weight;
    if (below >= share * static_cast<double>(runs.size())) return ratio;
  }
  return weighted.back().first;
}

double Coverage(const std::vector<BlindPrediction>& predictions, double low, double high) {
  const auto within =
      std::count_if(predictions.begin(), predictions.end(), [&](const BlindPrediction& one) {
        return one.TimeRatio() >= low && one.TimeRatio() <= high;
      });
  return static_cast<double>(within) / static_cast<double>(std::max<size_t>(1, predictions.size()));
}

}  // namespace terrace
