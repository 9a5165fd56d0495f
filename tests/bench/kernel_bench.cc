// Bandwidth of the CPU kernels that are not matrix products, at the sizes of real jobs, beside
// memcpy and a triad.
//
// Every round runs everything once, so that a machine whose speed drifts slows all of it alike;
// reported are the median of each and of its ratio to the triad of the same round. Bytes are the op
// table's: each operand once, updated ones twice, which is what a perfect kernel would move.
//
//   kernel_bench [rounds [threads]]      (15 rounds; 1 thread, then 2)
//
// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/registry.h"
#include "tests/bench/rounds.h"
#include "tests/bench/triad.h"

namespace terrace::kernels {
namespace {

using bench::Memory;
using bench::Work;

TensorShape Dense(DType dtype, std::vector<int64_t> sizes) {
  TensorShape shape = {.dtype = dtype, .dims = static_cast<int>(sizes.size())};
  std::copy(sizes.begin(), sizes.end(), shape.size.begin());
  shape.row_stride = shape.RowElements();
  return shape;
}

// Small normal numbers; tokens among the first 256 rows.
void FillRandom(const TensorShape& shape, void* data) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < shape.Elements(); ++i) {
    if (shape.dtype == DType::kI32) {
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(random() % 256);
    } else if (shape.dtype == DType::kU8) {
      static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(random());
    } else if (shape.dtype == DType::kF32) {
      static_cast<float*>(data)[i] = std::abs(normal(random));
    } else {
      const float value = normal(random);
      std::memcpy(static_cast<uint16_t*>(data) + i, reinterpret_cast<const char*>(&value) + 2, 2);
    }
  }
}

Work OpWork(const std::string& name, Op op, OpAttrs attrs, const std::vector<TensorShape>& shapes,
            int threads) {
  const std::string error = CheckShapes(op, attrs, shapes);
  if (!error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    std::exit(1);
  }
  std::vector<TensorView> views;
  std::vector<std::shared_ptr<Memory>> memory;
  for (const TensorShape& shape : shapes) {
    TensorView view;
    static_cast<TensorShape&>(view) = shape;
    if (!shape.absent()) {
      memory.push_back(std::make_shared<Memory>(shape.SpanBytes()));
      view.data = memory.back()->data();
      FillRandom(shape, view.data);
    }
    views.push_back(view);
  }
  if (IsUpdate(op)) {
    const float scale[4] = {1e-3f, 1, 1, 0};
    const float schedule[4] = {1e-4f, 0.1f, 0.05f, 0};
    std::memcpy(views[4].data, scale, sizeof(scale));
    std::memcpy(views[5].data, schedule, sizeof(schedule));
  }
  const int64_t workspace_bytes = WorkspaceBytes(op, attrs, shapes, threads);
  auto workspace = std::make_shared<Memory>(workspace_bytes);
  return {.name = name,
          .bytes = BytesMoved(op, attrs, shapes),
          .items = IsUpdate(op) ? shapes[0].Elements() : 0,
          .run = [=] {
            const Context context = {.threads = threads,
                                     .workspace = static_cast<std::byte*>(workspace->data()),
                                     .workspace_bytes = workspace_bytes};
            (void)memory;  // the views point into it
            if (!cpu::Find(op)(attrs, views, context).ok()) std::abort();
          }};
}

// a = b + 0.5 c over 3 x 64 MiB, and memcpy of 64 MiB.
std::vector<Work> Floors(int threads) {
  constexpr int64_t kElements = 16 << 20;
  std::vector<std::shared_ptr<Memory>> m;
  for (int i = 0; i < 3; ++i) m.push_back(std::make_shared<Memory>(kElements * sizeof(float)));
  const auto split = [threads](const auto& body) {
#pragma omp parallel num_threads(threads)
    {
      const int64_t piece = kElements / omp_get_num_threads();
      body(piece * omp_get_thread_num(), piece);
    }
  };
  const auto at = [m](int i, int64_t first) { return static_cast<float*>(m[i]->data()) + first; };
  return {{.name = "triad",
           .bytes = 12 * kElements,
           .run =
               [=] {
                 split([&](int64_t first, int64_t n) {
                   bench::Triad(at(0, first), at(1, first), at(2, first), n, bench::Stores::kPlain);
                 });
               }},
          {.name = "memcpy", .bytes = 8 * kElements, .run = [=] {
             split([&](int64_t first, int64_t n) {
               std::memcpy(at(0, first), at(1, first), n * sizeof(float));
             });
           }}};
}

