// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/metrics.h"

#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "coordinator/life/hang.h"
#include "coordinator/server/job_metrics.h"

namespace terrace {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// "REASON_WORKER_LOST" -> "worker_lost".
std::string LabelOf(const std::string& name) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, "REASON_"));
}

MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return MetricType::Counter;
    case MetricKind::kHistogram:
      return MetricType::Histogram;
    default:
      return MetricType::Gauge;
  }
}

MetricFamily FamilyOf(const Metric& metric) {
  return {metric.name, metric.help, TypeOf(metric.kind), {}};
}

void Add(MetricFamily& family, std::vector<ClientMetric::Label> labels, double number) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  for (ClientMetric::Label& label : metric.label) label.value = LabelValue(label.value);
  (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = number;
}

void Add(MetricFamily& family, const Histogram& histogram) {
  ClientMetric::Histogram& out = family.metric.emplace_back().histogram;
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    out.sample_count += histogram.counts()[i];
    const bool last = i == histogram.bounds().size();
    out.bucket.push_back(
        {out.sample_count, last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i]});
  }
  out.sample_sum = histogram.sum();
}

void AddByReason(MetricFamily& family, const char* label, const std::map<v1::Reason, int64_t>& by,
                 double unit) {
  for (const auto& [reason, number] : by)
    Add(family, {{label, LabelOf(v1::Reason_Name(reason))}}, static_cast<double>(number) * unit);
}

// One family of the whole coordinator.
struct ControlSeries {
  Metric metric;
  void (*add)(const ControlStats&, MetricFamily&);
};

constexpr auto kGauge = MetricKind::kGauge;
constexpr auto kCounter = MetricKind::kCounter;
constexpr auto kHistogram = MetricKind::kHistogram;

