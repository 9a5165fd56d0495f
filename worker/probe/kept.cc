// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/kept.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr int kIdlePercent = 2;  // a screen, or somebody who counts

std::string Sentence(size_t device, const std::string& what) {
  return absl::StrCat("while it was measured something else used GPU ", device, ", as ranks of ",
                      "jobs do (", what, "); run terrace profile --refresh when it is idle");
}

// `own`: processes of the measurement itself.
std::string Disturbed(std::span<const DeviceLoad> now, std::span<const DeviceLoad> before,
                      int own) {
  for (size_t i = 0; i < now.size(); ++i) {
    const DeviceLoad& load = now[i];
    if (load.busy_percent && *load.busy_percent > kIdlePercent)
      return Sentence(i, absl::StrCat("it was ", *load.busy_percent, " % busy"));
    const int others = load.processes - (i < before.size() ? before[i].processes : 0) - own;
    if (!load.busy_percent && others > 0)
      return Sentence(i, absl::StrCat("processes there: ", others));
  }
  return "";
}

// Plans show it beside their times.
v1::HardwareProfile Doubted(v1::HardwareProfile profile, const std::string& doubt) {
  profile.set_doubt(doubt);
  return profile;
}

}  // namespace

void GpuWatch::Begin() { before_ = look_(); }

std::string GpuWatch::End() {
  if (!before_.ok()) return "";
  if (std::string found = Disturbed(*before_, {}, /*own=*/0); !found.empty()) return found;
  absl::SleepFor(settle_);
  const auto after = look_();
  return after.ok() ? Disturbed(*after, *before_, /*own=*/1) : "";
}

bool GpuWatch::IsQuiet() const {
  const auto now = look_();
  return !now.ok() || Disturbed(*now, {}, /*own=*/0).empty();
}

absl::StatusOr<v1::HardwareProfile> KeptOrMeasured(
    const ProbeCache& cache, const WantedProfile& wanted,
    const std::function<void(std::string_view)>& say) {
  std::string why_not;
  const std::optional<v1::HardwareProfile> kept = cache.Read(&why_not);
  if (kept && wanted.is_enough(*kept)) {
    const std::string doubt = cache.Doubt();
    if (doubt.empty()) return *kept;
    const bool quiet = wanted.is_quiet != nullptr && wanted.is_quiet();
    say(absl::StrCat(
        "the kept profile is in doubt: ", doubt,
        quiet ? "; now it is quiet: measuring again" : "; used until the machine is quiet"));
    if (!quiet) return Doubted(*kept, doubt);
  }
  if (!why_not.empty()) say(absl::StrCat(why_not, ": measuring again"));
  if (wanted.watch != nullptr) wanted.watch->Begin();
  ASSIGN_OR_RETURN(v1::HardwareProfile profile, wanted.measure(kept ? &*kept : nullptr));
  const std::string disturbed = wanted.watch != nullptr ? wanted.watch->End() : "";
  if (!disturbed.empty() && !wanted.keeps_doubtful) {
    say(absl::StrCat("the measured profile is not kept: ", disturbed));
    return profile;
  }
  const std::string not_kept(Std(cache.Write(profile, disturbed).message()));
  if (!not_kept.empty()) say(absl::StrCat("the measured profile is not kept: ", not_kept));
  if (disturbed.empty()) return profile;
  say(absl::StrCat(
      "the profile is in doubt: ", disturbed,
      "; plans may be off until it is measured again, as soon as the machine is quiet"));
  return Doubted(std::move(profile), disturbed);
}

}  // namespace terrace
