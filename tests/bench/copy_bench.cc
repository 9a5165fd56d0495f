// StreamCopy against memcpy, alone and beside a matrix product on another core: what a copy between
// tiers costs, and what it costs the computation that it overlaps with.
//
// Both copies walk through more memory than the caches hold, `size` bytes a call, in turns; printed
// are medians of the rounds. Rates are by the CPU time of the thread that does the work, so that
// other programs on the cores count little: bytes read and written by a copy, FLOPs of the product.
//
//   copy_bench [rounds]      (11)
//
// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cpu/registry.h"
#include "kernels/cpu/stream_copy.h"
#include "tests/bench/rounds.h"

namespace terrace::kernels {
namespace {

using bench::Memory;
using bench::SecondsOf;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kSpanBytes = 256 * kMiB;
constexpr double kWindowSeconds = 0.15;

using Copy = void (*)(std::byte* to, const std::byte* from, int64_t bytes);
void PlainCopy(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, bytes);
}
void NoCopy(std::byte*, const std::byte*, int64_t) {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// Products of a layer's size, one after the other, until destroyed. Its counters are read by one
// other thread. Thread-safe.
class Products {
 public:
  Products() : worker_([this](const std::stop_token& stop) { Work(stop); }) {}

  struct Count {
    double flops = 0;
    double seconds = 0;  // of CPU time
  };
  Count now() const { return {flops_.load(), seconds_.load()}; }

 private:
  static constexpr int64_t kRows = 256, kInner = 1024, kColumns = 1024;

  void Work(const std::stop_token& stop) {
    const Memory a(kRows * kInner * 4), b(kInner * kColumns * 4), c(kRows * kColumns * 4);
    const auto view = [](const Memory& memory, int64_t rows, int64_t columns) {
      TensorView result;
      result.dims = 2;
      result.size = {rows, columns};
      result.row_stride = columns;
      result.data = memory.data();
      return result;
    };
    const std::vector<TensorView> operands = {
        view(a, kRows, kInner), view(b, kInner, kColumns), view(c, kRows, kColumns), {}, {}, {}};
    const std::vector<TensorShape> shapes(operands.begin(), operands.end());
    const MatmulAttrs attrs;
    const int64_t bytes = WorkspaceBytes(Op::kMatmul, attrs, shapes, 1);
    const Memory workspace(bytes);
    const Context context = {.threads = 1,
                             .workspace = static_cast<std::byte*>(workspace.data()),
                             .workspace_bytes = bytes};
    const double flops = static_cast<double>(Flops(Op::kMatmul, attrs, shapes));
    while (!stop.stop_requested()) {
      if (!cpu::Find(Op::kMatmul)(attrs, operands, context).ok()) std::abort();
      flops_ = flops_ + flops;
      seconds_ = SecondsOf(CLOCK_THREAD_CPUTIME_ID);
    }
  }

  std::atomic<double> flops_ = 0;
  std::atomic<double> seconds_ = 0;
  std::jthread worker_;  // last: it uses the others
};

// Copies for one window; gigabytes a second, read and written.
double CopyRate(Copy copy, const Memory& to, const Memory& from, int64_t size) {
  const double start = SecondsOf(CLOCK_MONOTONIC);
  const double start_cpu = SecondsOf(CLOCK_THREAD_CPUTIME_ID);
  double bytes = 0;
  for (int64_t i = 0; SecondsOf(CLOCK_MONOTONIC) - start < kWindowSeconds; i += size) {
    const int64_t at = i % (kSpanBytes - size + 1) / 4096 * 4096;
    copy(static_cast<std::byte*>(to.data()) + at, static_cast<std::byte*>(from.data()) + at, size);
    bytes += 2.0 * static_cast<double>(size);
  }
  return bytes / (SecondsOf(CLOCK_THREAD_CPUTIME_ID) - start_cpu) / 1e9;
}

struct Rates {
  std::vector<double> copy, product;
};

void Measure(Copy copy, const Memory& to, const Memory& from, int64_t size,
             const Products* products, Rates* rates) {
  const Products::Count before = products == nullptr ? Products::Count{} : products->now();
  rates->copy.push_back(CopyRate(copy, to, from, size));
  if (products == nullptr) return;
  const Products::Count after = products->now();
  rates->product.push_back((after.flops - before.flops) / (after.seconds - before.seconds) / 1e9);
}

void Compare(int rounds, const Products* products) {
  const Memory to(kSpanBytes), from(kSpanBytes);
  Rates idle;
  std::printf(
      "| bytes a call | memcpy GB/s | StreamCopy GB/s | ratio | product beside memcpy | "
      "beside StreamCopy | beside nothing, GFLOP/s |\n|---|---|---|---|---|---|---|\n");
  for (int64_t size : {kMiB / 4, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    Rates plain, streaming;
    std::vector<double> ratio;
    for (int round = 0; round < rounds; ++round) {
      Measure(PlainCopy, to, from, size, products, &plain);
      Measure(cpu::StreamCopy, to, from, size, products, &streaming);
      if (products != nullptr) Measure(NoCopy, to, from, size, products, &idle);
      ratio.push_back(streaming.copy.back() / plain.copy.back());
    }
    std::printf("| %lld KiB | %.1f | %.1f | %.2f |", static_cast<long long>(size / 1024),
                bench::Median(plain.copy), bench::Median(streaming.copy), bench::Median(ratio));
    if (products != nullptr) {
      std::printf(" %.0f | %.0f | %.0f |\n", bench::Median(plain.product),
                  bench::Median(streaming.product), bench::Median(idle.product));
    } else {
      std::printf(" | | |\n");
    }
  }
}

}  // namespace
}  // namespace terrace::kernels

int main(int argc, char** argv) {
  using namespace terrace::kernels;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
  if (!cpu::Prepare(1).ok()) return 1;
  std::printf("Alone\n\n");
  Compare(rounds, nullptr);
  std::printf("\nBeside f32 products of 256 x 1024 x 1024 on another thread\n\n");
  const Products products;
  Compare(rounds, &products);
  return 0;
}