const ControlSeries kControlSeries[] = {
    {{"terrace_jobs", kGauge, "", "state", "Jobs that the store knows, by state."},
     [](const ControlStats& stats, MetricFamily& family) {
       for (int number = v1::PENDING; number <= v1::CANCELLED; ++number) {
         const auto state = static_cast<v1::JobState>(number);
         const auto found = stats.jobs.find(state);
         const int64_t count = found == stats.jobs.end() ? 0 : found->second;
         Add(family, {{"state", LabelOf(v1::JobState_Name(state))}}, static_cast<double>(count));
       }
     }},
    {{"terrace_jobs_pending", kGauge, "", "reason", "Jobs that wait to run, by reason."},
     [](const ControlStats& stats, MetricFamily& family) {
       AddByReason(family, "reason", stats.pending, 1);
     }},
    {{"terrace_jobs_pending_since_timestamp_seconds", kGauge, "seconds", "reason",
      "Unix time since which the first of the jobs that wait for this reason has waited: of its "
      "submission, of the failure after which it is to go on, or of when it was resumed."},
     [](const ControlStats& stats, MetricFamily& family) {
       AddByReason(family, "reason", stats.pending_since_unix_ms, 1e-3);
     }},
    {{"terrace_jobs_without_series", kGauge, "", "",
      "Jobs beyond the first 1000, which have no series of their own."},
     [](const ControlStats& stats, MetricFamily& family) {
       Add(family, {}, static_cast<double>(stats.not_shown));
     }},
    {{"terrace_workers", kGauge, "", "state",
      "Workers by state: ready, away (silent for up to 3 s), lost, draining (jobs leave it), "
      "drained."},
     [](const ControlStats& stats, MetricFamily& family) {
       for (const char* state : {"ready", "away", "lost", "draining", "drained"}) {
         const auto found = stats.nodes.find(state);
         const int64_t count = found == stats.nodes.end() ? 0 : found->second;
         Add(family, {{"state", state}}, static_cast<double>(count));
       }
     }},
    {{"terrace_job_restarts_total", kCounter, "", "cause",
      "Restarts of all jobs by cause, since this coordinator started; drained: a job moved from a "
      "worker that was drained, which is no failure."},
     [](const ControlStats& stats, MetricFamily& family) {
       // Present from the start, so that a rate sees the first one.
       const auto moved = stats.restarts.find(v1::REASON_NONE);
       Add(family, {{"cause", "drained"}},
           moved == stats.restarts.end() ? 0 : static_cast<double>(moved->second));
       std::map<v1::Reason, int64_t> by = {{v1::REASON_RANK_DIED, 0},
                                           {v1::REASON_WORKER_LOST, 0},
                                           {v1::REASON_RANK_HANGS, 0},
                                           {v1::REASON_OUT_OF_MEMORY, 0},
                                           {v1::REASON_INTERNAL, 0}};
       for (const auto& [reason, count] : stats.restarts) {
         if (reason != v1::REASON_NONE) by[reason] = count;
       }
       AddByReason(family, "cause", by, 1);
     }},
    {{"terrace_job_hangs_total", kCounter, "", "process",
      "Times that a job was found to stand still, by what the process of the rank that it waited "
      "for did; connection: nothing came through between ranks. Since this coordinator started."},
     [](const ControlStats& stats, MetricFamily& family) {
       for (const char* label : kHangLabels) {
         const auto found = stats.hangs.find(label);
         const int64_t count = found == stats.hangs.end() ? 0 : found->second;
         Add(family, {{"process", label}}, static_cast<double>(count));
       }
     }},
    {{"terrace_job_slowdowns_total", kCounter, "", "",
      "Times that a rank was found to be slower than its peers, who wait for it, since this "
      "coordinator started."},
     [](const ControlStats& stats, MetricFamily& family) {
       Add(family, {}, static_cast<double>(stats.slow_ranks));
     }},
    {{"terrace_job_preemptions_total", kCounter, "", "",
      "Jobs that had to give their devices to a job of a higher priority, since this coordinator "
      "started."},
     [](const ControlStats& stats, MetricFamily& family) {
       Add(family, {}, static_cast<double>(stats.preemptions));
     }},
    {{"terrace_job_time_limits_total", kCounter, "", "",
      "Jobs that reached their time limit, since this coordinator started."},
     [](const ControlStats& stats, MetricFamily& family) {
       Add(family, {}, static_cast<double>(stats.time_limits));
     }},
    {{"terrace_job_adjustments_total", kCounter, "", "rung",
      "Jobs that went on with a smaller layout after memory ran out, by what was given up, since "
      "this coordinator started."},
     [](const ControlStats& stats, MetricFamily& family) {
       for (const char* rung : {"micro_batch", "recompute", "host", "nvme"}) {
         const auto found = stats.adjustments.find(rung);
         const int64_t count = found == stats.adjustments.end() ? 0 : found->second;
         Add(family, {{"rung", rung}}, static_cast<double>(count));
       }
     }},
    {{"terrace_job_queue_seconds", kHistogram, "seconds", "",
      "From a job's submission until it was placed for the first time."},
     [](const ControlStats& stats, MetricFamily& family) { Add(family, stats.queue_seconds); }},
    {{"terrace_job_first_step_seconds", kHistogram, "seconds", "",
      "From a job's submission until the end of its first step."},
     [](const ControlStats& stats, MetricFamily& family) {
       Add(family, stats.first_step_seconds);
     }},
    {{"terrace_failure_detection_seconds", kHistogram, "seconds", "",
      "From the last sign of life of a rank or worker that was lost until that was noticed."},
     [](const ControlStats& stats, MetricFamily& family) { Add(family, stats.detection_seconds); }},
    {{"terrace_failure_recovery_seconds", kHistogram, "seconds", "",
      "From there until the end of the first step after it."},
     [](const ControlStats& stats, MetricFamily& family) { Add(family, stats.recovery_seconds); }},
    {{"terrace_scheduler_pass_seconds", kHistogram, "seconds", "",
      "Time of one pass of the control loop over all jobs and workers."},
     [](const ControlStats& stats, MetricFamily& family) { Add(family, stats.pass_seconds); }},
    {{"terrace_store_write_seconds", kHistogram, "seconds", "",
      "Time to write one transaction into the store."},
     [](const ControlStats& stats, MetricFamily& family) {
       Add(family, stats.store_write_seconds);
     }},
};

