// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/closed_form_error.h"

namespace terrace {
namespace {

constexpr ClosedFormBounds kNothingAway = {
    .kind = "nothing away", .device = 1.4, .host = 1, .nvme = 1};
constexpr ClosedFormBounds kStatesAway = {
    .kind = "states away", .device = 1.4, .host = 1.25, .nvme = 1.05};
constexpr ClosedFormBounds kPartOfStatesAway = {
    .kind = "part of the states away", .device = 1.5, .host = 2.6, .nvme = 1.05};
constexpr ClosedFormBounds kActivationsAway = {
    .kind = "activations away", .device = 1.8, .host = 1.8, .nvme = 1.05};
constexpr ClosedFormBounds kWeightsAway = {
    .kind = "weights away", .device = 2.1, .host = 1.25, .nvme = 1.05};
constexpr ClosedFormBounds kAllAway = {
    .kind = "weights and activations away", .device = 2, .host = 1.8, .nvme = 1.05};

// Parameters are on one tier or another as a whole, but are counted in shares: a tied table alone,
// which is most of a small stage, may stay on the device where NVMe is counted to have its part.
constexpr double kSharedNvme = 3.5;

bool IsAway(const v1::TierShares& shares) { return shares.host() + shares.nvme() > 0; }
bool IsShared(const v1::TierShares& shares) { return IsAway(shares) && shares.device() > 0; }
bool IsPartlyOnNvme(const v1::TierShares& shares) {
  return shares.nvme() > 0 && shares.device() + shares.host() > 0;
}

ClosedFormBounds OfKind(const v1::Offload& offload) {
  const bool activations = IsAway(offload.activation());
  if (IsAway(offload.parameter())) return activations ? kAllAway : kWeightsAway;
  if (activations) return kActivationsAway;
  if (IsShared(offload.gradient()) || IsShared(offload.optimizer())) return kPartOfStatesAway;
  return IsAway(offload.gradient()) || IsAway(offload.optimizer()) ? kStatesAway : kNothingAway;
}

}  // namespace

ClosedFormBounds BoundsOf(const v1::Layout& layout) {
  const v1::Offload& offload = layout.offload();
  ClosedFormBounds bounds = OfKind(offload);
  if (IsPartlyOnNvme(offload.parameter()) || IsPartlyOnNvme(offload.gradient()) ||
      IsPartlyOnNvme(offload.optimizer())) {
    bounds.nvme = kSharedNvme;
  }
  return bounds;
}

}  // namespace terrace
