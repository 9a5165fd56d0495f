// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/allowed_formats.h"

#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/prepare/search_choice.h"

namespace terrace {
namespace {

// A format of the spec. `computed`: the word for what is computed, which leaves it open as well.
struct Allowed {
  const std::string& (v1::FormatSpec::*get)() const;
  std::string* (v1::FormatSpec::*mutable_of)();
  const char* computed = "";
};

constexpr Allowed kAllowed[] = {
    {&v1::FormatSpec::gradient, &v1::FormatSpec::mutable_gradient},
    {&v1::FormatSpec::reduce, &v1::FormatSpec::mutable_reduce},
    {&v1::FormatSpec::moments, &v1::FormatSpec::mutable_moments, "f32"},
    {&v1::FormatSpec::activation, &v1::FormatSpec::mutable_activation},
    {&v1::FormatSpec::gather, &v1::FormatSpec::mutable_gather},
};

// Pins what is allowed where the spec leaves the format open.
bool Pin(const Allowed& row, const v1::JobSpec& spec, v1::FormatSpec* formats) {
  const std::string& allowed = (spec.formats().allow().*row.get)();
  const std::string& given = (formats->*row.get)();
  const bool older = row.get == &v1::FormatSpec::reduce &&
                     !spec.layout().communication_dtype().empty();  // its older name
  if (allowed.empty() || older || !(given.empty() || given == row.computed)) return false;
  *(formats->*row.mutable_of)() = allowed;
  return true;
}

bool WorthTaking(const Evaluated& other, const Evaluated& chosen) {
  if (!other.fits) return false;
  return !chosen.fits || other.simulation.step_seconds < WorthIt(chosen.simulation.step_seconds);
}

// The formats of several specs, each of which pins one more than `spec`.
v1::JobSpec AllTogether(const v1::JobSpec& spec, const std::vector<v1::JobSpec>& alone) {
  v1::JobSpec together = spec;
  for (const v1::JobSpec& one : alone) {
    for (const Allowed& row : kAllowed) {
      v1::FormatSpec still_open = one.formats();
      if (!Pin(row, spec, &still_open)) Pin(row, spec, together.mutable_formats());
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
  for (const Allowed& row : kAllowed) {
    v1::JobSpec alone = spec;
    if (Pin(row, spec, alone.mutable_formats())) specs.push_back(std::move(alone));
  }
  return specs;
}

absl::StatusOr<AllowedSearch> SearchAllowed(const v1::JobSpec& spec, const Model& model,
                                            const Budget& budget, const SearchOptions& options,
                                            SearchCost* cost) {
  const auto search = [&](const v1::JobSpec& one) -> absl::StatusOr<AllowedSearch> {
    ASSIGN_OR_RETURN(Searched searched, SearchLayouts(one, model, budget, options, cost));
    return AllowedSearch{.spec = one, .searched = std::move(searched)};
  };
  absl::StatusOr<AllowedSearch> plain = search(spec);
  if (absl::IsInvalidArgument(plain.status()) || absl::IsDeadlineExceeded(plain.status()))
    return plain;
  std::optional<AllowedSearch> best;
  // One that fits before one that does not; of these the smallest is the nearest.
  const auto note = [&best](absl::StatusOr<AllowedSearch> other, bool several) {
    if (!other.ok()) return;
    const Evaluated& front = other->searched.evaluated.front();
    const Evaluated* known = best ? &best->searched.evaluated.front() : nullptr;
    const bool better = known == nullptr ||
                        (front.fits && known->fits   ? (several ? WorthTaking(front, *known)
                                                                : Seconds(*other) < Seconds(*best))
                         : front.fits == known->fits ? front.device_bytes < known->device_bytes
                                                     : front.fits);
    if (better) best = *std::move(other);
  };
  std::vector<v1::JobSpec> possible;
  for (const v1::JobSpec& alone : WithAllowedFormats(spec)) {
    absl::StatusOr<AllowedSearch> one = search(alone);
    if (!absl::IsInvalidArgument(one.status())) possible.push_back(alone);
    note(std::move(one), /*several=*/false);
  }
  if (possible.size() > 1) note(search(AllTogether(spec, possible)), /*several=*/true);
  // Gathers bind the others to zero 3.
  const size_t before = possible.size();
  std::erase_if(possible, [&spec](const v1::JobSpec& one) {
    return one.formats().gather() != spec.formats().gather();
  });
  if (possible.size() > 1 && possible.size() < before)
    note(search(AllTogether(spec, possible)), /*several=*/true);
  if (!best) return plain;
  if (!plain.ok()) return *std::move(best);
  const Evaluated& with = best->searched.evaluated.front();
  const Evaluated& without = plain->searched.evaluated.front();
  const bool nearer = !with.fits && !without.fits && with.device_bytes < without.device_bytes;
  return nearer || WorthTaking(with, without) ? *std::move(best) : *std::move(plain);
}

}  // namespace terrace