constexpr Metric kRpcSeconds = {"terrace_rpc_seconds", kHistogram, "seconds", "method, code",
                                "Time to answer a unary call, by its method and gRPC status."};
constexpr Metric kRefused = {
    "terrace_refused_total", kCounter, "", "reason",
    "Calls and messages of workers that were refused because of who sent them, by reason, since "
    "this coordinator started (docs/security.md)."};
constexpr Metric kBuildInfo = {"terrace_build_info", kGauge, "", "program, version",
                               "1; what runs here."};

}  // namespace

std::vector<Metric> CoordinatorMetricTable() {
  std::vector<Metric> table;
  for (const ControlSeries& series : kControlSeries) table.push_back(series.metric);
  for (const JobSeries& series : AllJobSeries()) table.push_back(series.metric);
  table.push_back(kRpcSeconds);
  table.push_back(kRefused);
  table.push_back(kBuildInfo);
  return table;
}

class CoordinatorMetrics::Impl {
 public:
  Impl(std::string version, Published published, Refused refused)
      : version_(std::move(version)),
        published_(std::move(published)),
        refused_(std::move(refused)),
        rpc_seconds_(prometheus::BuildHistogram()
                         .Name(kRpcSeconds.name)
                         .Help(kRpcSeconds.help)
                         .Register(registry_)) {}

  std::string Text() const {
    std::vector<MetricFamily> families;
    if (const std::shared_ptr<const ControlStats> stats = published_(); stats != nullptr) {
      for (const ControlSeries& series : kControlSeries)
        series.add(*stats, families.emplace_back(FamilyOf(series.metric)));
      for (const JobSeries& series : AllJobSeries()) {
        MetricFamily& family = families.emplace_back(FamilyOf(series.metric));
        for (const JobStats& job : stats->shown) {
          for (const JobSample& sample : series.samples(job)) {
            std::vector<ClientMetric::Label> labels = {{"job", job.id}};
            if (series.label != nullptr) labels.push_back({series.label, sample.label});
            Add(family, std::move(labels), sample.value);
          }
        }
      }
    }
    for (MetricFamily& family : registry_.Collect()) families.push_back(std::move(family));
    if (refused_) {
      MetricFamily& family = families.emplace_back(FamilyOf(kRefused));
      for (const auto& [reason, count] : refused_())
        Add(family, {{"reason", reason}}, static_cast<double>(count));
    }
    Add(families.emplace_back(FamilyOf(kBuildInfo)),
        {{"program", "terrace-coordinator"}, {"version", version_}}, 1);
    return prometheus::TextSerializer().Serialize(families);
  }

  void ObserveRpc(std::string_view method, std::string_view code, double seconds) {
    rpc_seconds_
        .Add({{"method", std::string(method)}, {"code", std::string(code)}},
             prometheus::Histogram::BucketBoundaries{0.001, 0.01, 0.1, 1, 10})
        .Observe(seconds);
  }

 private:
  const std::string version_;
  const Published published_;
  const Refused refused_;
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Histogram>& rpc_seconds_;
};

CoordinatorMetrics::CoordinatorMetrics(std::string version, Published published, Refused refused)
    : impl_(std::make_unique<Impl>(std::move(version), std::move(published), std::move(refused))) {}
CoordinatorMetrics::~CoordinatorMetrics() = default;

std::string CoordinatorMetrics::Text() const { return impl_->Text(); }

void CoordinatorMetrics::ObserveRpc(std::string_view method, std::string_view code,
                                    double seconds) {
  impl_->ObserveRpc(method, code, seconds);
}

}  // namespace terrace
