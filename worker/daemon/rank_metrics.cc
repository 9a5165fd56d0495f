// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/rank_metrics.h"

namespace terrace {
namespace {

constexpr auto kGauge = MetricKind::kGauge;
constexpr auto kCounter = MetricKind::kCounter;

const RankSeries kRankSeries[] = {
    {{"terrace_step_seconds", kGauge, "seconds", "job, rank", "Duration of the last step."},
     [](const v1::RankMetrics& m) { return m.step_seconds(); }},
    {{"terrace_steps_total", kCounter, "", "job, rank", "Steps done since the rank started."},
     [](const v1::RankMetrics& m) { return static_cast<double>(m.steps()); }},
    {{"terrace_tokens_total", kCounter, "", "job, rank",
      "Tokens trained on since the rank started."},
     [](const v1::RankMetrics& m) { return static_cast<double>(m.tokens()); }},
    {{"terrace_loss", kGauge, "nats", "job, rank", "Mean loss of the last step, nats a token."},
     [](const v1::RankMetrics& m) { return m.loss(); }},
    {{"terrace_grad_norm", kGauge, "", "job, rank",
      "Global gradient norm of the last step, before clipping."},
     [](const v1::RankMetrics& m) { return m.grad_norm(); }},
    {{"terrace_loss_scale", kGauge, "", "job, rank",
      "Loss scale of the next step; 0: the job has none."},
     [](const v1::RankMetrics& m) { return m.loss_scale(); }},
    {{"terrace_skipped_steps_total", kCounter, "", "job, rank",
      "Steps whose gradient was not finite, of the whole job."},
     [](const v1::RankMetrics& m) { return static_cast<double>(m.skipped_steps()); }},
    {{"terrace_mfu_ratio", kGauge, "ratio", "job, rank",
      "Model FLOP/s over the device's peak, 0 to 1."},
     [](const v1::RankMetrics& m) { return m.mfu_ratio(); }},
    {{"terrace_flops_per_second", kGauge, "", "job, rank", "Model FLOP/s of the last step."},
     [](const v1::RankMetrics& m) { return m.flops_per_second(); }},
    {{"terrace_step_last_completed_timestamp_seconds", kGauge, "seconds", "job, rank",
      "Unix time of the last step's end."},
     [](const v1::RankMetrics& m) { return static_cast<double>(m.last_step_unix_ms()) / 1000; }},
    {{"terrace_compute_seconds_total", kCounter, "seconds", "job, rank",
      "Busy time of the compute stream."},
     [](const v1::RankMetrics& m) { return m.compute_seconds(); }},
    {{"terrace_collective_seconds_total", kCounter, "seconds", "job, rank",
      "Busy time of the collective streams."},
     [](const v1::RankMetrics& m) { return m.collective_seconds(); }},
    {{"terrace_collective_exposed_seconds_total", kCounter, "seconds", "job, rank",
      "Time that compute waited for collectives."},
     [](const v1::RankMetrics& m) { return m.collective_exposed_seconds(); }},
    {{"terrace_checkpoint_bytes_total", kCounter, "bytes", "job, rank",
      "Bytes written to checkpoints."},
     [](const v1::RankMetrics& m) { return static_cast<double>(m.checkpoint_bytes()); }},
    {{"terrace_checkpoint_stall_seconds_total", kCounter, "seconds", "job, rank",
      "Time that steps waited for checkpoints."},
     [](const v1::RankMetrics& m) { return m.checkpoint_stall_seconds(); }},
    {{"terrace_energy_joules_total", kCounter, "joules", "job, rank",
      "Energy that the rank's GPU has taken since the rank started, as its driver counts; ranks "
      "that share one count all of it, and 0 where nobody counts."},
     [](const v1::RankMetrics& m) { return m.energy_joules(); }},
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
    {{"terrace_memory_external_bytes", kGauge, "bytes", "job, rank",
      "Bytes of the process outside its arenas."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.external_bytes()); }},
    {{"terrace_memory_external_allowed_bytes", kGauge, "bytes", "job, rank",
      "Bytes of the process outside its arenas that its program declares; beyond them it is "
      "stopped when memory runs short."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.external_allowed_bytes()); }},
    {{"terrace_memory_graph_bytes", kGauge, "bytes", "job, rank",
      "Bytes of the device, of those outside the arenas, that sequences as graphs took."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.graph_bytes()); }},
    {{"terrace_memory_driver_bytes", kGauge, "bytes", "job, rank",
      "Bytes of the device as its driver counts the rank; 0: nobody counts."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.driver_bytes()); }},
    {{"terrace_memory_planned_bytes", kGauge, "bytes", "job, rank",
      "Bytes of the device by the plan: arena and what is declared outside of it."},
     [](const v1::RankMemory& m) { return static_cast<double>(PlannedBytes(m)); }},
    {{"terrace_memory_host_pinned_bytes", kGauge, "bytes", "job, rank",
      "Bytes of the host arena that are locked."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.host_pinned_bytes()); }},
    {{"terrace_allocator_allocated_bytes", kGauge, "bytes", "job, rank",
      "Bytes in use on the device."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().allocated_bytes()); }},
    {{"terrace_allocator_active_bytes", kGauge, "bytes", "job, rank",
      "Bytes in use or not yet free on every stream."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().active_bytes()); }},
    {{"terrace_allocator_reserved_bytes", kGauge, "bytes", "job, rank",
      "Bytes taken from the device."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().reserved_bytes()); }},
    {{"terrace_allocator_requested_bytes", kGauge, "bytes", "job, rank",
      "Bytes asked for, before rounding."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().requested_bytes()); }},
    {{"terrace_allocator_largest_free_block_bytes", kGauge, "bytes", "job, rank",
      "Largest free range of what is reserved."},
     [](const v1::RankMemory& m) {
       return static_cast<double>(m.allocator().largest_free_block_bytes());
     }},
    {{"terrace_allocator_step_peak_bytes", kGauge, "bytes", "job, rank",
      "Largest bytes in use during a step."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().step_peak_bytes()); }},
    {{"terrace_allocator_fragmentation_ratio", kGauge, "ratio", "job, rank",
      "1 - allocated / reserved."},
     OverReserved},
    {{"terrace_allocator_free_fragmentation_ratio", kGauge, "ratio", "job, rank",
      "1 - largest free block / free bytes."},
     OverFree},
    {{"terrace_allocator_retries_total", kCounter, "", "job, rank",
      "Times that memory was given back to try again."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().retries()); }},
    {{"terrace_allocator_ooms_total", kCounter, "", "job, rank",
      "Times that there was not enough memory."},
     [](const v1::RankMemory& m) { return static_cast<double>(m.allocator().ooms()); }},
    {{"terrace_offload_stall_seconds_total", kCounter, "seconds", "job, rank",
      "Time that compute waited for copies between tiers."},
     [](const v1::RankMemory& m) { return m.offload_stall_seconds(); }},
};

