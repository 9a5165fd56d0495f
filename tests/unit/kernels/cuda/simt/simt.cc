// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/half.h"
#include "tests/unit/kernels/cuda/simt/machine.h"

#if !defined(__x86_64__)
#error "fibers are switched by x86-64 code"
#endif

// Saves the callee's registers and the stack pointer to *from, goes on where `to` was saved.
extern "C" void terrace_simt_switch(void** from, void* to);
asm(R"(
.text
.globl terrace_simt_switch
.type terrace_simt_switch, @function
terrace_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size terrace_simt_switch, .-terrace_simt_switch
)");

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace terrace::simt {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kCopyBytes = 16;

}  // namespace

Machine& TheMachine() {
  static Machine machine;
  return machine;
}

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "simt: %s (block %u,%u of %u,%u, %u threads)\n", what, blockIdx.x,
               blockIdx.y, gridDim.x, gridDim.y, blockDim.x);
  std::abort();
}

namespace {

void Yield(State state) {
  Machine& m = TheMachine();
  Fiber* self = m.running;
  self->state = state;
  terrace_simt_switch(&self->stack_pointer, m.scheduler);
}

void Carry(const Copy& copy) {
  if (copy.exists) {
    std::memcpy(copy.to, copy.from, kCopyBytes);
  } else {
    std::memset(copy.to, 0, kCopyBytes);
  }
}

[[noreturn]] void FiberMain() {
  (*TheMachine().thread)();
  const Fiber& self = *TheMachine().running;
  if (!self.copies.empty()) Die("a thread ended before its copies");
  if (!self.products.empty()) Die("a thread ended before its matrix products");
  Yield(State::kDone);
  Die("a finished thread was resumed");
}

void Start(Fiber* fiber) {
  if (fiber->stack == nullptr) fiber->stack = std::make_unique<unsigned char[]>(kStackBytes);
  auto top = reinterpret_cast<uintptr_t>(fiber->stack.get() + kStackBytes) & ~uintptr_t{63};
  auto* words = reinterpret_cast<void**>(top);
  // At its first instruction a function finds the stack 8 bytes off 16.
  *--words = nullptr;
  *--words = reinterpret_cast<void*>(&FiberMain);
  for (int i = 0; i < 6; ++i) *--words = nullptr;
  fiber->stack_pointer = words;
  fiber->state = State::kReady;
  fiber->turn = 0;
  fiber->copies.clear();
  fiber->groups = 0;
  fiber->started = 0;
  fiber->fenced = false;
}

// All of [first, end) wait at that barrier: let them go on.
bool Release(unsigned first, unsigned end, State barrier) {
  Machine& m = TheMachine();
  for (unsigned i = first; i < end; ++i) {
    if (m.fibers[i].state != barrier) return false;
  }
  for (unsigned i = first; i < end; ++i) m.fibers[i].state = State::kReady;
  return true;
}

// One copy of a tensor arrives: any, or the last that was started.
void CarryLate() {
  Machine& m = TheMachine();
  const size_t which = m.order == Order::kShuffled ? m.random() % m.late.size() : m.late.size() - 1;
  const std::function<void()> carry = std::move(m.late[which]);
  m.late.erase(m.late.begin() + static_cast<std::ptrdiff_t>(which));
  carry();
}

// One turn for everyone that can run; false when all are done. Copies of tensors arrive when nobody
// can go on without them, in shuffled turns now and then before.
bool Turn(unsigned threads) {
  Machine& m = TheMachine();
  if (m.order == Order::kShuffled) std::shuffle(m.turns.begin(), m.turns.end(), m.random);
  if (m.order == Order::kShuffled && !m.late.empty() && m.random() % 4 == 0) CarryLate();
  bool any = false;
  for (unsigned i : m.turns) {
    Fiber& fiber = m.fibers[i];
    if (fiber.state == State::kWaiting && fiber.may_go_on()) fiber.state = State::kReady;
    if (fiber.state != State::kReady) continue;
    any = true;
    m.running = &fiber;
    threadIdx = fiber.index;
    terrace_simt_switch(&m.scheduler, fiber.stack_pointer);
  }
  bool released = Release(0, threads, State::kAtBlock);
  for (unsigned warp = 0; warp < threads; warp += kWarp) {
    released = Release(warp, std::min(warp + kWarp, threads), State::kAtWarp) || released;
  }
  if (any || released) return true;
  if (!m.late.empty()) {
    CarryLate();
    return true;
  }
  for (unsigned i = 0; i < threads; ++i) {
    if (m.fibers[i].state != State::kDone) Die("threads wait at a barrier that others never reach");
  }
  return false;
}

void RunBlock(unsigned threads) {
  Machine& m = TheMachine();
  std::fill(m.shared.begin(), m.shared.end(), 0xff);
  m.barriers.clear();
  m.named.clear();
  m.descriptors.assign(threads / kWarpgroup + 1, {});
  for (unsigned i = 0; i < threads; ++i) {
    m.fibers[i].index = dim3(i, 0, 0);
    Start(&m.fibers[i]);
  }
  while (Turn(threads)) {
  }
  for (const auto& [number, barrier] : m.named) {
    if (barrier.arrived != 0) Die("a block ended with a numbered barrier half full");
  }
}

}  // namespace

