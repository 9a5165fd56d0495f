// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl.h"

#include <nccl.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/support/fake_nccl_cuda.h"
#include "tests/support/fake_nccl_memory.h"
#include "worker/comm/sums.h"

namespace terrace::fake_nccl {
namespace {

constexpr int kPollsInProgress = 2;  // how often a call is still "in progress" when asked

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

std::mutex mutex;  // of everything here
std::condition_variable changed;
std::map<std::string, std::shared_ptr<Clique>> cliques;
std::function<Fault(const Call&)> faults;
std::vector<std::string> misuse, calls;
int live_communicators = 0, aborted = 0, next_id = 0;

// The group call of this thread.
thread_local int group_depth = 0;
thread_local std::vector<std::pair<std::shared_ptr<Member>, Operation>> group_operations;
thread_local cudaStream_t group_stream = nullptr;

void Misuse(const Member& member, const std::string& what) {
  misuse.push_back("member " + std::to_string(member.rank) + " of " +
                   std::to_string(member.clique->size) + ": " + what);
}

ReduceType TypeOf(ncclDataType_t type) {
  return type == ncclBfloat16 ? ReduceType::kBF16 : ReduceType::kF32;
}

using Bytes = std::vector<std::byte>;

// The sum of `bytes` at `offset` of every member's input, beginning with that of member `first`.
Bytes Sum(const std::map<int, Operation>& all, int64_t offset, int64_t bytes, int first) {
  const int size = static_cast<int>(all.size());
  const auto input = [&](int member) {
    return static_cast<const std::byte*>(all.at(member % size).in) + offset;
  };
  Bytes sum(input(first), input(first) + bytes);
  for (int i = 1; i < size; ++i) {
    AdderOf(TypeOf(all.at(0).type))(sum.data(), sum.data(), input(first + i), bytes);
  }
  return sum;
}

// Results first, as outputs may lie in inputs.
void Perform(const std::map<int, Operation>& all) {
  const Operation& any = all.at(0);
  std::map<int, Bytes> results;
  for (const auto& [member, call] : all) {
    Bytes& result = results[member];
    if (any.kind == "all-reduce") {
      result = Sum(all, 0, any.bytes, 0);
    } else if (any.kind == "reduce-scatter") {
      result = Sum(all, member * any.bytes, any.bytes, member + 1);
    } else if (any.kind == "broadcast") {
      const auto* root = static_cast<const std::byte*>(all.at(any.other).in);
      result = Bytes(root, root + any.bytes);
    } else {
      for (const auto& [from, other] : all) {
        const auto* part = static_cast<const std::byte*>(other.in);
        result.insert(result.end(), part, part + any.bytes);
      }
    }
  }
  for (const auto& [member, call] : all) {
    std::memcpy(call.out, results[member].data(), results[member].size());
  }
}

bool SameCall(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.bytes == b.bytes && a.type == b.type && a.other == b.other;
}

void Meet(Member* member, const Operation& operation, int64_t number,
          std::unique_lock<std::mutex>* lock) {
  Meeting& meeting = member->clique->meetings[number];
  if (!meeting.calls.empty() && !SameCall(meeting.calls.begin()->second, operation)) {
    Misuse(*member, operation.kind + " where another member calls " +
                        meeting.calls.begin()->second.kind + ", or of another size");
    member->state = ncclInvalidUsage;
    changed.wait(*lock, [&] { return member->aborted; });
    return;
  }
  if (!meeting.calls.empty() &&
      !SamePlaces(operation.kind, meeting.calls.begin()->second.places, operation.places)) {
    Misuse(*member, operation.kind + " with memory registered elsewhere than another member's");
  }
  meeting.calls[member->rank] = operation;
  if (static_cast<int>(meeting.calls.size()) == member->clique->size) {
    Perform(meeting.calls);
    meeting.done = true;
    changed.notify_all();
  }
  changed.wait(*lock, [&] { return meeting.done || member->aborted; });
  if (!meeting.done) meeting.calls.erase(member->rank);
}

// All sends and receives of a group call at the same time.
void Exchange(Member* member, const std::vector<Operation>& operations,
              std::unique_lock<std::mutex>* lock) {
  auto& mail = member->clique->mail;
  std::vector<std::pair<int, std::shared_ptr<Letter>>> sent;
  for (const Operation& operation : operations) {
    if (operation.kind != "send") continue;
    sent.emplace_back(operation.other,
                      std::make_shared<Letter>(Letter{operation.in, operation.bytes,
                                                      operation.places.in != kUnregistered}));
    mail[{member->rank, operation.other}].push_back(sent.back().second);
  }
  changed.notify_all();
  for (const Operation& operation : operations) {
    if (operation.kind != "receive") continue;
    auto& box = mail[{operation.other, member->rank}];
    changed.wait(*lock, [&] { return !box.empty() || member->aborted; });
    if (member->aborted) break;
    if (box.front()->bytes != operation.bytes) Misuse(*member, "a message of another size");
    if (box.front()->registered != (operation.places.out != kUnregistered))
      Misuse(*member, "a message between registered memory and memory that is not");
    std::memcpy(operation.out, box.front()->data, operation.bytes);
    box.front()->taken = true;
    box.pop_front();
    changed.notify_all();
  }
  for (const auto& [to, letter] : sent) {
    changed.wait(*lock, [&] { return letter->taken || member->aborted; });
    if (!letter->taken) std::erase(mail[{member->rank, to}], letter);
  }
}

void Run(Member* member, const std::vector<Operation>& operations, int64_t collective) {
  std::unique_lock lock(mutex);
  const bool messages = operations[0].kind == "send" || operations[0].kind == "receive";
  const Call call = {messages ? "messages" : operations[0].kind, member->rank, member->clique->size,
                     ++member->operations};
  if (member->rank == 0) calls.push_back(call.kind);
  const Fault fault = faults ? faults(call) : Fault{};
  if (fault.error != 0) member->state = static_cast<ncclResult_t>(fault.error);
  if (fault.error != 0 || fault.hangs) {
    changed.wait(lock, [&] { return member->aborted; });
  } else if (messages) {
    Exchange(member, operations, &lock);
  } else {
    Meet(member, operations[0], collective, &lock);
  }
  --member->running;
  changed.notify_all();
}

// REQUIRES: the mutex is held.
ncclResult_t Submit(const std::shared_ptr<Member>& member, std::vector<Operation> operations,
                    cudaStream_t stream) {
  const bool connected = member->clique->joined == member->clique->size;
  if (!connected || member->polls > 0 || member->device != CurrentDevice()) {
    Misuse(*member, operations[0].kind + (!connected          ? " before it was connected"
                                          : member->polls > 0 ? " while a call is in progress"
                                                              : " on another device"));
    return ncclInvalidUsage;
  }
  for (Operation& operation : operations) {
    operation.places = {member->registrations.PlaceOf(operation.in),
                        member->registrations.PlaceOf(operation.out)};
  }
  const bool collective = operations[0].kind != "send" && operations[0].kind != "receive";
  const int64_t number = collective ? ++member->collectives : 0;
  member->polls = kPollsInProgress;
  member->ready = [member, operations = std::move(operations), number, stream] {
    ++member->running;
    Enqueue(stream, [=] { Run(member.get(), operations, number); });
  };
  return ncclInProgress;
}

}  // namespace

void SetFaults(std::function<Fault(const Call&)> next) {
  const std::lock_guard lock(mutex);
  faults = std::move(next);
}

Live CountLive() {
  Live live;
  CountCuda(&live.streams, &live.events, &live.allocations);
  const std::lock_guard lock(mutex);
  live.communicators = live_communicators;
  live.registrations = CountRegistrations();
  return live;
}

int Aborted() {
  const std::lock_guard lock(mutex);
  return aborted;
}

std::vector<std::string> TakeMisuse() {
  const std::lock_guard lock(mutex);
  return std::exchange(misuse, {});
}

std::byte* NewMemory(int64_t bytes) { return NewPages(bytes); }

void FreeMemory(std::byte* memory) {
  const std::lock_guard lock(mutex);
  if (IsRegistered(memory)) misuse.push_back("memory was freed while it was registered");
  FreePages(memory);
}

std::vector<std::string> TakeCalls() {
  const std::lock_guard lock(mutex);
  return std::exchange(calls, {});
}

}  // namespace terrace::fake_nccl

