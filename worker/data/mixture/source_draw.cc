// SPDX-License-Identifier: Apache-2.0
#include "worker/data/mixture/source_draw.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace terrace {
namespace {

constexpr double kUnits = 1 << 24;
constexpr int64_t kSamplesOfASource = 16;  // in a block, on average over the sources

std::vector<int64_t> UnitsOf(const std::vector<double>& weights) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> units;
  for (const double weight : weights) {
    units.push_back(weight > 0 ? std::max(std::llround(weight / all * kUnits), 1LL) : 0);
  }
  return units;
}

int64_t UnitsOfASample(const std::vector<int64_t>& units) {
  const int64_t all = std::accumulate(units.begin(), units.end(), int64_t{0});
  const auto sources = static_cast<int64_t>(units.size());
  return std::max<int64_t>(1, all / (kSamplesOfASource * sources));
}

}  // namespace

SourceDraw::SourceDraw(const std::vector<double>& weights, uint64_t key)
    : units_(UnitsOf(weights)), units_of_a_sample_(UnitsOfASample(units_)), blocks_(units_, key) {}

SourceDraw::Place SourceDraw::At(int64_t sample) const {
  if (units_.size() == 1) return {0, sample};
  const DrawnBatch drawn = blocks_.Draw(sample, units_of_a_sample_);
  return {drawn.bucket, drawn.first / units_of_a_sample_};
}

WholeEpochs SourceDraw::WholeBlocksBefore(int64_t sample) const {
  if (units_.size() == 1) return {sample, {sample}};
  return blocks_.WholeEpochsBefore(sample, units_of_a_sample_);
}

std::vector<int64_t> SourceDraw::Counts(int64_t samples) const {
  const WholeEpochs whole = WholeBlocksBefore(samples);
  std::vector<int64_t> counts = whole.batches;
  for (int64_t sample = whole.steps; sample < samples; ++sample) ++counts[At(sample).source];
  return counts;
}

}  // namespace terrace
