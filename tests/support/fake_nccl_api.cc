// NCCL's calls, answered by the fake.
//
// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <cstdio>
#include <utility>

#include "tests/support/fake_nccl_cuda.h"
#include "tests/support/fake_nccl_state.h"

using namespace terrace::fake_nccl;  // NOLINT: the names below are NCCL's own

struct ncclComm {
  std::shared_ptr<Member> member;
};

namespace {

// The group call of this thread.
thread_local int group_depth = 0;
thread_local std::vector<std::pair<std::shared_ptr<Member>, Operation>> group_operations;
thread_local cudaStream_t group_stream = nullptr;
thread_local ncclResult_t refusal = ncclSuccess;  // of the next call

ncclResult_t Start(ncclComm_t comm, cudaStream_t stream, Operation operation) {
  if (refusal != ncclSuccess) return std::exchange(refusal, ncclSuccess);
  if (group_depth > 0) {
    group_operations.emplace_back(comm->member, std::move(operation));
    group_stream = stream;
    return ncclSuccess;
  }
  const std::lock_guard lock(TheState().mutex);
  return Submit(comm->member, {std::move(operation)}, stream);
}

int64_t BytesOf(size_t count, ncclDataType_t type) {
  const int64_t element = type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
  return static_cast<int64_t>(count) * element;
}

void Release(ncclComm_t comm) {
  --TheState().live_communicators;
  delete comm;
}

}  // namespace

void terrace::fake_nccl::RefuseNext(int error) { refusal = static_cast<ncclResult_t>(error); }

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(TheState().mutex);
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "clique %d", ++TheState().next_id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(TheState().mutex);
  std::shared_ptr<Clique>& clique = TheState().cliques[id.internal];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->size = size;
  ++clique->joined;
  auto member = std::make_shared<Member>();
  member->clique = clique;
  member->rank = rank;
  member->device = CurrentDevice();
  if (config->blocking != 0) Misuse(*member, "made blocking: a lost member could not be given up");
  *comm = new ncclComm{std::move(member)};
  ++TheState().live_communicators;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(TheState().mutex);
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
  const std::lock_guard lock(TheState().mutex);
  if (comm->member->running > 0) Misuse(*comm->member, "finalized while something runs");
  if (!comm->member->registrations.empty())
    Misuse(*comm->member, "finalized while memory is registered");
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(TheState().mutex);
  Release(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::unique_lock lock(TheState().mutex);
  const std::shared_ptr<Member> member = comm->member;
  member->aborted = true;
  TheState().changed.notify_all();
  TheState().changed.wait(lock, [&] { return member->running == 0; });
  ++TheState().aborted;
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
  const std::lock_guard lock(TheState().mutex);
  Member& member = *comm->member;
  if (memory == nullptr || bytes == 0) Misuse(member, "registered nothing");
  *handle = nullptr;
  const Call call = {"register", member.rank, member.clique->size};
  const Fault fault = FaultOf(call);
  if (fault.error != 0) return static_cast<ncclResult_t>(fault.error);
  if (!fault.skips) *handle = member.registrations.Add(memory, bytes);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const std::lock_guard lock(TheState().mutex);
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
  const std::lock_guard lock(TheState().mutex);
  return Submit(all.front().first, std::move(operations), group_stream);
}

}  // extern "C"