// Shapes of one micro-batch: 2048 tokens of width 384, a feed-forward of 1536, six heads of 64.
std::vector<Work> ActivationOps(DType act, int threads) {
  constexpr int64_t kTokens = 2048, kWidth = 384, kInner = 1536;
  std::string type(" ");
  type += Name(act);
  const TensorShape x = Dense(act, {kTokens, kWidth});
  const TensorShape inner = Dense(act, {kTokens, kInner});
  const TensorShape weight = Dense(DType::kF32, {kWidth});
  const TensorShape statistic = Dense(DType::kF32, {kTokens});
  TensorShape heads = Dense(act, {kTokens, 6, 64});
  heads.row_stride = 3 * kWidth;
  const TensorShape tokens = Dense(DType::kI32, {kTokens});
  const TensorShape table = Dense(DType::kF32, {256, kWidth});
  const TensorShape positions = Dense(DType::kF32, {256, kWidth});
  const auto work = [threads, &type](Op op, OpAttrs attrs, std::vector<TensorShape> shapes) {
    return OpWork(std::string(Name(op)) + type, op, std::move(attrs), shapes, threads);
  };
  return {
      work(Op::kEmbedding, EmbeddingAttrs{256}, {tokens, table, positions, x, TensorShape()}),
      work(Op::kEmbeddingGrad, EmbeddingAttrs{256}, {tokens, x, table, positions, TensorShape()}),
      work(Op::kLayerNorm, NormAttrs{}, {x, weight, weight, x, statistic, statistic}),
      work(Op::kLayerNormGrad, NormAttrs{},
           {x, x, weight, statistic, statistic, x, x, weight, weight}),
      work(Op::kRmsNorm, NormAttrs{}, {x, weight, x, statistic}),
      work(Op::kRmsNormGrad, NormAttrs{}, {x, x, weight, statistic, x, x, weight}),
      work(Op::kGelu, ActivationAttrs{}, {inner, inner}),
      work(Op::kGeluGrad, ActivationAttrs{}, {inner, inner, inner}),
      work(Op::kSwiglu, ActivationAttrs{Activation::kSilu}, {inner, inner, inner}),
      work(Op::kSwigluGrad, ActivationAttrs{Activation::kSilu},
           {inner, inner, inner, inner, inner}),
      work(Op::kRope, RopeAttrs{.sequence = 256}, {heads, Dense(DType::kF32, {256, 64})}),
      work(Op::kBiasGrad, AccumulateAttrs{}, {inner, Dense(DType::kF32, {kInner})}),
      work(Op::kAdd, NoAttrs{}, {inner, inner}),
      work(Op::kFill, FillAttrs{}, {inner}),
      work(Op::kScale, ScaleAttrs{.scale = 0.5f}, {inner}),
      work(Op::kSoftcap, ScaleAttrs{.scale = 30.0f}, {inner, inner}),
      work(Op::kDropout, DropoutAttrs{.probability = 0.1f},
           {inner, Dense(DType::kI32, {kTokens, 2}), inner}),
  };
}

