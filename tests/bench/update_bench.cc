// The optimizer of offloaded states against STREAM's triad: does the host's update by each rule
// reach the bandwidth of memory at its own byte count, 12 bytes a parameter and 8 a moment
// (gradient, weight and moments read, all but the gradient written)?
//
// The reference is the better of the triad with plain and with streaming stores, in the same round.
// Operands lie in one block of huge pages as in a rank's host arena: whole tensors far beyond the
// caches; the same walked in chunks, one launch a chunk, as the streamed optimizer does; slots that
// are used again and again. "256 MiB apart" is the placement that some first-level caches dislike.
//
//   update_bench [rounds [threads]]     (11 rounds; 1 thread by its CPU time, then 2 by the clock)
//
// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/registry.h"
#include "tests/bench/rounds.h"
#include "tests/bench/triad.h"

namespace terrace::kernels {
namespace {

using bench::Stores;
using bench::Work;

constexpr int64_t kMiB = 1 << 20;

struct Operand {
  DType dtype = DType::kF32;
  int64_t offset = 0;  // bytes, in the block
};

TensorView ViewAt(DType dtype, void* data, int64_t elements) {
  TensorView view;
  view.dtype = dtype;
  view.dims = 1;
  view.size[0] = elements;
  view.row_stride = 1;
  view.data = data;
  return view;
}

// One pass of `op` over `elements` elements, `chunk` of them a launch; `bytes` moved an element.
struct Pass {
  std::string name;
  Op op = Op::kUpdate;
  OpAttrs attrs;
  std::vector<Operand> operands;
  int64_t elements = 0;
  int64_t chunk = 0;
  int64_t bytes = 0;
};

class Bench {
 public:
  Bench(void* block, int threads) : block_(static_cast<std::byte*>(block)), threads_(threads) {}

  Work WorkOf(const Pass& pass) {
    return {.name = pass.name,
            .bytes = pass.bytes * pass.elements,
            .items = pass.op == Op::kUpdate ? pass.elements : 0,
            .run = [this, pass] {
              for (int64_t i = 0; i < pass.elements; i += pass.chunk) Launch(pass, i);
            }};
  }

  // a = b + 0.5 c over three times 64 MiB, far from any power of two apart.
  Work TriadWork(const std::string& name, Stores stores) {
    constexpr int64_t kElements = 16 << 20;
    return {.name = name, .bytes = 12 * kElements, .run = [this, stores] {
              float* a = At(0);
              float* b = At(70 * kMiB);
              float* c = At(141 * kMiB);
#pragma omp parallel num_threads(threads_)
              {
                const int64_t piece = kElements / omp_get_num_threads();
                const int64_t first = piece * omp_get_thread_num();
                bench::Triad(a + first, b + first, c + first, piece, stores);
              }
            }};
  }

 private:
  float* At(int64_t offset) const { return reinterpret_cast<float*>(block_ + offset); }

  void Launch(const Pass& pass, int64_t first) {
    const int64_t count = std::min(pass.chunk, pass.elements - first);
    std::vector<TensorView> views;
    for (const Operand& operand : pass.operands) {
      views.push_back(
          ViewAt(operand.dtype, block_ + operand.offset + first * SizeOf(operand.dtype), count));
    }
    if (pass.op == Op::kUpdate) {
      views.resize(4);  // moments that the rule does not keep are absent
      views.push_back(ViewAt(DType::kF32, scale_.data(), 4));
      views.push_back(ViewAt(DType::kF32, schedule_.data(), 4));
    }
    if (!cpu::Find(pass.op)(pass.attrs, views, {.threads = threads_}).ok()) std::abort();
  }

  std::byte* const block_;
  const int threads_;
  std::array<float, 4> scale_ = {1e-3f, 1, 1, 0};
  std::array<float, 4> schedule_ = {1e-4f, 0.1f, 0.05f, 0};
};

Pass UpdateOf(const OptimizerRow& rule, const std::string& what, int64_t elements, int64_t chunk,
              int64_t distance) {
  Pass pass = {.name = std::string(rule.name) + " " + what,
               .op = Op::kUpdate,
               .attrs = UpdateAttrs{.rule = rule.rule, .weight_decay = 0.1f},
               .elements = elements,
               .chunk = chunk,
               .bytes = 12 + 8 * rule.moments};
  for (int64_t i = 0; i < 2 + rule.moments; ++i)
    pass.operands.push_back({DType::kF32, i * distance});
  return pass;
}

std::vector<Pass> Passes() {
  constexpr int64_t kWhole = 16'000'000;  // 61 MiB an operand
  std::vector<Pass> passes;
  for (const OptimizerRow& rule : kOptimizerRows) {
    if (rule.whole_matrix || rule.factored) continue;
    passes.push_back(UpdateOf(rule, "whole", kWhole, kWhole, 62 * kMiB));
  }
  const OptimizerRow& adamw = RowOf(OptimizerRule::kAdamw);
  passes.push_back(UpdateOf(adamw, "256 MiB apart", kWhole, kWhole, 256 * kMiB));
  for (int64_t chunk : {1, 2, 4, 8}) {
    const int64_t elements = chunk * kMiB / 4;
    const std::string size = std::to_string(chunk) + " MiB";
    passes.push_back(UpdateOf(adamw, "in chunks of " + size, kWhole, elements, 62 * kMiB));
    passes.push_back(UpdateOf(adamw, "slots of " + size, elements, elements, chunk * kMiB));
  }
  const Operand x = {DType::kF32, 0};
  const Operand y = {DType::kF32, 70 * kMiB};
  const Operand narrow = {DType::kBF16, 70 * kMiB};
  passes.push_back({"add f32", Op::kAdd, NoAttrs{}, {x, y}, kWhole, kWhole, 12});
  passes.push_back({"add bf16 to f32", Op::kAdd, NoAttrs{}, {narrow, x}, kWhole, kWhole, 10});
  passes.push_back({"cast f32 to bf16", Op::kCast, NoAttrs{}, {x, narrow}, kWhole, kWhole, 6});
  passes.push_back({"cast bf16 to f32", Op::kCast, NoAttrs{}, {narrow, x}, kWhole, kWhole, 6});
  return passes;
}

}  // namespace
}  // namespace terrace::kernels

int main(int argc, char** argv) {
  using namespace terrace::kernels;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
  const std::vector<int> thread_counts =
      argc > 2 ? std::vector<int>{std::max(1, std::atoi(argv[2]))} : std::vector<int>{1, 2};
  if (!cpu::Prepare(thread_counts.back()).ok()) return 1;
  std::printf("instruction set: %s\n", cpu::InstructionSet());
  constexpr int64_t kBlockBytes = 3 * 256 * kMiB + 64 * kMiB;
  const terrace::bench::Memory block(kBlockBytes);
  // About 0.01 read as f32 and as bf16.
  std::fill_n(static_cast<uint32_t*>(block.data()), kBlockBytes / 4, 0x3c233c23);
  for (int threads : thread_counts) {
    std::printf("\n%d thread%s, %d rounds\n\n", threads, threads > 1 ? "s" : "", rounds);
    Bench bench(block.data(), threads);
    std::vector<Work> works = {bench.TriadWork("triad", Stores::kPlain),
                               bench.TriadWork("triad, streaming stores", Stores::kStreaming)};
    for (const Pass& pass : Passes()) works.push_back(bench.WorkOf(pass));
    terrace::bench::Report(works, 2, rounds,
                           threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
  }
  return 0;
}
