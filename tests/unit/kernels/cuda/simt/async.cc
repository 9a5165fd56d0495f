// mbarriers, barriers with numbers and copies of tensors.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <utility>
#include <vector>

#include "tests/unit/kernels/cuda/simt/hopper.h"
#include "tests/unit/kernels/cuda/simt/machine.h"

namespace terrace::simt {
namespace {

// Where dynamic shared memory begins: behind what the system keeps, on no larger boundary.
constexpr uint32_t kSharedStart = 1024 + 16;
constexpr unsigned kElementBytes = 2;
constexpr int kPoison = 0xff;

Barrier& At(const void* place) {
  auto found = TheMachine().barriers.find(place);
  if (found == TheMachine().barriers.end()) Die("a barrier was never initialised");
  return found->second;
}

// The phase is complete when all have arrived and all bytes are there.
void Complete(Barrier* barrier) {
  if (barrier->pending != 0 || barrier->bytes != 0) return;
  barrier->parity = !barrier->parity;
  barrier->pending = barrier->count;
}

// Without `mine`: the running thread does not wait.
NamedBarrier& ArriveAt(unsigned number, unsigned threads) {
  if (number == 0 || number > 15 || threads % kWarp != 0) Die("no such numbered barrier");
  NamedBarrier& barrier = TheMachine().named[number];
  if (barrier.arrived > 0 && barrier.expected != threads) {
    Die("a numbered barrier is for other numbers of threads");
  }
  barrier.expected = threads;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  return barrier;
}

struct TensorCopy {
  Tensor tensor;
  std::vector<int64_t> at;
  uint32_t to;
  Barrier* barrier;

  uint32_t BoxBytes() const {
    uint32_t bytes = kElementBytes;
    for (unsigned d = 0; d < tensor.rank; ++d) bytes *= tensor.box[d];
    return bytes;
  }
  // The n-th element of the box; null outside the tensor.
  const unsigned char* From(uint32_t n) const {
    const unsigned char* from = tensor.data;
    bool inside = true;
    for (unsigned d = 0; d < tensor.rank; ++d) {
      const int64_t place = at[d] + n % tensor.box[d];
      n /= tensor.box[d];
      inside = inside && place >= 0 && place < static_cast<int64_t>(tensor.size[d]);
      if (!inside) return nullptr;
      from += static_cast<uint64_t>(place) * (d == 0 ? kElementBytes : tensor.stride_bytes[d - 1]);
    }
    return from;
  }
  void Carry() const {
    for (uint32_t n = 0; n < BoxBytes() / kElementBytes; ++n) {
      const uint32_t address = Swizzled(to + n * kElementBytes, tensor.swizzle_bytes);
      unsigned char* place = AtShared(address, kElementBytes);
      const unsigned char* from = From(n);
      std::memset(place, 0, kElementBytes);
      if (from != nullptr) std::memcpy(place, from, kElementBytes);
    }
    barrier->bytes -= BoxBytes();
    Complete(barrier);
  }
};

}  // namespace

uint32_t SharedAddress(const void* place) {
  const std::vector<unsigned char>& shared = TheMachine().shared;
  const auto offset = static_cast<const unsigned char*>(place) - shared.data();
  if (offset < 0 || offset > static_cast<std::ptrdiff_t>(shared.size())) {
    Die("an address is not in dynamic shared memory");
  }
  return kSharedStart + static_cast<uint32_t>(offset);
}

unsigned char* AtShared(uint32_t address, size_t bytes) {
  std::vector<unsigned char>& shared = TheMachine().shared;
  if (address < kSharedStart || address - kSharedStart + bytes > shared.size()) {
    Die("a place is not in dynamic shared memory");
  }
  return shared.data() + (address - kSharedStart);
}

// Of 16-byte chunks, those of a row of `bytes` change places with the row's number: address bits 4
// and up are xored with those from bit 7 on.
uint32_t Swizzled(uint32_t address, unsigned bytes) {
  switch (bytes) {
    case 0:
      return address;
    case 32:
      return address ^ ((address >> 7 & 1) << 4);
    case 64:
      return address ^ ((address >> 7 & 3) << 4);
    case 128:
      return address ^ ((address >> 7 & 7) << 4);
    default:
      Die("no such swizzle");
  }
}

void InitBarrier(void* barrier, unsigned count) {
  if (SharedAddress(barrier) % 8 != 0 || count == 0) Die("no barrier can be there");
  if (TheMachine().barriers.contains(barrier)) Die("a barrier was initialised twice");
  TheMachine().barriers[barrier] = {.count = count, .pending = count};
}

void Arrive(void* barrier) { ArriveExpecting(barrier, 0); }

void ArriveExpecting(void* place, unsigned bytes) {
  Barrier& barrier = At(place);
  barrier.bytes += bytes;
  if (--barrier.pending < 0) Die("a barrier's phase had more arrivals than it counts");
  Complete(&barrier);
}

void WaitForPhase(void* place, unsigned parity) {
  const Barrier& barrier = At(place);
  WaitUntil([&barrier, parity] { return barrier.parity != (parity != 0); });
}

void ArriveNamed(unsigned number, unsigned threads) { ArriveAt(number, threads); }

void SyncNamed(unsigned number, unsigned threads) {
  NamedBarrier& barrier = TheMachine().named[number];
  const unsigned before = barrier.generation;
  ArriveAt(number, threads);
  WaitUntil([&barrier, before] { return barrier.generation != before; });
}

void StartTensorCopy(void* to, const void* map, const int32_t* at, void* barrier) {
  TensorCopy copy = {};
  std::memcpy(&copy.tensor, map, sizeof(Tensor));
  if (copy.tensor.mark != kTensorMark) Die("a copy of a tensor that nobody described");
  copy.at.assign(at, at + copy.tensor.rank);
  copy.to = SharedAddress(to);
  copy.barrier = &At(barrier);
  if (copy.to % 128 != 0) Die("a copy of a tensor is not aligned");
  Machine& m = TheMachine();
  if (m.order == Order::kForward) return copy.Carry();
  std::memset(AtShared(copy.to, copy.BoxBytes()), kPoison, copy.BoxBytes());
  m.late.push_back([copy] { copy.Carry(); });
}

}  // namespace terrace::simt
