// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "worker/daemon/rank_metrics.h"

namespace terrace {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr auto kGauge = MetricKind::kGauge;
constexpr auto kCounter = MetricKind::kCounter;

MetricFamily FamilyOf(const Metric& metric) {
  const bool counter = metric.kind == kCounter;
  return {metric.name, metric.help, counter ? MetricType::Counter : MetricType::Gauge, {}};
}

void Add(MetricFamily& family, Labels labels, double value) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  for (ClientMetric::Label& label : metric.label) label.value = LabelValue(label.value);
  (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

Labels RankLabels(const Supervisor::Metrics& rank) {
  return {{"job", rank.job}, {"rank", absl::StrCat(rank.rank)}};
}

std::string Lower(const std::string& name) { return absl::AsciiStrToLower(name); }
std::string TierLabel(v1::Tier tier) { return Lower(v1::Tier_Name(tier)); }

// ---- of the worker ----------------------------------------------------------------------------

int64_t NvmeCapacity(const WorkerSnapshot& snapshot) {
  int64_t nvme = 0;  // ranks of one node share their file systems as a rule
  for (const Supervisor::Metrics& rank : snapshot.ranks) {
    for (const v1::TierMemory& tier : rank.memory.tiers()) {
      if (tier.tier() == v1::NVME) nvme = std::max(nvme, tier.capacity_bytes());
    }
  }
  return nvme;
}

void AddIfKnown(MetricFamily& family, Labels labels, int64_t bytes) {
  if (bytes > 0) Add(family, std::move(labels), static_cast<double>(bytes));
}

struct WorkerSeries {
  Metric metric;
  void (*add)(const WorkerSnapshot&, MetricFamily&);
};

const WorkerSeries kWorkerSeries[] = {
    {{"terrace_memory_capacity_bytes", kGauge, "bytes", "tier",
      "Bytes that this worker has: all devices, the node's memory, the file systems of offloaded "
      "jobs."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       Add(family, {{"tier", "device"}},
           static_cast<double>(snapshot.device_memory_bytes) * snapshot.devices);
       Add(family, {{"tier", "host"}}, static_cast<double>(snapshot.memory_bytes));
       AddIfKnown(family, {{"tier", "nvme"}}, NvmeCapacity(snapshot));
     }},
    {{"terrace_memory_available_bytes", kGauge, "bytes", "tier",
      "Bytes that are left of the node's memory and of the fullest drive that a rank offloads to."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       AddIfKnown(family, {{"tier", "host"}}, snapshot.use.host_available_bytes);
       AddIfKnown(family, {{"tier", "nvme"}}, snapshot.nvme_available_bytes);
     }},
    {{"terrace_memory_lock_limit_bytes", kGauge, "bytes", "",
      "Bytes that a rank here may lock (RLIMIT_MEMLOCK); absent where there is no limit, as with "
      "CAP_IPC_LOCK."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       AddIfKnown(family, {}, snapshot.use.lock_limit_bytes);
     }},
    {{"terrace_node_energy_joules_total", kCounter, "joules", "domain",
      "Energy of the node's processors since the first scrape, by RAPL; absent where the kernel "
      "does not tell this user."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       for (const auto& [domain, joules] : snapshot.use.joules)
         Add(family, {{"domain", domain}}, joules);
     }},
    {{"terrace_worker_devices", kGauge, "", "", "Devices of this worker."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       Add(family, {}, snapshot.devices);
     }},
    {{"terrace_worker_ranks", kGauge, "", "", "Live ranks of this worker."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       Add(family, {}, static_cast<double>(snapshot.ranks.size()));
     }},
    {{"terrace_worker_connected", kGauge, "", "", "1 while the coordinator is reached, else 0."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       Add(family, {}, snapshot.connected ? 1 : 0);
     }},
    {{"terrace_rank_confinement_info", kGauge, "", "user, landlock, seccomp, roots",
      "1; as which user ranks run here, and what keeps them from other files and calls: the "
      "version of Landlock (0: none), seccomp, and whether paths of jobs lie below roots."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       const RankConfinement& confinement = snapshot.confinement;
       const auto yes = [](bool is) { return is ? "yes" : "no"; };
       Add(family,
           {{"user", confinement.user},
            {"landlock", absl::StrCat(confinement.landlock)},
            {"seccomp", yes(confinement.seccomp)},
            {"roots", yes(confinement.roots)}},
           1);
     }},
    {{"terrace_build_info", kGauge, "", "program, version", "1; what runs here."},
     [](const WorkerSnapshot& snapshot, MetricFamily& family) {
       Add(family, {{"program", "terrace-worker"}, {"version", snapshot.version}}, 1);
     }},
};

// ---- of ranks ---------------------------------------------------------------------------------

constexpr Metric kLiveBytes = {"terrace_memory_bytes", kGauge, "bytes", "job, rank, tier, class",
                               "Bytes in live buffers at the moment of the scrape."};

void AddTiers(const WorkerSnapshot& snapshot, std::vector<MetricFamily>& families) {
  MetricFamily live = FamilyOf(kLiveBytes);
  for (const Supervisor::Metrics& rank : snapshot.ranks) {
    for (const v1::TierMemory& tier : rank.memory.tiers()) {
      for (const v1::LiveClass& line : tier.live()) {
        Labels labels = RankLabels(rank);
        labels.push_back({"tier", TierLabel(tier.tier())});
        labels.push_back({"class", Lower(v1::BufferClass_Name(line.class_()))});
        Add(live, std::move(labels), static_cast<double>(line.bytes()));
      }
    }
  }
  families.push_back(std::move(live));
  for (const TierSeries& series : AllTierSeries()) {
    MetricFamily& family = families.emplace_back(FamilyOf(series.metric));
    for (const Supervisor::Metrics& rank : snapshot.ranks) {
      for (const v1::TierMemory& tier : rank.memory.tiers()) {
        Labels labels = RankLabels(rank);
        labels.push_back({"tier", TierLabel(tier.tier())});
        Add(family, std::move(labels), static_cast<double>(series.value(tier)));
      }
    }
  }
}

constexpr Metric kLayerBytes = {
    "terrace_memory_layer_peak_bytes", kGauge, "bytes", "job, rank, tier, layer",
    "Most bytes that a layer's buffers hold at any moment of a step, by the program; of the 8 "
    "largest layers of each tier."};

MetricFamily Layers(const WorkerSnapshot& snapshot) {
  MetricFamily family = FamilyOf(kLayerBytes);
  for (const Supervisor::Metrics& rank : snapshot.ranks) {
    for (const HotLayer& hot : rank.hot_layers) {
      Labels labels = RankLabels(rank);
      labels.push_back({"tier", TierLabel(hot.tier)});
      labels.push_back({"layer", hot.layer});
      Add(family, std::move(labels), static_cast<double>(hot.bytes));
    }
  }
  return family;
}

void AddTraffic(const WorkerSnapshot& snapshot, std::vector<MetricFamily>& families) {
  for (const TrafficSeries& series : AllTrafficSeries()) {
    MetricFamily& family = families.emplace_back(FamilyOf(series.metric));
    for (const Supervisor::Metrics& rank : snapshot.ranks) {
      for (const v1::OffloadTraffic& traffic : rank.memory.traffic()) {
        Labels labels = RankLabels(rank);
        labels.push_back({"tier", TierLabel(traffic.tier())});
        labels.push_back({"direction", traffic.write() ? "write" : "read"});
        Add(family, std::move(labels), series.value(traffic));
      }
    }
  }
}

std::vector<MetricFamily> Families(const WorkerSnapshot& snapshot) {
  std::vector<MetricFamily> families;
  AddTiers(snapshot, families);
  families.push_back(Layers(snapshot));
  AddTraffic(snapshot, families);
  for (const MemorySeries& series : AllMemorySeries()) {
    MetricFamily& family = families.emplace_back(FamilyOf(series.metric));
    for (const Supervisor::Metrics& rank : snapshot.ranks)
      Add(family, RankLabels(rank), series.value(rank.memory));
  }
  for (const PlaceSeries& series : AllPlaceSeries()) {
    MetricFamily& family = families.emplace_back(FamilyOf(series.metric));
    for (const Supervisor::Metrics& rank : snapshot.ranks)
      Add(family, RankLabels(rank), series.value(rank.place));
  }
  for (const RankSeries& series : AllRankSeries()) {
    MetricFamily& family = families.emplace_back(FamilyOf(series.metric));
    for (const Supervisor::Metrics& rank : snapshot.ranks)
      Add(family, RankLabels(rank), series.value(rank.metrics));
  }
  for (const WorkerSeries& series : kWorkerSeries)
    series.add(snapshot, families.emplace_back(FamilyOf(series.metric)));
  return families;
}

}  // namespace

std::vector<Metric> WorkerMetricTable() {
  std::vector<Metric> table = {kLiveBytes};
  for (const TierSeries& series : AllTierSeries()) table.push_back(series.metric);
  table.push_back(kLayerBytes);
  for (const TrafficSeries& series : AllTrafficSeries()) table.push_back(series.metric);
  for (const MemorySeries& series : AllMemorySeries()) table.push_back(series.metric);
  for (const PlaceSeries& series : AllPlaceSeries()) table.push_back(series.metric);
  for (const RankSeries& series : AllRankSeries()) table.push_back(series.metric);
  for (const WorkerSeries& series : kWorkerSeries) table.push_back(series.metric);
  return table;
}

std::string WorkerMetricsText(const WorkerSnapshot& snapshot) {
  return prometheus::TextSerializer().Serialize(Families(snapshot));
}

}  // namespace terrace