void SetOrder(Order order) { TheMachine().order = order; }

void Run(const dim3& grid, const dim3& block, size_t shared_bytes,
         const std::function<void()>& thread) {
  Machine& m = TheMachine();
  const unsigned threads = block.x;
  if (block.y != 1 || block.z != 1 || grid.z != 1) Die("only x, and y of the grid, are executed");
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.y > 65535) {
    Die("no GPU would start this");
  }
  gridDim = grid;
  blockDim = block;
  m.thread = &thread;
  m.shared.resize(shared_bytes);
  if (m.fibers.size() < threads) m.fibers.resize(threads);
  m.exchange.resize(2 * threads * kExchangeBytes);
  m.turns.resize(threads);
  std::iota(m.turns.begin(), m.turns.end(), 0u);
  if (m.order == Order::kBackward) std::reverse(m.turns.begin(), m.turns.end());
  const uint64_t blocks = uint64_t{grid.x} * grid.y;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t at = m.order == Order::kForward ? i : blocks - 1 - i;
    blockIdx = dim3(static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x), 0);
    RunBlock(threads);
  }
}

unsigned char* DynamicShared() { return TheMachine().shared.data(); }

void StartCopy(void* to, const void* from, bool exists) {
  for (const void* address : {static_cast<const void*>(to), from}) {
    if (reinterpret_cast<uintptr_t>(address) % kCopyBytes != 0) Die("a copy is not aligned");
  }
  Machine& m = TheMachine();
  const Copy copy = {to, from, exists};
  if (m.order == Order::kForward) return Carry(copy);
  std::memset(to, 0xff, kCopyBytes);  // nobody may count on what was there, nor on what will be
  m.running->copies.push_back(copy);
}

void FinishCopies() {
  for (const Copy& copy : std::exchange(TheMachine().running->copies, {})) Carry(copy);
}

void WaitUntil(std::function<bool()> may_go_on) {
  if (may_go_on()) return;
  TheMachine().running->may_go_on = std::move(may_go_on);
  Yield(State::kWaiting);
}

void SyncBlock() { Yield(State::kAtBlock); }
void SyncWarp() { Yield(State::kAtWarp); }

const unsigned char* Exchange(const void* mine, size_t bytes) {
  Machine& m = TheMachine();
  const unsigned thread = m.running->index.x;
  unsigned char* place = m.exchange.data() + m.running->turn * blockDim.x * kExchangeBytes;
  m.running->turn ^= 1;
  std::memcpy(place + thread * kExchangeBytes, mine, bytes);
  SyncWarp();
  return place + thread / kWarp * kWarp * kExchangeBytes;
}

namespace {

float HalfOf(uint32_t pair, unsigned half, bool f16) {
  if (f16) return kernels::HalfToFloat(static_cast<uint16_t>(half == 0 ? pair : pair >> 16));
  const uint32_t bits = half == 0 ? pair << 16 : pair & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

void LoadMatrices(const void* row, bool transposed, uint32_t* out) {
  if (reinterpret_cast<uintptr_t>(row) % kCopyBytes != 0) Die("a row of a matrix is not aligned");
  const unsigned char* all = Exchange(&row, sizeof(row));
  const auto element = [all](unsigned matrix, unsigned i, unsigned j) -> uint32_t {
    const unsigned char* from;
    std::memcpy(&from, all + (8 * matrix + i) * kExchangeBytes, sizeof(from));
    uint16_t bits;
    std::memcpy(&bits, from + j * sizeof(bits), sizeof(bits));
    return bits;
  };
  const unsigned g = Lane() / 4, t = Lane() % 4;
  for (unsigned m = 0; m < 4; ++m) {
    out[m] = transposed ? element(m, 2 * t, g) | element(m, 2 * t + 1, g) << 16
                        : element(m, g, 2 * t) | element(m, g, 2 * t + 1) << 16;
  }
}

void MultiplyFragments(const uint32_t* a, const uint32_t* b, float* c, bool f16) {
  uint32_t mine[6];
  std::copy_n(a, 4, mine);
  std::copy_n(b, 2, mine + 4);
  const unsigned char* all = Exchange(mine, sizeof(mine));
  const auto registers_of = [all](unsigned lane, unsigned which) {
    uint32_t word;
    std::memcpy(&word, all + lane * kExchangeBytes + which * sizeof(word), sizeof(word));
    return word;
  };
  const unsigned g = Lane() / 4, t = Lane() % 4;
  for (unsigned e = 0; e < 4; ++e) {
    const unsigned row = g + e / 2 * 8, column = 2 * t + e % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const uint32_t a_pair = registers_of(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2);
      const uint32_t b_pair = registers_of(column * 4 + k % 8 / 2, 4 + k / 8);
      c[e] += HalfOf(a_pair, k % 2, f16) * HalfOf(b_pair, k % 2, f16);
    }
  }
}

}  // namespace terrace::simt
