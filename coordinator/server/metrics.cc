// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/metrics.h"

#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

void Add(MetricFamily& family, const std::string& label, const std::string& value, double number) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label.push_back({label, value});
  (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = number;
}

// "REASON_WORKER_LOST" -> "worker_lost".
std::string LabelOf(const std::string& name) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, "REASON_"));
}

class StatsCollector {
 public:
  explicit StatsCollector(CoordinatorMetrics::Snapshot snapshot) : snapshot_(std::move(snapshot)) {}

  std::vector<MetricFamily> Collect() const {
    ControlStats stats;
    if (!snapshot_(&stats)) return {};
    std::vector<MetricFamily> families = {
        {"terrace_jobs", "Jobs by state.", MetricType::Gauge, {}},
        {"terrace_jobs_pending", "Jobs that wait to run, by reason.", MetricType::Gauge, {}},
        {"terrace_job_restarts_total", "Restarts of jobs by cause.", MetricType::Counter, {}},
        {"terrace_workers", "Workers by state.", MetricType::Gauge, {}},
        {"terrace_plan_memory_error_bytes",
         "Arena bytes that a rank of a running job reserved beyond those its plan predicted.",
         MetricType::Gauge,
         {}},
        {"terrace_job_adjustments_total",
         "Jobs that went on with a smaller layout after memory ran out, by what was given up.",
         MetricType::Counter,
         {}}};
    for (int state = v1::PENDING; state <= v1::CANCELLED; ++state) {
      const auto key = static_cast<v1::JobState>(state);
      Add(families[0], "state", LabelOf(v1::JobState_Name(key)),
          static_cast<double>(stats.jobs[key]));
    }
    for (const auto& [reason, count] : stats.pending) {
      Add(families[1], "reason", LabelOf(v1::Reason_Name(reason)), static_cast<double>(count));
    }
    for (const auto& [reason, count] : stats.restarts) {
      Add(families[2], "cause", LabelOf(v1::Reason_Name(reason)), static_cast<double>(count));
    }
    for (const char* state : {"ready", "away", "lost"}) {
      Add(families[3], "state", state, static_cast<double>(stats.nodes[state]));
    }
    MetricFamily step_time = {
        "terrace_plan_step_time_error_ratio",
        "Seconds of a running job's last step over those that its plan predicted, less 1.",
        MetricType::Gauge,
        {}};
    for (const auto& [job, ratio] : stats.plan_step_time_error_ratio) {
      Add(step_time, "job", job, ratio);
    }
    families.push_back(std::move(step_time));
    for (const auto& [job, bytes] : stats.plan_memory_error_bytes) {
      Add(families[4], "job", job, static_cast<double>(bytes));
    }
    for (const char* rung : {"micro_batch", "recompute", "host", "nvme"}) {
      Add(families[5], "rung", rung, static_cast<double>(stats.adjustments[rung]));
    }
    return families;
  }

 private:
  const CoordinatorMetrics::Snapshot snapshot_;
};

}  // namespace

class CoordinatorMetrics::Impl {
 public:
  explicit Impl(Snapshot snapshot)
      : stats_(std::move(snapshot)),
        rpc_seconds_(prometheus::BuildHistogram()
                         .Name("terrace_rpc_seconds")
                         .Help("Time to answer a unary call, by method.")
                         .Register(registry_)) {}

  std::string Text() const {
    std::vector<MetricFamily> families = stats_.Collect();
    for (MetricFamily& family : registry_.Collect()) families.push_back(std::move(family));
    return prometheus::TextSerializer().Serialize(families);
  }

  void ObserveRpc(std::string_view method, double seconds) {
    rpc_seconds_
        .Add({{"method", std::string(method)}},
             prometheus::Histogram::BucketBoundaries{0.001, 0.01, 0.1, 1, 10})
        .Observe(seconds);
  }

 private:
  const StatsCollector stats_;
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Histogram>& rpc_seconds_;
};

CoordinatorMetrics::CoordinatorMetrics(Snapshot snapshot)
    : impl_(std::make_unique<Impl>(std::move(snapshot))) {}
CoordinatorMetrics::~CoordinatorMetrics() = default;

std::string CoordinatorMetrics::Text() const { return impl_->Text(); }

void CoordinatorMetrics::ObserveRpc(std::string_view method, double seconds) {
  impl_->ObserveRpc(method, seconds);
}

}  // namespace terrace