const PlaceSeries kPlaceSeries[] = {
    {{"terrace_rank_standing_seconds", kGauge, "seconds", "job, rank",
      "Time since the rank finished an instruction or did anything else, as its worker sees from "
      "outside."},
     [](const v1::RankPlace& p) { return static_cast<double>(p.standing_ms()) / 1000; }},
};

const TierSeries kTierSeries[] = {
    {{"terrace_memory_predicted_bytes", kGauge, "bytes", "job, rank, tier",
      "Arena bytes by the plan."},
     [](const v1::TierMemory& t) { return t.predicted_bytes(); }},
    {{"terrace_memory_reserved_bytes", kGauge, "bytes", "job, rank, tier",
      "Arena bytes reserved; of nvme the file."},
     [](const v1::TierMemory& t) { return t.reserved_bytes(); }},
    {{"terrace_memory_limit_bytes", kGauge, "bytes", "job, rank, tier",
      "Bytes that the rank was admitted under; 0: none."},
     [](const v1::TierMemory& t) { return t.limit_bytes(); }},
};

const TrafficSeries kTrafficSeries[] = {
    {{"terrace_offload_bytes_total", kCounter, "bytes", "job, rank, tier, direction",
      "Bytes moved between the device and a tier; write is away from the device."},
     [](const v1::OffloadTraffic& t) { return static_cast<double>(t.bytes()); }},
    {{"terrace_offload_seconds_total", kCounter, "seconds", "job, rank, tier, direction",
      "Busy time of copies between the device and a tier."},
     [](const v1::OffloadTraffic& t) { return t.seconds(); }},
};

}  // namespace

absl::Span<const RankSeries> AllRankSeries() { return kRankSeries; }
absl::Span<const MemorySeries> AllMemorySeries() { return kMemorySeries; }
absl::Span<const PlaceSeries> AllPlaceSeries() { return kPlaceSeries; }
absl::Span<const TierSeries> AllTierSeries() { return kTierSeries; }
absl::Span<const TrafficSeries> AllTrafficSeries() { return kTrafficSeries; }

}  // namespace terrace
