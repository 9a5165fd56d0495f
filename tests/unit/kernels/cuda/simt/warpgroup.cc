// Matrix products of warpgroups (wgmma.mma_async, m64nNk16, bf16 or f16 into f32), a lane's part
// at a time.
//
// Descriptors (PTX ISA, "Matrix Descriptor Format"), all lengths in units of 16 bytes: bits 0-13
// the start, 16-29 the leading and 32-45 the stride dimension's byte offset, 49-51 the base offset,
// 62-63 the swizzle (1: 128 bytes, 2: 64, 3: 32). With a swizzle of W bytes, before chunks change
// places, an element of two bytes lies at
//   rows of k ("K-major"):      start + r / 8 * stride + r % 8 * W + 2 k
//   rows of columns ("MN-major"): start + n / (W / 2) * leading + k / 8 * stride + k % 8 * W
//                                 + 2 (n % (W / 2))
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/half.h"
#include "tests/unit/kernels/cuda/simt/hopper.h"
#include "tests/unit/kernels/cuda/simt/machine.h"

namespace terrace::simt {
namespace {

constexpr int kDepth = 16;
constexpr int kPoison = 0xff;

float ValueOf(uint16_t bits, bool f16) {
  return f16 ? kernels::HalfToFloat(bits) : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

struct Matrix {
  Matrix(uint64_t descriptor, bool f16)
      : f16(f16),
        start((descriptor & 0x3fff) << 4),
        leading((descriptor >> 16 & 0x3fff) << 4),
        stride((descriptor >> 32 & 0x3fff) << 4) {
    static constexpr unsigned kSwizzles[] = {0, 128, 64, 32};
    width = kSwizzles[descriptor >> 62];
    if (width == 0) Die("matrices without a swizzle are not executed");
    // The pattern repeats every 8 rows and must begin where the base offset, which is 0, says.
    if ((descriptor >> 49 & 7) != 0 || (start >> 7) % (width / 16) != 0) {
      Die("a matrix does not begin where its swizzle does");
    }
  }
  float ByRow(unsigned row, unsigned k) const {
    return At(start + row / 8 * stride + row % 8 * width + 2 * k);
  }
  float ByColumn(unsigned n, unsigned k) const {
    const unsigned half = width / 2;
    return At(start + n / half * leading + k / 8 * stride + k % 8 * width + 2 * (n % half));
  }

  bool f16;
  uint32_t start, leading, stride;
  unsigned width;

 private:
  float At(uint32_t address) const {
    uint16_t half;
    std::memcpy(&half, AtShared(Swizzled(address, width), sizeof(half)), sizeof(half));
    return ValueOf(half, f16);
  }
};

float HalfOf(uint32_t pair, unsigned half, bool f16) {
  return ValueOf(static_cast<uint16_t>(half == 0 ? pair : pair >> 16), f16);
}

// A's rows of this lane: g and g + 8 of its warp's 16.
void LoadRows(const Product& p, float (*a)[kDepth]) {
  const unsigned g = Lane() / 4, warp = threadIdx.x % kWarpgroup / kWarp;
  for (unsigned h = 0; h < 2; ++h) {
    for (unsigned k = 0; k < kDepth; ++k) {
      a[h][k] = p.registers == nullptr ? Matrix(p.a, p.f16).ByRow(16 * warp + g + 8 * h, k)
                                       : HalfOf(p.row[k % 8 / 2][h + k / 8 * 2], k % 2, p.f16);
    }
  }
}

void Execute(const Product& p) {
  float a[2][kDepth];
  LoadRows(p, a);
  const Matrix b(p.b, p.f16);
  const unsigned t = Lane() % 4;
  for (int n = 0; n < p.columns / 8; ++n) {
    for (unsigned e = 0; e < 4; ++e) {
      const unsigned column = static_cast<unsigned>(n) * 8 + 2 * t + e % 2;
      float sum = p.adds ? p.sums[n][e] : 0.0f;
      for (unsigned k = 0; k < kDepth; ++k) {
        sum += a[e / 2][k] * (p.b_by_rows ? b.ByColumn(column, k) : b.ByRow(column, k));
      }
      p.sums[n][e] = sum;
    }
  }
}

// The sums as they were before the products on their way, in place of the garbage that must still
// be there.
void Return(float* sums, const std::vector<float>& before) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(sums);
  if (std::any_of(bytes, bytes + before.size() * sizeof(float),
                  [](unsigned char b) { return b != kPoison; })) {
    Die("sums were touched while a matrix product was on its way");
  }
  std::copy(before.begin(), before.end(), sums);
}

void Finish(Fiber* self, size_t count) {
  for (auto& [sums, before] : self->sums) Return(sums, before);
  for (size_t i = 0; i < count; ++i) {
    const Product& p = self->products[i];
    if (p.registers != nullptr && !std::equal(p.registers, p.registers + 4, p.row[Lane() % 4])) {
      Die("registers were changed while a matrix product was on its way");
    }
    Execute(p);
  }
  self->products.erase(self->products.begin(), self->products.begin() + static_cast<int>(count));
  // Those of later groups are still not to be looked at.
  self->sums.clear();
  for (const Product& p : self->products) {
    float* sums = p.sums[0];
    if (self->sums.contains(sums)) continue;
    self->sums[sums].assign(sums, sums + p.columns / 2);
    std::memset(sums, kPoison, static_cast<size_t>(p.columns) / 2 * sizeof(float));
  }
}

// All warps of a warpgroup must bring the same products in the same order.
void CheckSame(const Product& p) {
  Machine& m = TheMachine();
  if (blockDim.x % kWarpgroup != 0) Die("matrix products want whole warpgroups");
  std::vector<uint64_t>& all = m.descriptors[threadIdx.x / kWarpgroup];
  const size_t at = 2 * m.running->started++;
  if (at + 2 > all.size()) all.insert(all.end(), {p.a, p.b});
  if (all[at] != p.a || all[at + 1] != p.b) {
    Die("lanes of a warpgroup start different matrix products");
  }
}

void Start(Product p) {
  Machine& m = TheMachine();
  Fiber* self = m.running;
  if (!self->fenced) Die("a matrix product without a fence behind what changed its registers");
  if (p.columns % 8 != 0 || p.columns < 8 || p.columns > 256) Die("no such matrix product");
  CheckSame(p);
  ++m.products_started;
  if (m.order == Order::kForward && self->products.empty()) {
    Execute(p);
    p.columns = 0;  // done
  }
  if (p.columns > 0 && !self->sums.contains(p.sums[0])) {
    float* sums = p.sums[0];
    self->sums[sums].assign(sums, sums + p.columns / 2);
    std::memset(sums, kPoison, static_cast<size_t>(p.columns) / 2 * sizeof(float));
  }
  if (p.columns > 0) self->products.push_back(p);
}

}  // namespace

void FenceProducts() { TheMachine().running->fenced = true; }

void StartProduct(uint64_t a, uint64_t b, const ProductKind& kind, float (*sums)[4]) {
  Start(
      {.a = a, .b = b, .f16 = kind.f16, .columns = kind.columns, .adds = kind.adds, .sums = sums});
}

void StartProduct(const uint32_t* a, uint64_t b, const ProductKind& kind, float (*sums)[4]) {
  Product p = {.b = b,
               .registers = a,
               .b_by_rows = true,
               .f16 = kind.f16,
               .columns = kind.columns,
               .adds = kind.adds,
               .sums = sums};
  const unsigned char* all = Exchange(a, 4 * sizeof(uint32_t));
  for (unsigned t = 0; t < 4; ++t) {
    std::memcpy(p.row[t], all + (Lane() / 4 * 4 + t) * kExchangeBytes, sizeof(p.row[t]));
  }
  Start(p);
}

int64_t ProductsStarted() { return TheMachine().products_started; }

void CommitProducts() {
  Fiber* self = TheMachine().running;
  for (Product& p : self->products) {
    if (p.group < 0) p.group = self->groups;
  }
  ++self->groups;
}

void WaitForProducts(int groups) {
  Fiber* self = TheMachine().running;
  const auto last = std::find_if(
      self->products.begin(), self->products.end(),
      [&](const Product& p) { return p.group < 0 || p.group >= self->groups - groups; });
  Finish(self, static_cast<size_t>(last - self->products.begin()));
  self->fenced = false;
  SyncWarp();  // what a lane frees now, all lanes of its warp have used
}

}  // namespace terrace::simt
