// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/allowed_formats.h"

#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/prepare/search_choice.h"

namespace terrace {
namespace {

// Pins `allowed` where the spec leaves the format as it is computed.
using Pin = bool (*)(const v1::FormatSpec& allowed, v1::FormatSpec* formats);

bool PinGradient(const v1::FormatSpec& allowed, v1::FormatSpec* formats) {
  if (allowed.gradient().empty() || !formats->gradient().empty()) return false;
  formats->set_gradient(allowed.gradient());
  return true;
}

bool PinMoments(const v1::FormatSpec& allowed, v1::FormatSpec* formats) {
  const bool pinned = !formats->moments().empty() && formats->moments() != "f32";
  if (allowed.moments().empty() || pinned) return false;
  formats->set_moments(allowed.moments());
  return true;
}

bool PinActivation(const v1::FormatSpec& allowed, v1::FormatSpec* formats) {
  if (allowed.activation().empty() || !formats->activation().empty()) return false;
  formats->set_activation(allowed.activation());
  return true;
}

bool PinGather(const v1::FormatSpec& allowed, v1::FormatSpec* formats) {
  if (allowed.gather().empty() || !formats->gather().empty()) return false;
  formats->set_gather(allowed.gather());
  return true;
}

constexpr Pin kPins[] = {&PinGradient, &PinMoments, &PinActivation, &PinGather};

bool WorthTaking(const Evaluated& other, const Evaluated& chosen) {
  if (!other.fits) return false;
  return !chosen.fits || other.simulation.step_seconds < WorthIt(chosen.simulation.step_seconds);
}

// The formats of several specs, each of which pins one more than `spec`.
v1::JobSpec AllTogether(const v1::JobSpec& spec, const std::vector<v1::JobSpec>& alone) {
  v1::JobSpec together = spec;
  for (const v1::JobSpec& one : alone) {
    for (const Pin pin : kPins) {
      v1::FormatSpec still_open = one.formats();
      if (!pin(spec.formats().allow(), &still_open))
        pin(spec.formats().allow(), together.mutable_formats());
    }
  }
  return together;
}

double Seconds(const AllowedSearch& search) {
  return search.searched.evaluated.front().simulation.step_seconds;
}

}  // namespace

std::vector<v1::JobSpec> WithAllowedFormats(const v1::JobSpec& spec) {
  std::vector<v1::JobSpec> specs;
  for (const Pin pin : kPins) {
    v1::JobSpec alone = spec;
    if (pin(spec.formats().allow(), alone.mutable_formats())) specs.push_back(std::move(alone));
  }
  return specs;
}

absl::StatusOr<AllowedSearch> SearchAllowed(const v1::JobSpec& spec, const Model& model,
                                            const Budget& budget, const SearchOptions& options,
                                            SearchCost* cost) {
  ASSIGN_OR_RETURN(Searched plain, SearchLayouts(spec, model, budget, options, cost));
  AllowedSearch chosen = {.spec = spec, .searched = std::move(plain)};
  std::optional<AllowedSearch> fastest;
  std::vector<v1::JobSpec> possible;
  for (const v1::JobSpec& alone : WithAllowedFormats(spec)) {
    absl::StatusOr<Searched> searched = SearchLayouts(alone, model, budget, options, cost);
    if (absl::IsInvalidArgument(searched.status())) continue;
    RETURN_IF_ERROR(searched.status());
    possible.push_back(alone);
    if (!searched->evaluated.front().fits) continue;
    AllowedSearch one = {.spec = alone, .searched = *std::move(searched)};
    if (!fastest || Seconds(one) < Seconds(*fastest)) fastest = std::move(one);
  }
  if (possible.size() > 1) {
    AllowedSearch all = {.spec = AllTogether(spec, possible)};
    absl::StatusOr<Searched> searched = SearchLayouts(all.spec, model, budget, options, cost);
    if (!absl::IsInvalidArgument(searched.status())) {
      RETURN_IF_ERROR(searched.status());
      all.searched = *std::move(searched);
      const Evaluated& front = all.searched.evaluated.front();
      if (!fastest ? front.fits : WorthTaking(front, fastest->searched.evaluated.front()))
        fastest = std::move(all);
    }
  }
  if (fastest &&
      WorthTaking(fastest->searched.evaluated.front(), chosen.searched.evaluated.front())) {
    return *std::move(fastest);
  }
  return chosen;
}

}  // namespace terrace
