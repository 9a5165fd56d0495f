// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/sleeping_teams.h"

#include <algorithm>
#include <utility>

#include "coordinator/planner/profiles.h"
#include "proto/grid.h"

namespace terrace {
namespace {

bool HasTwoTeams(const v1::Program& program) {
  return std::any_of(program.streams().begin(), program.streams().end(),
                     [](const v1::Stream& stream) { return stream.kind() == v1::HOST_COMPUTE; });
}

}  // namespace

SleepingTeams::SleepingTeams(const v1::Program& program, const v1::HardwareProfile& profile)
    : spin_seconds_(TeamSpinSecondsOf(profile, HasTwoTeams(program))),
      always_(RanksOf(program.grid()) > 1 && profile.ranks_per_node() != 1) {}

bool SleepingTeams::Slept(const v1::Instruction& instruction, bool has_team, double seconds) {
  if (!instruction.has_compute() || spin_seconds_ <= 0) return false;
  const auto [of_stream, first] = one_thread_seconds_.try_emplace(instruction.stream(), 0);
  if (!has_team) {
    of_stream->second += seconds;
    return false;
  }
  return std::exchange(of_stream->second, 0) > spin_seconds_ || always_;
}

}  // namespace terrace
