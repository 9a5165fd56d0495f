// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/earliest.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace terrace {
namespace {

// When `devices` of the worker are free together.
int64_t FreeTogetherMs(const QueueNode& node, uint32_t devices) {
  std::vector<int64_t> times = node.free_at_ms;
  const auto last = times.begin() + static_cast<ptrdiff_t>(devices) - 1;
  std::nth_element(times.begin(), last, times.end());
  return *last;
}

struct Candidate {
  int64_t at_ms = kUnknownMs;
  uint32_t free_now = 0;
  size_t node = 0;
};

}  // namespace

Earliest EarliestFor(const Need& need, absl::Span<const size_t> matching,
                     absl::Span<const QueueNode> nodes) {
  std::vector<Candidate> candidates;
  for (const size_t index : matching) {
    const QueueNode& node = nodes[index];
    if (!node.ready || (need.nodes > 1 && !node.problem.empty())) continue;
    const int64_t at_ms = FreeTogetherMs(node, need.devices);
    if (at_ms != kUnknownMs) candidates.push_back({at_ms, FreeDevices(node), index});
  }
  if (candidates.size() < need.nodes) return {};
  const auto last = candidates.begin() + static_cast<ptrdiff_t>(need.nodes) - 1;
  std::nth_element(candidates.begin(), last, candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.at_ms < b.at_ms; });
  Earliest earliest;
  earliest.at_ms = last->at_ms;
  std::erase_if(candidates, [&](const Candidate& one) { return one.at_ms > earliest.at_ms; });
  std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    return std::make_tuple(a.free_now, std::cref(nodes[a.node].name)) <
           std::make_tuple(b.free_now, std::cref(nodes[b.node].name));
  });
  for (uint32_t i = 0; i < need.nodes; ++i) earliest.nodes.push_back(candidates[i].node);
  return earliest;
}

void Hold(const Need& need, const Earliest& earliest, int64_t until_ms,
          std::vector<QueueNode>* nodes) {
  for (const size_t index : earliest.nodes) {
    std::vector<int64_t>& times = (*nodes)[index].free_at_ms;
    for (uint32_t i = 0; i < need.devices; ++i)
      *std::min_element(times.begin(), times.end()) = until_ms;
  }
}

}  // namespace terrace