std::vector<Work> StepOps(int threads) {
  const auto vector = [](int64_t n) { return Dense(DType::kF32, {n}); };
  const TensorShape large = vector(32 << 20);
  TensorShape large_bf16 = large;
  large_bf16.dtype = DType::kBF16;
  const auto adamw = [&](const std::string& name, int64_t n) {
    return OpWork("adamw " + name, Op::kUpdate, UpdateAttrs{.weight_decay = 0.1f},
                  {vector(n), vector(n), vector(n), vector(n), vector(4), vector(4)}, threads);
  };
  const auto rounded = [&](const std::string& name, int64_t n) {
    UpdateAttrs attrs{.weight_decay = 0.1f};
    attrs.rounding.parts = std::make_shared<std::vector<RoundingPart>>(
        std::vector<RoundingPart>{{.rows = 1, .columns = n, .row_stride = n}});
    return OpWork("update_stochastic " + name, Op::kUpdateStochastic, attrs,
                  {vector(n), Dense(DType::kBF16, {n}), vector(n), vector(n), vector(4), vector(4),
                   Dense(DType::kI32, {1})},
                  threads);
  };
  const auto halves = [&](const std::string& name, int64_t n) {
    const TensorShape moment = Dense(DType::kBF16, {n});
    return OpWork("adamw bf16 moments " + name, Op::kUpdate, UpdateAttrs{.weight_decay = 0.1f},
                  {vector(n), vector(n), moment, moment, vector(4), vector(4)}, threads);
  };
  const auto int8 = [&](const std::string& name, int64_t n) {
    constexpr int64_t kBlock = 256;
    const TensorShape codes = Dense(DType::kU8, {n}), scales = vector((n + kBlock - 1) / kBlock);
    return OpWork(
        "update_int8 " + name, Op::kUpdateInt8, UpdateAttrs{.weight_decay = 0.1f, .block = kBlock},
        {vector(n), vector(n), codes, codes, vector(4), vector(4), scales, scales}, threads);
  };
  const auto encode = [&](Format format, bool back) {
    constexpr int64_t kElements = 32 << 20;
    const BlockAttrs attrs = {.format = format};
    const TensorShape x = Dense(DType::kBF16, {kElements});
    const TensorShape codes = Dense(DType::kU8, {kElements / RowOf(format).packed});
    const TensorShape scales = vector(kElements / attrs.block);
    const std::string name =
        (back ? "decode_blocks " : "encode_blocks ") + std::string(RowOf(format).name);
    return back ? OpWork(name, Op::kDecodeBlocks, attrs, {codes, scales, x}, threads)
                : OpWork(name, Op::kEncodeBlocks, attrs, {x, codes, scales, {}}, threads);
  };
  const auto sum = [&](Format format) {
    constexpr int64_t kParts = 8, kElements = 4 << 20;
    const BlockAttrs attrs = {.format = format};
    return OpWork("sum_blocks " + std::string(RowOf(format).name), Op::kSumBlocks, attrs,
                  {Dense(DType::kU8, {kParts, kElements / RowOf(format).packed}),
                   Dense(DType::kF32, {kParts, kElements / attrs.block}), vector(kElements)},
                  threads);
  };
  return {adamw("10 M", 10'000'000),
          adamw("32 Mi", 32 << 20),
          rounded("10 M", 10'000'000),
          rounded("32 Mi", 32 << 20),
          halves("32 Mi", 32 << 20),
          int8("32 Mi", 32 << 20),
          sum(Format::kInt8Linear),
          sum(Format::kFP8),
          sum(Format::kInt4Linear),
          encode(Format::kInt8Linear, false),
          encode(Format::kInt8Linear, true),
          encode(Format::kFP8, false),
          encode(Format::kFP8, true),
          encode(Format::kInt4Linear, false),
          encode(Format::kInt4Linear, true),
          encode(Format::kNF4, false),
          encode(Format::kNF4, true),
          OpWork("squared_norm f32", Op::kSquaredNorm, ScaleAttrs{}, {large, vector(1)}, threads),
          OpWork("cast f32 to bf16", Op::kCast, NoAttrs{}, {large, large_bf16}, threads),
          OpWork("fill f32 128 MiB", Op::kFill, FillAttrs{}, {large}, threads)};
}

void Append(std::vector<Work> from, std::vector<Work>* to) {
  std::move(from.begin(), from.end(), std::back_inserter(*to));
}

}  // namespace
}  // namespace terrace::kernels

int main(int argc, char** argv) {
  using namespace terrace::kernels;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  const std::vector<int> thread_counts =
      argc > 2 ? std::vector<int>{std::max(1, std::atoi(argv[2]))} : std::vector<int>{1, 2};
  if (!cpu::Prepare(thread_counts.back()).ok()) return 1;
  std::printf("instruction set: %s\n", cpu::InstructionSet());
  for (int threads : thread_counts) {
    std::printf("\n%d thread%s, %d rounds\n\n", threads, threads > 1 ? "s" : "", rounds);
    std::vector<Work> works = Floors(threads);
    Append(ActivationOps(DType::kF32, threads), &works);
    Append(ActivationOps(DType::kBF16, threads), &works);
    Append(StepOps(threads), &works);
    terrace::bench::Report(works, 1, rounds, CLOCK_MONOTONIC);
  }
  return 0;
}