using terrace::fake_nccl::Operation;

struct ncclComm {
  std::shared_ptr<terrace::fake_nccl::Member> member;
};

namespace terrace::fake_nccl {
namespace {

ncclResult_t Start(ncclComm_t comm, cudaStream_t stream, Operation operation) {
  if (group_depth > 0) {
    group_operations.emplace_back(comm->member, std::move(operation));
    group_stream = stream;
    return ncclSuccess;
  }
  const std::lock_guard lock(mutex);
  return Submit(comm->member, {std::move(operation)}, stream);
}

int64_t BytesOf(size_t count, ncclDataType_t type) {
  const int64_t element = type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
  return static_cast<int64_t>(count) * element;
}

void Release(ncclComm_t comm) {
  --live_communicators;
  delete comm;
}

}  // namespace
}  // namespace terrace::fake_nccl

using namespace terrace::fake_nccl;  // NOLINT: below are only the functions of nccl.h

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "clique %d", ++next_id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  std::shared_ptr<Clique>& clique = cliques[id.internal];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->size = size;
  ++clique->joined;
  auto member = std::make_shared<Member>();
  member->clique = clique;
  member->rank = rank;
  member->device = CurrentDevice();
  if (config->blocking != 0) Misuse(*member, "made blocking: a lost member could not be given up");
  *comm = new ncclComm{std::move(member)};
  ++live_communicators;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  Member& member = *comm->member;
  *state = member.state;
  if (*state != ncclSuccess) return ncclSuccess;
  if (member.clique->joined < member.clique->size) *state = ncclInProgress;
  if (member.polls > 0) {
    *state = ncclInProgress;
    if (--member.polls == 0) std::exchange(member.ready, nullptr)();
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  if (comm->member->running > 0) Misuse(*comm->member, "finalized while something runs");
  if (!comm->member->registrations.empty())
    Misuse(*comm->member, "finalized while memory is registered");
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  Release(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::unique_lock lock(mutex);
  const std::shared_ptr<Member> member = comm->member;
  member->aborted = true;
  changed.notify_all();
  changed.wait(lock, [&] { return member->running == 0; });
  ++aborted;
  member->registrations.Clear();
  Release(comm);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an error of the fake NCCL";
}

const char* ncclGetLastError(ncclComm_t) { return "the last line of its log"; }

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  const std::lock_guard lock(mutex);
  Member& member = *comm->member;
  if (memory == nullptr || bytes == 0) Misuse(member, "registered nothing");
  *handle = nullptr;
  const Call call = {"register", member.rank, member.clique->size};
  const Fault fault = faults ? faults(call) : Fault{};
  if (fault.error != 0) return static_cast<ncclResult_t>(fault.error);
  if (!fault.skips) *handle = member.registrations.Add(memory, bytes);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const std::lock_guard lock(mutex);
  Member& member = *comm->member;
  if (member.running > 0) Misuse(member, "deregistered while something runs");
  if (!member.registrations.Remove(handle)) Misuse(member, "deregistered what was not registered");
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return Start(comm, stream, {"all-reduce", in, out, BytesOf(count, type), type});
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return Start(comm, stream, {"reduce-scatter", in, out, BytesOf(count, type), type});
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Start(comm, stream, {"all-gather", in, out, BytesOf(count, type), type});
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Start(comm, stream, {"broadcast", in, out, BytesOf(count, type), type, root});
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Start(comm, stream, {"send", in, nullptr, BytesOf(count, type), type, peer});
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Start(comm, stream, {"receive", nullptr, out, BytesOf(count, type), type, peer});
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

// All operations are messages of one communicator.
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  auto all = std::exchange(group_operations, {});
  if (all.empty()) return ncclSuccess;
  std::vector<Operation> operations;
  for (auto& [member, operation] : all) operations.push_back(std::move(operation));
  const std::lock_guard lock(mutex);
  return Submit(all.front().first, std::move(operations), group_stream);
}

}  // extern "C"
