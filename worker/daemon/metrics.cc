// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// One family: a value of each live rank.
struct RankSeries {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const v1::RankMetrics&);
};

constexpr auto kGauge = MetricType::Gauge;
constexpr auto kCounter = MetricType::Counter;

const RankSeries kRankSeries[] = {
    {"terrace_step_seconds", "Duration of the last step.", kGauge,
     [](const v1::RankMetrics& m) { return m.step_seconds(); }},
    {"terrace_steps_total", "Steps done since the rank started.", kCounter,
     [](const v1::RankMetrics& m) { return static_cast<double>(m.steps()); }},
    {"terrace_tokens_total", "Tokens trained on since the rank started.", kCounter,
     [](const v1::RankMetrics& m) { return static_cast<double>(m.tokens()); }},
    {"terrace_loss", "Mean loss of the last step, nats a token.", kGauge,
     [](const v1::RankMetrics& m) { return m.loss(); }},
    {"terrace_grad_norm", "Global gradient norm of the last step, before clipping.", kGauge,
     [](const v1::RankMetrics& m) { return m.grad_norm(); }},
    {"terrace_loss_scale", "Loss scale of the next step; 0: the job has none.", kGauge,
     [](const v1::RankMetrics& m) { return m.loss_scale(); }},
    {"terrace_skipped_steps_total", "Steps whose gradient was not finite, of the whole job.",
     kCounter, [](const v1::RankMetrics& m) { return static_cast<double>(m.skipped_steps()); }},
    {"terrace_mfu_ratio", "Model FLOP/s over the device's peak, 0 to 1.", kGauge,
     [](const v1::RankMetrics& m) { return m.mfu_ratio(); }},
    {"terrace_flops_per_second", "Model FLOP/s of the last step.", kGauge,
     [](const v1::RankMetrics& m) { return m.flops_per_second(); }},
    {"terrace_step_last_completed_timestamp_seconds", "Unix time of the last step's end.", kGauge,
     [](const v1::RankMetrics& m) { return static_cast<double>(m.last_step_unix_ms()) / 1000; }},
    {"terrace_compute_seconds_total", "Busy time of the compute stream.", kCounter,
     [](const v1::RankMetrics& m) { return m.compute_seconds(); }},
    {"terrace_collective_seconds_total", "Busy time of the collective streams.", kCounter,
     [](const v1::RankMetrics& m) { return m.collective_seconds(); }},
    {"terrace_collective_exposed_seconds_total", "Time that compute waited for collectives.",
     kCounter, [](const v1::RankMetrics& m) { return m.collective_exposed_seconds(); }},
    {"terrace_checkpoint_bytes_total", "Bytes written to checkpoints.", kCounter,
     [](const v1::RankMetrics& m) { return static_cast<double>(m.checkpoint_bytes()); }},
    {"terrace_checkpoint_stall_seconds_total", "Time that steps waited for checkpoints.", kCounter,
     [](const v1::RankMetrics& m) { return m.checkpoint_stall_seconds(); }},
};

void Add(MetricFamily& family, Labels labels, double value) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  (family.type == kCounter ? metric.counter.value : metric.gauge.value) = value;
}

Labels RankLabels(const Supervisor::Metrics& rank) {
  return {{"job", rank.job}, {"rank", absl::StrCat(rank.rank)}};
}

std::string Lower(const std::string& name) { return absl::AsciiStrToLower(name); }
std::string TierLabel(v1::Tier tier) { return Lower(v1::Tier_Name(tier)); }

// One family: a value of each live rank's memory.
struct MemorySeries {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const v1::RankMemory&);
};

double OverReserved(const v1::RankMemory& m) {
  const v1::AllocatorStats& a = m.allocator();
  if (a.reserved_bytes() == 0) return 0;
  return 1 - static_cast<double>(a.allocated_bytes()) / static_cast<double>(a.reserved_bytes());
}
double OverFree(const v1::RankMemory& m) {
  const v1::AllocatorStats& a = m.allocator();
  const int64_t free = a.reserved_bytes() - a.allocated_bytes();
  if (free <= 0) return 0;
  return 1 - static_cast<double>(a.largest_free_block_bytes()) / static_cast<double>(free);
}

