// Which instructions of a step begin with a team of threads that sleeps: one thread was busy on
// their stream for longer than the others wait awake (TeamSpinSecondsOf). Where several ranks share
// a node's cores none waits awake, and every team sleeps, unless the profile was measured so: then
// its rates tell of teams that each call woke.
//
// Pure. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

class SleepingTeams {
 public:
  SleepingTeams(const v1::Program& program, const v1::HardwareProfile& profile);

  // Instructions are asked for in their order. `has_team`: several threads do it
  // (InstructionTime::HasTeam). `seconds`: what it takes.
  bool Slept(const v1::Instruction& instruction, bool has_team, double seconds);

 private:
  const double spin_seconds_;                      // measured; 0: no wake-up is to be counted
  const bool always_;                              // each team sleeps before each instruction
  std::map<uint32_t, double> one_thread_seconds_;  // by stream, since its team last worked
};

}  // namespace terrace
