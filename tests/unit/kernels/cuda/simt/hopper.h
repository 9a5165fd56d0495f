// What sm_90a adds, executed on the host by the layouts of the PTX manual: mbarriers, barriers with
// numbers, copies of tensors (TMA) and matrix products of warpgroups (wgmma).
//
// All that is asynchronous happens at once in one order of threads and as late as can be in the
// others: copies of tensors when nobody can go on without them, products when their lane waits for
// them. Until then places that are written hold garbage, and sums and registers of A must stay as
// they are. Misuse that hardware would answer with garbage or a hang ends the process with a
// message. Thread rule: as simt.h.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::simt {

// Of dynamic shared memory, in the block's window: not aligned to more than 16 bytes.
uint32_t SharedAddress(const void* place);

void InitBarrier(void* barrier, unsigned count);
void Arrive(void* barrier);
void ArriveExpecting(void* barrier, unsigned bytes);
void WaitForPhase(void* barrier, unsigned parity);

void SyncNamed(unsigned number, unsigned threads);
void ArriveNamed(unsigned number, unsigned threads);

// What the driver's descriptor of a tensor says; kTensorMark where one has been made.
inline constexpr uint64_t kTensorMark = 0x7465'6e73'6f72'6d61;
inline constexpr unsigned kMaxTensorRank = 5;
struct Tensor {
  uint64_t mark;
  const unsigned char* data;
  uint32_t rank, swizzle_bytes;  // 0: none
  uint64_t size[kMaxTensorRank];
  uint64_t stride_bytes[kMaxTensorRank - 1];  // from the second dimension on
  uint16_t box[kMaxTensorRank];
};
// Elements have two bytes. What lies outside the tensor becomes zeros.
void StartTensorCopy(void* to, const void* map, const int32_t* at, void* barrier);

// A product of 64 rows of A with `columns` of B, over 16 places of k: sums += or = A B.
struct ProductKind {
  int columns;
  bool f16;  // A and B; else bf16
  bool adds;
};

// The lane's part of a product. A by a descriptor (rows of k) or the lane's four registers; B by a
// descriptor, columns of k or (b_by_rows) rows of columns.
void FenceProducts();
void StartProduct(uint64_t a, uint64_t b, const ProductKind& kind, float (*sums)[4]);
void StartProduct(const uint32_t* a, uint64_t b, const ProductKind& kind, float (*sums)[4]);
void CommitProducts();
// Of all lanes of all blocks so far.
int64_t ProductsStarted();
// Until at most `groups` of the committed ones are on their way.
void WaitForProducts(int groups);

}  // namespace terrace::simt
