// What a plan says of its offload: traffic to and from NVMe, how long the drives last, and how many
// tokens a step needs so that the streams of the offload hardly cost anything.
//
// Break-even (of ZeRO-Infinity, Rajbhandari et al. 2021, arXiv 2104.07857, section 4): a stream
// that moves bytes for S seconds a step hides behind computation that takes c seconds a token from
// S / c tokens on. Here the passes' streams (weights fetched, gradients and activations offloaded)
// run beside the passes, S_p being the busiest of them, while the optimizer's streams come after:
// S_o is what the step waits for them. Where copies take the cores that compute (the CPU backend),
// what shares them does not hide: work of A seconds alone, beside which computation goes at the
// share p of their speed instead of p_0 (simulator/contention.h), adds A (1 / p - 1 / p_0). q is
// that of all copies of the passes together and of what the host computes beside them; elsewhere q
// = 0. T tokens make a step of max(c T + q, S_p) + S_o seconds, and the offload costs at most k of
// it, max(c T + q, S_p)
// + S_o <= c T / (1 - k), from
//
//   T = max((1 - k) / k (S_o + q), (1 - k) (S_p + S_o)) / c
//
// tokens on, in as many micro-batches (c is at the share p_0). k is 0.09: at most a tenth of the
// step is lost, a hundredth of which goes to first fetches and hand-overs between streams. S_p and
// S_o are of the simulated step, c and q of its instructions alone.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Absent when nothing is on NVMe.
std::optional<v1::NvmePlan> ReportNvme(const v1::JobSpec& spec, const Evaluated& chosen);

// 0 when nothing is offloaded. Of the stage that needs most. The profile is that of the simulation.
double BreakEvenTokens(const v1::HardwareProfile& profile, const Evaluated& chosen);

// RESOURCE_EXHAUSTED when the drives are worn out before resources.nvme.min_drive_life_days.
absl::Status CheckDriveLife(const v1::JobSpec& spec, const v1::Plan& plan);

}  // namespace terrace
