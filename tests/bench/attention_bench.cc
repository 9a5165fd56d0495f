// Times kAttention and kAttentionGrad at the sizes of real jobs, f32 and bf16 (activations and
// products alike), and reports GFLOP/s of the causal half. Compare with PyTorch by
// tests/bench/pytorch/attention_bench.py, which interleaves both.
//
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "kernels/attention_workspace.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/registry.h"
#include "kernels/op.h"

namespace {

using namespace terrace::kernels;

struct Memory {
  explicit Memory(int64_t size)
      : bytes(static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64)), std::free) {
    std::memset(bytes.get(), 0, size);
  }
  std::unique_ptr<std::byte, decltype(&std::free)> bytes;
};

// Batch x sequence tokens, the fused q|k|v buffer and everything else that both ops touch.
class Problem {
 public:
  Problem(int64_t batch, int64_t sequence, int64_t heads, int64_t head_dim, bool bf16)
      : dtype_(bf16 ? DType::kBF16 : DType::kF32),
        tokens_(batch * sequence),
        heads_(heads),
        head_dim_(head_dim),
        fused_(tokens_ * 3 * heads * head_dim * 4),
        d_fused_(tokens_ * 3 * heads * head_dim * 4),
        out_(tokens_ * heads * head_dim * 4),
        d_out_(tokens_ * heads * head_dim * 4),
        lse_(tokens_ * heads * 4) {
    attrs.sequence = sequence;
    attrs.scale = 1 / std::sqrt(static_cast<float>(head_dim));
    attrs.precision = bf16 ? MatmulPrecision::kBF16 : MatmulPrecision::kF32;
    const int64_t width = 3 * heads * head_dim;
    Fill(fused_, tokens_ * width);
    Fill(d_out_, tokens_ * heads * head_dim);
    TensorView lse;
    lse.dims = 3;
    lse.size = {batch, heads, sequence};
    lse.row_stride = heads * sequence;
    lse.data = lse_.bytes.get();
    forward = {Rows(fused_, 0, width), Rows(fused_, 1, width), Rows(fused_, 2, width),
               Rows(out_, 0, width / 3), lse};
    backward = forward;
    backward.push_back(Rows(d_out_, 0, width / 3));
    for (int part = 0; part < 3; ++part) backward.push_back(Rows(d_fused_, part, width));
    flops = 4.0 * batch * heads * sequence * sequence * head_dim / 2;
  }

  AttentionAttrs attrs;
  std::vector<TensorView> forward, backward;
  double flops;  // of the forward op

 private:
  void Fill(const Memory& memory, int64_t count) const {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random);
      if (dtype_ == DType::kF32) {
        std::memcpy(memory.bytes.get() + 4 * i, &value, 4);
      } else {
        std::memcpy(memory.bytes.get() + 2 * i, reinterpret_cast<const char*>(&value) + 2, 2);
      }
    }
  }
  TensorView Rows(const Memory& memory, int part, int64_t width) const {
    TensorView view;
    view.dtype = dtype_;
    view.dims = 3;
    view.size = {tokens_, heads_, head_dim_};
    view.row_stride = width;
    view.data = memory.bytes.get() + part * heads_ * head_dim_ * SizeOf(dtype_);
    return view;
  }

  DType dtype_;
  int64_t tokens_, heads_, head_dim_;
  Memory fused_, d_fused_, out_, d_out_, lse_;
};

void Time(benchmark::State& state, Op op) {
  const Problem problem(state.range(0), state.range(1), state.range(2), state.range(3),
                        state.range(4) != 0);
  const int threads = static_cast<int>(state.range(5));
  const bool forward = op == Op::kAttention;
  const auto& operands = forward ? problem.forward : problem.backward;
  const std::vector<TensorShape> shapes(operands.begin(), operands.end());
  const int64_t bytes = AttentionWorkspaceBytes(op, problem.attrs, shapes, threads);
  const Memory workspace(bytes);
  const Context context{
      .threads = threads, .workspace = workspace.bytes.get(), .workspace_bytes = bytes};
  if (!cpu::Prepare(threads).ok()) state.SkipWithError("cpu::Prepare failed");
  const auto kernel = forward ? cpu::Attention : cpu::AttentionGrad;
  for (auto _ : state) {
    if (!kernel(problem.attrs, operands, context).ok()) state.SkipWithError("the kernel failed");
  }
  state.counters["GFLOP/s"] = benchmark::Counter(problem.flops * (forward ? 1 : 2.5) / 1e9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"batch", "sequence", "heads", "head_dim", "bf16", "threads"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
  for (const int64_t bf16 : {0, 1}) {
    bench->Args({8, 256, 6, 64, bf16, 2})->Args({2, 512, 12, 64, bf16, 2});
    bench->Args({1, 2048, 12, 64, bf16, 2})->Args({1, 1024, 8, 128, bf16, 2});
  }
}

void BM_Attention(benchmark::State& state) { Time(state, Op::kAttention); }
void BM_AttentionGrad(benchmark::State& state) { Time(state, Op::kAttentionGrad); }
BENCHMARK(BM_Attention)->Apply(Sizes);
BENCHMARK(BM_AttentionGrad)->Apply(Sizes);

}  // namespace

BENCHMARK_MAIN();
