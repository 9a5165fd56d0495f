// Matrix products of two training configurations, ours beside oneDNN's, in GFLOP/s.
//
//   gemm_bench [threads] [rounds] [filter]
//
// Each row is one product as training needs it: forward (bf16 or f32 activations times f32 weights
// stored [out, in]), gradient of the input, and gradient of the weights (added to f32). oneDNN is
// given bf16 copies of the weights for free, since it has no product of bf16 and f32. The two run
// in turns; the figure is the median.
//
// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/gemm_workspace.h"

namespace terrace::kernels::cpu {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Zero pages would share one physical page: filled with small numbers.
class Buffer {
 public:
  explicit Buffer(int64_t bytes)
      : memory_(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)) {}
  Buffer(int64_t elements, DType dtype) : Buffer(elements * SizeOf(dtype)) {
    std::mt19937 random(7);
    for (int64_t i = 0; i < elements; ++i) {
      const float value = static_cast<float>(random() % 1000) / 1000 - 0.5f;
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      if (dtype == DType::kF32) {
        static_cast<uint32_t*>(memory_.get())[i] = bits;
      } else {
        static_cast<uint16_t*>(memory_.get())[i] = static_cast<uint16_t>(bits >> 16);
      }
    }
  }
  void* data() const { return memory_.get(); }

 private:
  std::unique_ptr<void, Free> memory_;
};

enum class Pass { kForward, kInputGrad, kWeightGrad };

struct Shape {
  const char* name;
  int64_t tokens, in, out;
};

dnnl::memory::desc Describe(int64_t rows, int64_t columns, bool transposed, DType dtype) {
  const auto type =
      dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  return transposed ? dnnl::memory::desc({rows, columns}, type, {1, rows})
                    : dnnl::memory::desc({rows, columns}, type, {columns, 1});
}

// A product as both sides see it.
class Product {
 public:
  Product(const Shape& shape, Pass pass, MatmulPrecision precision, int threads) {
    const DType act = precision == MatmulPrecision::kBF16 ? DType::kBF16 : DType::kF32;
    const bool weight_grad = pass == Pass::kWeightGrad;
    gemm_.precision = precision;
    gemm_.m = weight_grad ? shape.out : shape.tokens;
    gemm_.n = pass == Pass::kForward ? shape.out : shape.in;
    gemm_.k = pass == Pass::kForward ? shape.in : weight_grad ? shape.tokens : shape.out;
    gemm_.transpose_a = weight_grad;
    gemm_.transpose_b = pass == Pass::kForward;
    gemm_.accumulate = weight_grad;
    const DType b_type = weight_grad ? act : DType::kF32;
    c_type_ = weight_grad ? DType::kF32 : act;
    a_ = std::make_unique<Buffer>(gemm_.m * gemm_.k, act);
    b_ = std::make_unique<Buffer>(gemm_.k * gemm_.n, b_type);
    b_library_ = std::make_unique<Buffer>(gemm_.k * gemm_.n, act);
    c_ = std::make_unique<Buffer>(gemm_.m * gemm_.n, c_type_);
    gemm_.a = {a_->data(), act, gemm_.transpose_a ? gemm_.m : gemm_.k};
    gemm_.b = {b_->data(), b_type, gemm_.transpose_b ? gemm_.k : gemm_.n};
    gemm_.c = {c_->data(), c_type_, gemm_.n};
    const int64_t bytes = GemmWorkspaceBytes(gemm_.m, gemm_.n, gemm_.k, precision, threads);
    workspace_ = std::make_unique<Buffer>(bytes);
    context_ = {threads, static_cast<std::byte*>(workspace_->data()), bytes};
    PrepareLibrary(act);
  }

  double Flops() const { return 2.0 * gemm_.m * gemm_.n * gemm_.k; }
  void RunOurs() const { RunGemm(gemm_, context_); }
  bool HasLibrary() const { return static_cast<bool>(primitive_); }
  void RunLibrary() {
    if (!HasLibrary()) return;
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  void PrepareLibrary(DType act) {
    const auto a = Describe(gemm_.m, gemm_.k, gemm_.transpose_a, act);
    const auto b = Describe(gemm_.k, gemm_.n, gemm_.transpose_b, act);
    const auto c = Describe(gemm_.m, gemm_.n, false, c_type_);
    dnnl::primitive_attr attr;
    if (gemm_.accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.0f);
      attr.set_post_ops(ops);
    }
    try {
      primitive_ =
          dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attr, engine_));
    } catch (const dnnl::error&) {
      return;  // it has no bf16 product for CPUs without AVX-512
    }
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(a, engine_, a_->data())},
                  {DNNL_ARG_WEIGHTS, dnnl::memory(b, engine_, b_library_->data())},
                  {DNNL_ARG_DST, dnnl::memory(c, engine_, c_->data())}};
  }

  Gemm gemm_;
  DType c_type_ = DType::kF32;
  std::unique_ptr<Buffer> a_, b_, b_library_, c_, workspace_;
  Context context_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Measure(const Shape& shape, Pass pass, MatmulPrecision precision, int threads, int rounds) {
  constexpr const char* kPasses[] = {"forward", "d input", "d weight"};
  Product product(shape, pass, precision, threads);
  std::vector<double> ours, library;
  for (int i = -2; i < rounds; ++i) {
    const double library_seconds = Seconds([&] { product.RunLibrary(); });
    const double our_seconds = Seconds([&] { product.RunOurs(); });
    if (i < 0) continue;
    library.push_back(product.Flops() / library_seconds / 1e9);
    ours.push_back(product.Flops() / our_seconds / 1e9);
  }
  const double us = Median(ours), them = Median(library);
  std::printf("| %-14s | %5ld x %4ld -> %5ld | %-8s | %-4s | %6.1f |", shape.name, shape.tokens,
              shape.in, shape.out, kPasses[static_cast<int>(pass)],
              precision == MatmulPrecision::kBF16 ? "bf16" : "f32", us);
  if (product.HasLibrary()) {
    std::printf(" %6.1f | %5.2f |\n", them, us / them);
  } else {
    std::printf("      - |     - |\n");
  }
  std::fflush(stdout);
}

constexpr Shape kShapes[] = {
    {"A qkv", 2048, 384, 1152},  {"A projection", 2048, 384, 384}, {"A up", 2048, 384, 1536},
    {"A down", 2048, 1536, 384}, {"B qkv", 1024, 768, 2304},       {"B projection", 1024, 768, 768},
    {"B up", 1024, 768, 3072},   {"B down", 1024, 3072, 768},      {"B LM head", 256, 768, 50257},
};

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : omp_get_max_threads();
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const std::string filter = argc > 3 ? argv[3] : "";
  omp_set_num_threads(threads);  // oneDNN's own
  PrepareGemm(threads);
  std::printf("%d threads, median of %d, GFLOP/s\n\n", threads, rounds);
  std::printf(
      "| product | tokens x in -> out | pass | type | ours | oneDNN | ratio "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const MatmulPrecision precision : {MatmulPrecision::kBF16, MatmulPrecision::kF32}) {
    for (const Shape& shape : kShapes) {
      if (std::string(shape.name).find(filter) == std::string::npos) continue;
      for (const Pass pass : {Pass::kForward, Pass::kInputGrad, Pass::kWeightGrad}) {
        Measure(shape, pass, precision, threads, rounds);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace terrace::kernels::cpu

int main(int argc, char** argv) { return terrace::kernels::cpu::Main(argc, argv); }
