// What the fake NCCL is made of: groups, their members and what these have asked for. For
// fake_nccl_run.cc, which carries it out, fake_nccl_api.cc, which answers NCCL's calls, and
// fake_nccl.cc, which tests ask.
//
// Thread rule: everything under TheState().mutex.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_nccl.h"
#include "tests/support/fake_nccl_memory.h"

namespace terrace::fake_nccl {

// One operation as a member has called it.
struct Operation {
  std::string kind;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t bytes = 0;  // of one part
  ncclDataType_t type = ncclUint8;
  int other = -1;  // root, or the peer of a message
  Places places;
};

struct Meeting {
  std::map<int, Operation> calls;  // by member
  bool done = false;
};

struct Letter {
  const void* data = nullptr;
  int64_t bytes = 0;
  bool registered = false;
  bool taken = false;
};

struct Clique {
  int size = 0;
  int joined = 0;
  std::map<int64_t, Meeting> meetings;  // by the number of the collective
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> mail;  // by from and to
};

struct Member {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  bool aborted = false;
  ncclResult_t state = ncclSuccess;
  int polls = 0;  // left until `ready` goes on its stream
  std::function<void()> ready;
  int running = 0;
  int64_t operations = 0, collectives = 0;
  Registrations registrations;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::function<Fault(const Call&)> faults;
  std::vector<std::string> misuse, calls;
  int live_communicators = 0, aborted = 0, next_id = 0;
};
State& TheState();

Fault FaultOf(const Call& call);
void Misuse(const Member& member, const std::string& what);

// Puts the operations, of one call or one group call, on the stream, as soon as the communicator
// has been asked often enough whether it is ready.
ncclResult_t Submit(const std::shared_ptr<Member>& member, std::vector<Operation> operations,
                    cudaStream_t stream);

}  // namespace terrace::fake_nccl
