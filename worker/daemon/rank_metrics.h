// The series that a worker's /metrics has of each live rank: names and meaning, and how each is
// read off what the rank last counted and holds.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/types/span.h"
#include "base/metric.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

// A value of each live rank; labels job and rank.
struct RankSeries {
  Metric metric;
  double (*value)(const v1::RankMetrics&);
};
absl::Span<const RankSeries> AllRankSeries();

// A value of each live rank's memory; labels job and rank.
struct MemorySeries {
  Metric metric;
  double (*value)(const v1::RankMemory&);
};
absl::Span<const MemorySeries> AllMemorySeries();

// A value of where each live rank stands; labels job and rank.
struct PlaceSeries {
  Metric metric;
  double (*value)(const v1::RankPlace&);
};
absl::Span<const PlaceSeries> AllPlaceSeries();

// A value of each tier of each live rank; labels job, rank and tier.
struct TierSeries {
  Metric metric;
  int64_t (*value)(const v1::TierMemory&);
};
absl::Span<const TierSeries> AllTierSeries();

// A value of each way between tiers of each live rank; labels job, rank, tier and direction.
struct TrafficSeries {
  Metric metric;
  double (*value)(const v1::OffloadTraffic&);
};
absl::Span<const TrafficSeries> AllTrafficSeries();

}  // namespace terrace
