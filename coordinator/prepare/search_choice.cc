// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search_choice.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

// Of layouts that differ by less in time, the one with the least memory.
constexpr double kSameTime = 1.02;
// A less plain layout is chosen from here on. Steps of milliseconds are mostly latencies, which
// predictions know least.
constexpr double kWorthIt = 1.1;
constexpr double kWorthItSeconds = 0.05;

double SecondsOf(const Evaluated& one) { return one.simulation.step_seconds; }

std::optional<size_t> BestOfKind(const std::vector<TriedLayout>& tried, LayoutKind kind) {
  std::optional<size_t> fastest, best;
  const auto counts = [&](const TriedLayout& one) {
    return one.kind == kind && one.evaluated.fits;
  };
  for (size_t i = 0; i < tried.size(); ++i) {
    if (!counts(tried[i])) continue;
    const double seconds = SecondsOf(tried[i].evaluated);
    if (!fastest || seconds < SecondsOf(tried[*fastest].evaluated)) fastest = i;
  }
  for (size_t i = 0; fastest && i < tried.size(); ++i) {
    if (!counts(tried[i])) continue;
    const Evaluated& one = tried[i].evaluated;
    if (SecondsOf(one) > kSameTime * SecondsOf(tried[*fastest].evaluated)) continue;
    if (!best || one.device_bytes < tried[*best].evaluated.device_bytes) best = i;
  }
  return best;
}

}  // namespace

double WorthIt(double plain_seconds) {
  return std::min(plain_seconds / kWorthIt, plain_seconds - kWorthItSeconds);
}

std::optional<size_t> BestOf(const std::vector<TriedLayout>& tried) {
  std::optional<size_t> best;
  for (const LayoutKind kind :
       {LayoutKind::kPlain, LayoutKind::kSharded, LayoutKind::kOnDevice, LayoutKind::kOnTiers}) {
    const std::optional<size_t> one = BestOfKind(tried, kind);
    if (!one) continue;
    const double seconds = SecondsOf(tried[*one].evaluated);
    if (!best || seconds < WorthIt(SecondsOf(tried[*best].evaluated))) best = one;
  }
  return best;
}

std::vector<Evaluated> InOrder(size_t first, std::vector<TriedLayout> tried) {
  std::vector<Evaluated> ordered;
  ordered.push_back(std::move(tried[first].evaluated));
  tried.erase(tried.begin() + static_cast<std::ptrdiff_t>(first));
  for (TriedLayout& one : tried) ordered.push_back(std::move(one.evaluated));
  std::stable_sort(ordered.begin() + 1, ordered.end(), [](const Evaluated& a, const Evaluated& b) {
    return std::pair(!a.fits, SecondsOf(a)) < std::pair(!b.fits, SecondsOf(b));
  });
  return ordered;
}

size_t NearestToFit(const v1::JobSpec& spec, const Budget& budget,
                    const std::vector<TriedLayout>& tried) {
  const TierLimits limits = LimitsOf(spec);
  const auto over = [&](const Evaluated& one) {
    const auto part = [](int64_t bytes, int64_t limit) {
      return limit == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(limit);
    };
    return std::max({part(one.device_bytes, budget.device_memory_bytes),
                     part(one.host_bytes, limits.host_bytes),
                     part(one.nvme_bytes, limits.nvme_bytes)});
  };
  const auto nearest =
      std::min_element(tried.begin(), tried.end(), [&](const TriedLayout& a, const TriedLayout& b) {
        return over(a.evaluated) < over(b.evaluated);
      });
  return static_cast<size_t>(nearest - tried.begin());
}

std::vector<Proposal> SmallerOnes(const std::vector<Proposal>& proposals, const Evaluated& chosen) {
  std::vector<Proposal> smaller;
  int64_t least = chosen.device_bytes - chosen.programs[0].external_bytes();
  for (const Proposal& one : proposals) {
    if (one.to_fit || one.memory.total() * 10 > least * 9) continue;
    least = one.memory.total();
    smaller.push_back(one);
  }
  return smaller;
}

}  // namespace terrace
