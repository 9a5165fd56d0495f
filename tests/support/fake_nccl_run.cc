// How operations of the fake NCCL meet, and what they do then.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/support/fake_nccl_cuda.h"
#include "tests/support/fake_nccl_state.h"
#include "worker/comm/sums.h"

namespace terrace::fake_nccl {
namespace {

constexpr int kPollsInProgress = 2;  // how often a call is still "in progress" when asked

ReduceType TypeOf(ncclDataType_t type) {
  if (type == ncclFloat16) return ReduceType::kF16;
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
    TheState().changed.wait(*lock, [&] { return member->aborted; });
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
    TheState().changed.notify_all();
  }
  TheState().changed.wait(*lock, [&] { return meeting.done || member->aborted; });
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
  TheState().changed.notify_all();
  for (const Operation& operation : operations) {
    if (operation.kind != "receive") continue;
    auto& box = mail[{operation.other, member->rank}];
    TheState().changed.wait(*lock, [&] { return !box.empty() || member->aborted; });
    if (member->aborted) break;
    if (box.front()->bytes != operation.bytes) Misuse(*member, "a message of another size");
    if (box.front()->registered != (operation.places.out != kUnregistered))
      Misuse(*member, "a message between registered memory and memory that is not");
    std::memcpy(operation.out, box.front()->data, operation.bytes);
    box.front()->taken = true;
    box.pop_front();
    TheState().changed.notify_all();
  }
  for (const auto& [to, letter] : sent) {
    TheState().changed.wait(*lock, [&] { return letter->taken || member->aborted; });
    if (!letter->taken) std::erase(mail[{member->rank, to}], letter);
  }
}

void Run(Member* member, const std::vector<Operation>& operations, int64_t collective) {
  std::unique_lock lock(TheState().mutex);
  const bool messages = operations[0].kind == "send" || operations[0].kind == "receive";
  const Call call = {messages ? "messages" : operations[0].kind, member->rank, member->clique->size,
                     ++member->operations};
  if (member->rank == 0) TheState().calls.push_back(call.kind);
  const Fault fault = FaultOf(call);
  if (fault.error != 0) member->state = static_cast<ncclResult_t>(fault.error);
  if (fault.error != 0 || fault.hangs) {
    TheState().changed.wait(lock, [&] { return member->aborted; });
  } else if (messages) {
    Exchange(member, operations, &lock);
  } else {
    Meet(member, operations[0], collective, &lock);
  }
  --member->running;
  TheState().changed.notify_all();
}

}  // namespace

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

}  // namespace terrace::fake_nccl
