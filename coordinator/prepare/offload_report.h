// What a plan says of its offload: traffic to and from NVMe, how long the drives last, and how many
// tokens a step needs so that the streams of the offload hardly cost anything.
//
// Break-even (of ZeRO-Infinity, Rajbhandari et al. 2021, arXiv 2104.07857, section 4): a stream
// that moves bytes for S seconds a step hides behind computation that takes c seconds a token from
// S / c tokens on. Here the passes' streams (weights fetched, gradients and activations leaving)
// run beside the passes, S_p being the busiest of them, while the optimizer's streams come after:
// S_o is what the step waits for them. T tokens make a step of max(c T, S_p) + S_o seconds, and the
// offload costs at most a tenth of it, max(c T, S_p) + S_o <= c T / 0.9, from
//
//   T = max(9 S_o, 0.9 (S_p + S_o)) / c
//
// tokens on, in as many micro-batches. All three are of the simulated step.
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

// 0 when nothing is offloaded. Of the stage that needs most.
double BreakEvenTokens(const Evaluated& chosen);

// RESOURCE_EXHAUSTED when the drives are worn out before resources.nvme.min_drive_life_days.
absl::Status CheckDriveLife(const v1::JobSpec& spec, const v1::Plan& plan);

}  // namespace terrace