int64_t PlannedBytes(const v1::RankMemory& m) {
  int64_t bytes = m.external_allowed_bytes();
  for (const v1::TierMemory& tier : m.tiers())
    bytes += tier.tier() == v1::DEVICE ? tier.predicted_bytes() : 0;
  return bytes;
}

const MemorySeries kMemorySeries[] = {
    {"terrace_memory_external_bytes", "Bytes of the process outside its arenas.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.external_bytes()); }},
    {"terrace_memory_graph_bytes",
     "Bytes of the device, of those outside the arenas, that sequences as graphs took.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.graph_bytes()); }},
    {"terrace_memory_driver_bytes",
     "Bytes of the device as its driver counts the rank; 0: nobody counts.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.driver_bytes()); }},
    {"terrace_memory_planned_bytes",
     "Bytes of the device by the plan: arena and what is declared outside of it.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(PlannedBytes(m)); }},
    {"terrace_memory_host_pinned_bytes", "Bytes of the host arena that are locked.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.host_pinned_bytes()); }},
    {"terrace_allocator_allocated_bytes", "Bytes in use on the device.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().allocated_bytes()); }},
    {"terrace_allocator_active_bytes", "Bytes in use or not yet free on every stream.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().active_bytes()); }},
    {"terrace_allocator_reserved_bytes", "Bytes taken from the device.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().reserved_bytes()); }},
    {"terrace_allocator_requested_bytes", "Bytes asked for, before rounding.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().requested_bytes()); }},
    {"terrace_allocator_largest_free_block_bytes", "Largest free range of what is reserved.",
     kGauge,
     [](const v1::RankMemory& m) {
       return static_cast<double>(m.allocator().largest_free_block_bytes());
     }},
    {"terrace_allocator_step_peak_bytes", "Largest bytes in use during a step.", kGauge,
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().step_peak_bytes()); }},
    {"terrace_allocator_fragmentation_ratio", "1 - allocated / reserved.", kGauge, OverReserved},
    {"terrace_allocator_free_fragmentation_ratio", "1 - largest free block / free bytes.", kGauge,
     OverFree},
    {"terrace_allocator_retries_total", "Times that memory was given back to try again.", kCounter,
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().retries()); }},
    {"terrace_allocator_ooms_total", "Times that there was not enough memory.", kCounter,
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().ooms()); }},
    {"terrace_offload_stall_seconds_total", "Time that compute waited for copies between tiers.",
     kCounter, [](const v1::RankMemory& m) { return m.offload_stall_seconds(); }},
};

// One family: a value of each tier of each live rank.
struct TierSeries {
  const char* name;
  const char* help;
  int64_t (*value)(const v1::TierMemory&);
};
const TierSeries kTierSeries[] = {
    {"terrace_memory_predicted_bytes", "Arena bytes by the plan.",
     [](const v1::TierMemory& t) { return t.predicted_bytes(); }},
    {"terrace_memory_reserved_bytes", "Arena bytes reserved; of nvme the file.",
     [](const v1::TierMemory& t) { return t.reserved_bytes(); }},
    {"terrace_memory_limit_bytes", "Bytes that the rank was admitted under; 0: none.",
     [](const v1::TierMemory& t) { return t.limit_bytes(); }},
};

void AddTiers(const WorkerSnapshot& snapshot, std::vector<MetricFamily>& families) {
  MetricFamily live{"terrace_memory_bytes", "Bytes in live buffers now.", kGauge, {}};
  for (const TierSeries& series : kTierSeries) {
    MetricFamily family{series.name, series.help, kGauge, {}};
    for (const Supervisor::Metrics& rank : snapshot.ranks) {
      for (const v1::TierMemory& tier : rank.memory.tiers()) {
        Labels labels = RankLabels(rank);
        labels.push_back({"tier", TierLabel(tier.tier())});
        Add(family, std::move(labels), static_cast<double>(series.value(tier)));
      }
    }
    families.push_back(std::move(family));
  }
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
}

void AddTraffic(const WorkerSnapshot& snapshot, std::vector<MetricFamily>& families) {
  MetricFamily bytes{"terrace_offload_bytes_total", "Bytes moved between tiers.", kCounter, {}};
  MetricFamily seconds{
      "terrace_offload_seconds_total", "Busy time of copies between tiers.", kCounter, {}};
  for (const Supervisor::Metrics& rank : snapshot.ranks) {
    for (const v1::OffloadTraffic& traffic : rank.memory.traffic()) {
      Labels labels = RankLabels(rank);
      labels.push_back({"tier", TierLabel(traffic.tier())});
      labels.push_back({"direction", traffic.write() ? "write" : "read"});
      Add(bytes, labels, static_cast<double>(traffic.bytes()));
      Add(seconds, std::move(labels), traffic.seconds());
    }
  }
  families.push_back(std::move(bytes));
  families.push_back(std::move(seconds));
}

MetricFamily Capacity(const WorkerSnapshot& snapshot) {
  MetricFamily family{"terrace_memory_capacity_bytes",
                      "Bytes that this worker has: all devices, the node's memory, the file "
                      "systems of offloaded jobs.",
                      kGauge,
                      {}};
  Add(family, {{"tier", "device"}},
      static_cast<double>(snapshot.device_memory_bytes) * snapshot.devices);
  Add(family, {{"tier", "host"}}, static_cast<double>(snapshot.memory_bytes));
  int64_t nvme = 0;  // ranks of one node share their file systems as a rule
  for (const Supervisor::Metrics& rank : snapshot.ranks) {
    for (const v1::TierMemory& tier : rank.memory.tiers()) {
      if (tier.tier() == v1::NVME) nvme = std::max(nvme, tier.capacity_bytes());
    }
  }
  if (nvme > 0) Add(family, {{"tier", "nvme"}}, static_cast<double>(nvme));
  return family;
}

void AddNode(const WorkerSnapshot& snapshot, std::vector<MetricFamily>& families) {
  const auto add = [&families](const char* name, const char* help, double value) {
    Add(families.emplace_back(MetricFamily{name, help, kGauge, {}}), {}, value);
  };
  families.push_back(Capacity(snapshot));
  add("terrace_worker_devices", "Devices of this worker.", snapshot.devices);
  add("terrace_worker_ranks", "Live ranks of this worker.",
      static_cast<double>(snapshot.ranks.size()));
  add("terrace_worker_connected", "1 while the coordinator is reached.", snapshot.connected);
}

std::vector<MetricFamily> Families(const WorkerSnapshot& snapshot) {
  std::vector<MetricFamily> families;
  AddTiers(snapshot, families);
  AddTraffic(snapshot, families);
  for (const MemorySeries& series : kMemorySeries) {
    MetricFamily& family =
        families.emplace_back(MetricFamily{series.name, series.help, series.type, {}});
    for (const Supervisor::Metrics& rank : snapshot.ranks) {
      Add(family, RankLabels(rank), series.value(rank.memory));
    }
  }
  for (const RankSeries& series : kRankSeries) {
    MetricFamily& family =
        families.emplace_back(MetricFamily{series.name, series.help, series.type, {}});
    for (const Supervisor::Metrics& rank : snapshot.ranks) {
      Add(family, RankLabels(rank), series.value(rank.metrics));
    }
  }
  AddNode(snapshot, families);
  return families;
}

}  // namespace

std::string WorkerMetricsText(const WorkerSnapshot& snapshot) {
  return prometheus::TextSerializer().Serialize(Families(snapshot));
}

}  // namespace terrace
