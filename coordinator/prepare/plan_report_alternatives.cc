// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/plan_report_alternatives.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "proto/program/caching_need.h"

namespace terrace {
namespace {

// Layouts whose steps differ by less are as fast as each other.
constexpr double kSame = 0.0005;
// Of what makes a step longer, a part is worth a word from this part of the largest on.
constexpr double kWorthAWord = 0.3;

struct Named {
  const char* name;
  double StepParts::*seconds;
};
constexpr std::array<Named, 7> kParts = {{{"computation", &StepParts::computation},
                                          {"recompute", &StepParts::recompute},
                                          {"optimizer", &StepParts::optimizer},
                                          {"exposed communication", &StepParts::communication},
                                          {"exposed offload", &StepParts::offload},
                                          {"bubble", &StepParts::bubble},
                                          {"waiting for loads", &StepParts::loading}}};

// "120 ms more bubble and 40 ms more recompute"; `sign` -1: less. Empty when nothing grew.
std::string Causes(const StepParts& from, const StepParts& to, double sign) {
  std::vector<std::pair<double, const char*>> grown;
  for (const Named& part : kParts) {
    const double seconds = sign * (to.*part.seconds - from.*part.seconds);
    if (seconds > 0) grown.emplace_back(seconds, part.name);
  }
  std::stable_sort(grown.begin(), grown.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string words;
  for (size_t i = 0; i < std::min<size_t>(2, grown.size()); ++i) {
    if (grown[i].first < kWorthAWord * grown[0].first) break;
    absl::StrAppend(&words, i == 0 ? "" : " and ", SecondsText(grown[i].first),
                    sign > 0 ? " more " : " less ", grown[i].second);
  }
  return words;
}

std::string Bytes(int64_t more) {
  return absl::StrCat(FormatBytes(std::abs(more)), more > 0 ? " more" : " less", " on the device");
}

}  // namespace

StepParts PartsOf(const Simulation& simulation) {
  StepParts parts;
  const double share = 1.0 / static_cast<double>(std::max<size_t>(1, simulation.stages.size()));
  for (const SimulatedStage& stage : simulation.stages) {
    const double recompute = stage.phase_seconds[v1::RECOMPUTE];
    parts.computation += share * (stage.compute_seconds - recompute - stage.optimizer_seconds);
    parts.recompute += share * recompute;
    parts.optimizer += share * stage.optimizer_seconds;
    parts.communication += share * stage.exposed_communication_seconds;
    parts.offload += share * stage.exposed_offload_seconds;
    parts.bubble += share * stage.bubble_seconds;
    parts.loading += share * stage.loading_seconds;
  }
  return parts;
}

WhyNot::WhyNot(const v1::JobSpec& spec, const Budget& budget, const Evaluated& chosen)
    : budget_(budget),
      limits_(LimitsOf(spec)),
      chosen_(chosen),
      chosen_parts_(PartsOf(chosen.simulation)) {}

std::string WhyNot::Of(const Evaluated& other) const {
  if (!other.fits) {
    std::string too_large = TooLarge(other);
    if (!too_large.empty()) return too_large;
  }
  const double seconds = other.simulation.step_seconds - chosen_.simulation.step_seconds;
  const double step = std::max(chosen_.simulation.step_seconds, 1e-12);
  return seconds > kSame * step ? Slower(other, seconds) : NotFaster(other, seconds);
}

// The stage and tier that is furthest over its budget.
std::string WhyNot::TooLarge(const Evaluated& other) const {
  double most = 0;
  std::string words;
  for (const v1::Program& program : other.programs) {
    for (const v1::Arena& arena : program.arenas()) {
      const bool device = arena.tier() == v1::DEVICE;
      const int64_t limit = device                     ? budget_.device_memory_bytes
                            : arena.tier() == v1::HOST ? limits_.host_bytes
                                                       : limits_.nvme_bytes;
      const int64_t bytes =
          ReservedBytesNeeded(program, arena.tier()) + (device ? program.external_bytes() : 0);
      if (limit <= 0 || bytes <= limit) continue;
      const double factor = static_cast<double>(bytes) / static_cast<double>(limit);
      if (factor <= most) continue;
      most = factor;
      words = absl::StrCat("does not fit: stage ", program.stage(), " needs ", FormatBytes(bytes),
                           " of ", FormatBytes(limit),
                           device                     ? " on the device"
                           : arena.tier() == v1::HOST ? " of host memory"
                                                      : " of NVMe",
                           ", ", FormatBytes(bytes - limit), " too much");
    }
  }
  return words;
}

std::string WhyNot::Slower(const Evaluated& other, double seconds) const {
  std::string words =
      absl::StrCat(PercentText(seconds / chosen_.simulation.step_seconds), " slower");
  const std::string causes = Causes(chosen_parts_, PartsOf(other.simulation), 1);
  return causes.empty() ? words : absl::StrCat(words, " because of ", causes);
}

std::string WhyNot::NotFaster(const Evaluated& other, double seconds) const {
  // As the search decides (search.h).
  constexpr double kSameTime = 0.02;
  const double faster = -seconds / std::max(chosen_.simulation.step_seconds, 1e-12);
  const int64_t more = other.device_bytes - chosen_.device_bytes;
  std::string words = faster < kSame ? "as fast" : absl::StrCat(PercentText(faster), " faster");
  if (faster <= kSameTime && more != 0) {
    return absl::StrCat(words, ", with ", Bytes(more));
  }
  if (faster <= kSameTime) return words;
  const std::string causes = Causes(chosen_parts_, PartsOf(other.simulation), -1);
  if (!causes.empty()) absl::StrAppend(&words, " (", causes, ")");
  return absl::StrCat(words, budget_.profile.measured()
                                 ? " by measured rates; layouts are chosen by reference rates, so "
                                   "that a job that runs again gets the same"
                                 : ", which is within the error of a prediction: a plain layout is "
                                   "kept");
}

void MarkFront(v1::Plan* plan) {
  struct Point {
    double seconds = 0;
    int64_t bytes = 0;
  };
  std::vector<Point> fitting;
  if (plan->fits()) {
    int64_t bytes = 0;
    for (const v1::StageMemory& memory : plan->memory()) {
      if (memory.tier() == v1::DEVICE)
        bytes = std::max(bytes, memory.arena_bytes() + memory.external_bytes());
    }
    fitting.push_back({plan->time().step_seconds(), bytes});
  }
  for (const v1::Alternative& one : plan->alternatives()) {
    if (one.fits()) fitting.push_back({one.step_seconds(), one.device_bytes()});
  }
  for (v1::Alternative& one : *plan->mutable_alternatives()) {
    one.set_pareto(one.fits() && absl::c_none_of(fitting, [&](const Point& other) {
                     return other.seconds < one.step_seconds() && other.bytes < one.device_bytes();
                   }));
  }
}

std::string SmallerByClosedForm(double chosen_seconds, double seconds, int64_t chosen_bytes,
                                int64_t bytes) {
  const double slower = seconds / std::max(chosen_seconds, 1e-12) - 1;
  return absl::StrFormat("%.1f %% %s and %s, by closed form", 100 * std::abs(slower),
                         slower < 0 ? "faster" : "slower", Bytes(bytes - chosen_bytes));
}

}  // namespace terrace
