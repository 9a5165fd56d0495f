// What tests ask of the fake NCCL.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl.h"

#include <utility>

#include "tests/support/fake_nccl_cuda.h"
#include "tests/support/fake_nccl_state.h"

namespace terrace::fake_nccl {

State& TheState() {
  static State* state = new State;  // streams may outlive main
  return *state;
}

Fault FaultOf(const Call& call) { return TheState().faults ? TheState().faults(call) : Fault{}; }

void Misuse(const Member& member, const std::string& what) {
  TheState().misuse.push_back("member " + std::to_string(member.rank) + " of " +
                              std::to_string(member.clique->size) + ": " + what);
}

void SetFaults(std::function<Fault(const Call&)> next) {
  const std::lock_guard lock(TheState().mutex);
  TheState().faults = std::move(next);
}

Live CountLive() {
  Live live;
  CountCuda(&live.streams, &live.events, &live.allocations);
  const std::lock_guard lock(TheState().mutex);
  live.communicators = TheState().live_communicators;
  live.registrations = CountRegistrations();
  return live;
}

int Aborted() {
  const std::lock_guard lock(TheState().mutex);
  return TheState().aborted;
}

std::vector<std::string> TakeMisuse() {
  const std::lock_guard lock(TheState().mutex);
  return std::exchange(TheState().misuse, {});
}

std::byte* NewMemory(int64_t bytes) { return NewPages(bytes); }

void FreeMemory(std::byte* memory) {
  const std::lock_guard lock(TheState().mutex);
  if (IsRegistered(memory)) TheState().misuse.push_back("memory was freed while it was registered");
  FreePages(memory);
}

std::vector<std::string> TakeCalls() {
  const std::lock_guard lock(TheState().mutex);
  return std::exchange(TheState().calls, {});
}

}  // namespace terrace::fake_nccl
