// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/tcp.h"

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
    {"terrace_memory_predicted_bytes", "Arena bytes that the plan predicted.", kGauge,
     [](const v1::RankMetrics& m) { return static_cast<double>(m.arena_predicted_bytes()); }},
    {"terrace_memory_limit_bytes", "Bytes that the rank was admitted under; 0: none.", kGauge,
     [](const v1::RankMetrics& m) { return static_cast<double>(m.limit_bytes()); }},
    {"terrace_memory_external_bytes", "Bytes of the process outside its arenas.", kGauge,
     [](const v1::RankMetrics& m) { return static_cast<double>(m.external_bytes()); }},
    {"terrace_allocator_reserved_bytes", "Arena bytes reserved.", kGauge,
     [](const v1::RankMetrics& m) { return static_cast<double>(m.arena_reserved_bytes()); }},
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

// Bytes of no class are what alignment and packing leave unused.
std::string ClassLabel(uint32_t buffer_class) {
  if (buffer_class == v1::BUFFER_CLASS_UNSPECIFIED) return "unused";
  return absl::AsciiStrToLower(v1::BufferClass_Name(static_cast<v1::BufferClass>(buffer_class)));
}

MetricFamily MemoryByClass(const WorkerSnapshot& snapshot) {
  MetricFamily family{
      "terrace_memory_bytes", "Arena bytes by tier and class at the peak of a step.", kGauge, {}};
  for (const Supervisor::Metrics& rank : snapshot.ranks) {
    for (const v1::ClassBytes& line : rank.metrics.memory()) {
      Labels labels = RankLabels(rank);
      labels.push_back(
          {"tier", absl::AsciiStrToLower(v1::Tier_Name(static_cast<v1::Tier>(line.tier())))});
      labels.push_back({"class", ClassLabel(line.class_())});
      Add(family, std::move(labels), static_cast<double>(line.bytes()));
    }
  }
  return family;
}

class RankCollector final : public prometheus::Collectable {
 public:
  explicit RankCollector(WorkerMetrics::Snapshot snapshot) : snapshot_(std::move(snapshot)) {}

  std::vector<MetricFamily> Collect() const override {
    WorkerSnapshot snapshot;
    if (!snapshot_(&snapshot)) return {};
    std::vector<MetricFamily> families;
    families.push_back(MemoryByClass(snapshot));
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

 private:
  static void AddNode(const WorkerSnapshot& snapshot, std::vector<MetricFamily>& families) {
    const auto add = [&families](const char* name, const char* help, Labels labels, double value) {
      Add(families.emplace_back(MetricFamily{name, help, kGauge, {}}), std::move(labels), value);
    };
    add("terrace_memory_capacity_bytes", "Bytes offered by all devices of this worker.",
        {{"tier", "device"}}, static_cast<double>(snapshot.device_memory_bytes) * snapshot.devices);
    add("terrace_worker_devices", "Devices of this worker.", {}, snapshot.devices);
    add("terrace_worker_ranks", "Live ranks of this worker.", {},
        static_cast<double>(snapshot.ranks.size()));
    add("terrace_worker_connected", "1 while the coordinator is reached.", {}, snapshot.connected);
  }

  const WorkerMetrics::Snapshot snapshot_;
};

}  // namespace

class WorkerMetrics::Impl {
 public:
  explicit Impl(Snapshot snapshot)
      : collector_(std::make_shared<RankCollector>(std::move(snapshot))) {}

  // The server looks at its stop flag after a connection, or twice a second: it gets one.
  ~Impl() {
    if (exposer_ == nullptr) return;
    std::atomic<bool> stopped = false;
    std::thread stop([this, &stopped] {
      exposer_.reset();
      stopped = true;
    });
    while (!stopped && TouchPort(port_)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop.join();
  }

  absl::StatusOr<int> Listen(const std::string& address) {
    try {
      exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
    } catch (const std::exception&) {  // civetweb does not say why
      return absl::UnavailableError(
          absl::StrCat("--metrics-listen: cannot listen on ", address,
                       ": it is in use or no address of this machine; choose another"));
    }
    exposer_->RegisterCollectable(collector_);
    port_ = exposer_->GetListeningPorts().front();
    return port_;
  }

 private:
  const std::shared_ptr<RankCollector> collector_;  // shared: the exposer wants a weak pointer
  std::unique_ptr<prometheus::Exposer> exposer_;
  int port_ = 0;
};

WorkerMetrics::WorkerMetrics(Snapshot snapshot)
    : impl_(std::make_unique<Impl>(std::move(snapshot))) {}
WorkerMetrics::~WorkerMetrics() = default;

absl::StatusOr<int> WorkerMetrics::Listen(const std::string& address) {
  return impl_->Listen(address);
}

}  // namespace terrace
