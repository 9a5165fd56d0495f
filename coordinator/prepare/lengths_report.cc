// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/lengths_report.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/simulator/simulate.h"
#include "proto/program/sequences.h"

namespace terrace {
absl::StatusOr<std::string> StepsByLength(const Evaluated& evaluated,
                                          const v1::HardwareProfile& profile) {
  const std::vector<v1::Program>& programs = evaluated.programs;
  const auto& sequences = programs[0].sequences();
  const auto lengths = std::count_if(sequences.begin(), sequences.end(),
                                     [](const auto& sequence) { return IsTrain(sequence.name()); });
  if (lengths < 2) return std::string();
  std::map<int64_t, double> seconds;
  for (const v1::Sequence& sequence : sequences) {
    if (!IsTrain(sequence.name())) continue;
    ASSIGN_OR_RETURN(const Simulation simulation, Simulate(programs, sequence.name(), profile));
    seconds[LengthOf(programs[0].rules(), sequence)] = simulation.step_seconds;
  }
  std::vector<std::string> each;
  double sum = 0;
  for (const auto& [length, step] : seconds) {
    each.push_back(absl::StrFormat("%d %.3g s", length, step));
    sum += step;
  }
  return absl::StrFormat(
      "steps by tokens of a sample: %s; %.3g s on average where each length has as many samples",
      absl::StrJoin(each, ", "), sum / static_cast<double>(seconds.size()));
}

}  // namespace terrace
