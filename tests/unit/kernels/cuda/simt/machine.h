// The machine behind simt.h: what its files share. Fibers, their turns, and what is on its way.
//
// Only for the files of this folder. Thread rule: as simt.h.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/unit/kernels/cuda/simt/simt.h"

namespace terrace::simt {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kWarpgroup = 128;

enum class State { kReady, kAtBlock, kAtWarp, kWaiting, kDone };

// 16 bytes that a thread copies (cp.async).
struct Copy {
  void* to;
  const void* from;
  bool exists;
};

// A lane's part of a warpgroup's matrix product that has been started.
struct Product {
  uint64_t a = 0, b = 0;                // descriptors
  const uint32_t* registers = nullptr;  // of A, in place of its descriptor
  uint32_t row[4][4] = {};              // what the four lanes of its rows brought in them
  bool b_by_rows = false;
  bool f16 = false;
  int columns = 0;
  bool adds = false;
  float (*sums)[4] = nullptr;
  int group = -1;  // -1: not committed
};

struct Fiber {
  void* stack_pointer = nullptr;
  std::unique_ptr<unsigned char[]> stack;
  State state = State::kReady;
  // Exchanges use two places in turns: one is written again only after a barrier that all lanes
  // pass when they have read it.
  unsigned turn = 0;
  dim3 index;
  std::vector<Copy> copies;                   // that it has started and not waited for
  std::function<bool()> may_go_on;            // while it waits
  std::vector<Product> products;              // in order; those of one group lie together
  std::map<float*, std::vector<float>> sums;  // of products on their way, as they were before
  int groups = 0;                             // committed
  unsigned started = 0;                       // products in all
  bool fenced = false;                        // its registers are in order for products
};

// An mbarrier in shared memory.
struct Barrier {
  int64_t count = 0, pending = 0, bytes = 0;
  bool parity = false;  // of the phase that is not complete
};

// A barrier with a number (bar.sync, bar.arrive).
struct NamedBarrier {
  unsigned expected = 0, arrived = 0, generation = 0;
};

struct Machine {
  Order order = Order::kForward;
  std::mt19937 random{12345};
  std::vector<Fiber> fibers;
  std::vector<unsigned> turns;
  std::vector<unsigned char> exchange;  // [turn][thread][kExchangeBytes]
  std::vector<unsigned char> shared;
  const std::function<void()>* thread = nullptr;
  Fiber* running = nullptr;
  void* scheduler = nullptr;  // its stack pointer

  int64_t products_started = 0;

  // Of the running block.
  std::map<const void*, Barrier> barriers;
  std::map<unsigned, NamedBarrier> named;
  std::vector<std::function<void()>> late;         // copies of tensors on their way
  std::vector<std::vector<uint64_t>> descriptors;  // of products, by warpgroup
};

Machine& TheMachine();
[[noreturn]] void Die(const char* what);
// The running thread goes on when the others have had a turn and `may_go_on` says so.
void WaitUntil(std::function<bool()> may_go_on);

// Of kernels/cuda/wgmma.cuh: swizzled places in shared memory, in the manual's addresses.
uint32_t Swizzled(uint32_t address, unsigned bytes);
unsigned char* AtShared(uint32_t address, size_t bytes);

}  // namespace terrace::simt
