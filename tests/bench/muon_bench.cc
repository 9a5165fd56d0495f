// The update of one matrix by Muon against the products that it is made of: how much of its time is
// spent outside of them, and what it costs beside AdamW's update of the same matrix.
//
//   muon_bench [threads] [rounds]      (1 thread, 7 rounds)
//
// The three run in turns; figures are medians over the rounds, times by the clock.
//
// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/registry.h"
#include "kernels/newton_schulz.h"
#include "tests/bench/rounds.h"

namespace terrace::kernels::cpu {
namespace {

constexpr int64_t kIterations = 5;

TensorView View(std::vector<float>& values, const std::vector<int64_t>& sizes) {
  TensorView view;
  view.dtype = DType::kF32;
  view.dims = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), view.size.begin());
  view.row_stride = view.RowElements();
  view.data = values.data();
  return view;
}

// A matrix and what updates it.
class Case {
 public:
  Case(const NewtonSchulzShape& shape, MatmulPrecision precision, int threads)
      : shape_(shape), precision_(precision), elements_(shape.rows * shape.columns) {
    for (std::vector<float>* values : {&grad_, &param_, &m_, &v_, &result_}) {
      values->resize(elements_);
      for (int64_t i = 0; i < elements_; ++i)
        (*values)[i] = static_cast<float>((i * 37 + 11) % 101 - 50) / 50;
    }
    for (float& value : v_) value *= value;
    square_.assign(shape.side() * shape.side(), 0.01f);
    attrs_ = {.rule = OptimizerRule::kMuon,
              .epsilon = 1e-7f,
              .iterations = kIterations,
              .precision = precision};
    const NewtonSchulzScratch scratch(shape, precision, threads);
    workspace_.resize(scratch.bytes + 64);
    const auto address = reinterpret_cast<uintptr_t>(workspace_.data());
    context_ = {threads, workspace_.data() + (64 - address % 64) % 64, scratch.bytes};
  }

  double Flops() const { return static_cast<double>(kIterations * shape_.Flops()); }

  void Muon() {
    const std::vector<int64_t> sizes = {shape_.rows, shape_.columns};
    const std::vector<TensorView> operands = {View(grad_, sizes), View(param_, sizes),
                                              View(m_, sizes),    TensorView(),
                                              View(scale_, {4}),  View(schedule_, {4})};
    Find(Op::kUpdateMatrix)(attrs_, operands, context_);
  }

  void Adamw() {
    const std::vector<int64_t> sizes = {elements_};
    const std::vector<TensorView> operands = {View(grad_, sizes), View(param_, sizes),
                                              View(m_, sizes),    View(v_, sizes),
                                              View(scale_, {4}),  View(schedule_, {4})};
    Find(Op::kUpdate)(UpdateAttrs{}, operands, context_);
  }

  void Products() {
    const bool left = shape_.from_left();
    const int64_t side = shape_.side();
    const Matrix x = {grad_.data(), DType::kF32, shape_.columns};
    const Matrix y = {result_.data(), DType::kF32, shape_.columns};
    const Matrix square = {square_.data(), DType::kF32, side};
    for (int64_t i = 0; i < kIterations; ++i) {
      Multiply({.m = side,
                .n = side,
                .k = shape_.longer(),
                .transpose_a = !left,
                .transpose_b = left,
                .a = x,
                .b = x,
                .c = square});
      Multiply({.m = side, .n = side, .k = side, .a = square, .b = square, .c = square});
      Multiply({.m = shape_.rows,
                .n = shape_.columns,
                .k = side,
                .a = left ? square : x,
                .b = left ? x : square,
                .c = y});
      std::fill(square_.begin(), square_.end(), 0.01f);
    }
  }

 private:
  void Multiply(Gemm gemm) {
    gemm.precision = precision_;
    if (gemm.a.data == gemm.c.data) gemm.c.data = m_.data();  // no product may be in place
    RunGemm(gemm, context_);
  }

  const NewtonSchulzShape shape_;
  const MatmulPrecision precision_;
  const int64_t elements_;
  std::vector<float> grad_, param_, m_, v_, result_, square_;
  std::vector<float> scale_ = {1, 0, 0, 0}, schedule_ = {1e-6f, 1, 1, 0};
  UpdateAttrs attrs_;
  std::vector<std::byte> workspace_;
  Context context_;
};

double Seconds(const std::function<void()>& run) {
  const double start = bench::SecondsOf(CLOCK_MONOTONIC);
  run();
  return bench::SecondsOf(CLOCK_MONOTONIC) - start;
}

void Report(const NewtonSchulzShape& shape, MatmulPrecision precision, int threads, int rounds) {
  Case one(shape, precision, threads);
  std::vector<double> muon, products, ratios, adamw;
  for (int round = -1; round < rounds; ++round) {
    const double all = Seconds([&] { one.Muon(); }), alone = Seconds([&] { one.Products(); });
    const double other = Seconds([&] { one.Adamw(); });
    if (round < 0) continue;  // first touch
    muon.push_back(all);
    products.push_back(alone);
    ratios.push_back(all / alone);
    adamw.push_back(all / other);
  }
  std::printf("| %ld x %ld | %s | %.1f | %.0f | %.0f | %.2f | %.0f |\n", shape.rows, shape.columns,
              precision == MatmulPrecision::kBF16 ? "bf16" : "f32", 1e3 * bench::Median(muon),
              one.Flops() / bench::Median(muon) / 1e9, one.Flops() / bench::Median(products) / 1e9,
              bench::Median(ratios), bench::Median(adamw));
}

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  if (threads < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: muon_bench [threads >= 1] [rounds >= 1]\n");
    return 2;
  }
  if (const Status status = PrepareGemm(threads); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message.c_str());
    return 1;
  }
  std::printf(
      "| matrix | products in | ms | GFLOP/s | products alone | of their time | of AdamW's |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const NewtonSchulzShape& shape :
       {NewtonSchulzShape{256, 1024}, {768, 768}, {768, 3072}, {3072, 768}, {2048, 2048}}) {
    for (const MatmulPrecision precision : {MatmulPrecision::kF32, MatmulPrecision::kBF16})
      Report(shape, precision, threads, rounds);
  }
  return 0;
}

}  // namespace
}  // namespace terrace::kernels::cpu

int main(int argc, char** argv) { return terrace::kernels::cpu::Main(argc, argv); }
