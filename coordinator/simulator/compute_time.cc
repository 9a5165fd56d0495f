// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/compute_time.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "coordinator/hardware/profiles.h"
#include "proto/program/op_codec.h"

namespace terrace {
namespace {

using kernels::MatmulPrecision;
using kernels::OpAttrs;
using kernels::RateClass;

// The arithmetic an op's products are done in; f32 for ops without products.
MatmulPrecision PrecisionOf(const OpAttrs& attrs) {
  if (const auto* a = std::get_if<kernels::MatmulAttrs>(&attrs)) return a->precision;
  if (const auto* a = std::get_if<kernels::AttentionAttrs>(&attrs)) return a->precision;
  if (const auto* a = std::get_if<kernels::AttentionBlockAttrs>(&attrs)) return a->precision;
  if (const auto* a = std::get_if<kernels::LossAttrs>(&attrs)) return a->precision;
  if (const auto* a = std::get_if<kernels::UpdateAttrs>(&attrs)) return a->precision;
  return MatmulPrecision::kF32;
}

double Over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

double LogOf(int64_t size) { return std::log2(static_cast<double>(std::max<int64_t>(1, size))); }

// Between the two entries of the table around `at`; `value` says what an entry is worth.
template <typename Table, typename Value>
double Between(const Table& table, double at, const Value& value) {
  const auto above = table.lower_bound(at);
  if (above == table.begin()) return value(above->second);
  const auto below = std::prev(above);
  if (above == table.end()) return value(below->second);
  const double share = (at - below->first) / (above->first - below->first);
  return value(below->second) * (1 - share) + value(above->second) * share;
}

// Below that a product of the CPU backend has one thread (kernels/cpu/gemm.cc).
constexpr double kFlopsOfATeam = 2.0 * (8 << 20);

// Below that one thread of the CPU backend works through all rows of an op
// (kernels/cpu/parallel.h).
constexpr int64_t kElementsOfATeam = 2 * 32768;

// An op that works through rows one by one, a few operations an element: neither products nor
// attention, and not the updates and sums of vectors.
bool OfRows(const RateClass& shape) {
  return shape.columns > 1 && shape.kernel.compare(0, 9, "attention") != 0;
}

// Of a product, or of one of those of an op that is made of some; -1: the op is not.
double ProductFlops(const std::string& kernel, int64_t rows, int64_t columns, int64_t inner) {
  if (kernel.compare(0, 6, "matmul") != 0 && kernel.compare(0, 7, "lm_head") != 0) return -1;
  return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) *
         static_cast<double>(inner);
}

// One thread takes row after row, each as long as the one before: how many there are is no part of
// its rate.
double LogOfRows(const RateClass& shape, bool one_thread) {
  const bool products = ProductFlops(shape.kernel, 1, 1, 1) >= 0;
  return one_thread && !products && OfRows(shape) ? 0 : LogOf(shape.rows);
}

}  // namespace

ComputeTime::ComputeTime(const v1::HardwareProfile& profile)
    : f32_rate_(profile.f32_flops_per_second()),
      tf32_rate_(profile.tf32_flops_per_second()),
      bf16_rate_(profile.bf16_flops_per_second()),
      fp8_rate_(profile.fp8_flops_per_second()),
      memory_rate_(profile.memory_bytes_per_second()),
      host_memory_rate_(TierRatesOf(profile).host_memory),
      shared_cores_(profile.shared_cores()),
      teams_(profile.shared_cores() && profile.threads() > 1) {
  for (const v1::KernelRate& rate : profile.kernels()) {
    if (rate.flops_per_second() <= 0) continue;
    const RateClass of = {.kernel = rate.kernel(),
                          .precision = rate.precision(),
                          .rows = rate.rows(),
                          .columns = rate.columns(),
                          .inner = rate.inner()};
    const auto add = [&](double flops_per_second, Tables* tables) {
      const auto add_to = [&](bool one_thread) {
        (*tables)[{of.kernel, of.precision, one_thread}][LogOfRows(of, one_thread)]
                 [LogOf(of.columns)][LogOf(of.inner)] = std::log2(flops_per_second);
      };
      add_to(false);
      if (HasOneThread(of)) add_to(true);
    };
    add(rate.flops_per_second(), &tables_);
    // Shapes that no cache holds end the faster rates, which must not be held beyond them.
    if (profile.cache_bytes() > 0) {
      add(std::max(rate.flops_per_second(), rate.cached_flops_per_second()), &cached_);
    }
  }
}

double ComputeTime::Rate(const RateClass& shape) const { return RateOf(shape, tables_); }

double ComputeTime::CachedRate(const RateClass& shape) const {
  return std::max(Rate(shape), RateOf(shape, cached_));
}

double ComputeTime::RateOf(const RateClass& shape, const Tables& tables) const {
  const double rate = RateInTable(shape, tables);
  if (rate > 0) return rate;
  if (shape.precision == "fp8") return Fp8Rate(shape, tables);
  RateClass other = shape;
  if (shape.precision == "fp16") {
    other.precision = shared_cores_ ? "fp32" : "bf16";
    return RateInTable(other, tables);
  }
  if (shape.precision != "tf32") return rate;
  if (tf32_rate_ <= 0) {
    other.precision = "fp32";
    return RateInTable(other, tables);
  }
  other.precision = "bf16";
  return RateInTable(other, tables) * Over(tf32_rate_, bf16_rate_);
}

double ComputeTime::Fp8Rate(RateClass shape, const Tables& tables) const {
  shape.precision = "bf16";
  const double rate = RateInTable(shape, tables);
  return fp8_rate_ > 0 ? rate * Over(fp8_rate_, bf16_rate_) : rate;
}

bool ComputeTime::HasOneThread(const RateClass& shape) const {
  if (!teams_) return false;
  const double flops = ProductFlops(shape.kernel, shape.rows, shape.columns, shape.inner);
  if (flops >= 0) return flops < kFlopsOfATeam;
  return OfRows(shape) && shape.rows * shape.columns < kElementsOfATeam;
}

double ComputeTime::RateInTable(const RateClass& shape, const Tables& tables) const {
  bool one_thread = false;
  const auto find = [&](const std::string& kernel) {
    auto table = tables.end();
    if (HasOneThread(shape)) table = tables.find({kernel, shape.precision, true});
    one_thread = table != tables.end();
    return one_thread ? table : tables.find({kernel, shape.precision, false});
  };
  auto found = find(shape.kernel);
  // A profile that does not tell transposed products apart.
  if (found == tables.end() && shape.kernel.compare(0, 7, "matmul_") == 0) found = find("matmul");
  if (found == tables.end()) return 0;
  const double rows = LogOfRows(shape, one_thread), columns = LogOf(shape.columns),
               inner = LogOf(shape.inner);
  return std::exp2(Between(found->second, rows, [&](const Columns& of_rows) {
    return Between(of_rows, columns, [&](const Inner& of_columns) {
      return Between(of_columns, inner, [](double log_rate) { return log_rate; });
    });
  }));
}

// Not the larger of the two: a product packs its operands before it computes, and small products
// show it.
double ComputeTime::RooflineSeconds(const OpAttrs& attrs, double flops, double bytes) const {
  double rate = f32_rate_;
  const MatmulPrecision precision = PrecisionOf(attrs);
  const bool f16_as_bf16 = precision == MatmulPrecision::kF16 && !shared_cores_;
  if (precision == MatmulPrecision::kBF16 || f16_as_bf16) rate = bf16_rate_;
  if (precision == MatmulPrecision::kFP8) rate = fp8_rate_ > 0 ? fp8_rate_ : bf16_rate_;
  if (precision == MatmulPrecision::kTF32 && tf32_rate_ > 0) rate = tf32_rate_;
  return Over(flops, rate) + Over(bytes, memory_rate_);
}

absl::StatusOr<double> ComputeTime::Seconds(const v1::ComputeOp& compute,
                                            const std::vector<kernels::TensorShape>& shapes,
                                            bool on_host, double cached) const {
  ASSIGN_OR_RETURN(const DecodedOp decoded, DecodeOp(compute));
  const std::string problem = kernels::CheckShapes(decoded.op, decoded.attrs, shapes);
  if (!problem.empty()) return absl::InvalidArgumentError(problem);
  const auto flops = static_cast<double>(kernels::Flops(decoded.op, decoded.attrs, shapes));
  const auto bytes = static_cast<double>(kernels::BytesMoved(decoded.op, decoded.attrs, shapes));
  // Sums and updates: arithmetic is nothing beside their traffic.
  if (on_host && !shared_cores_) return bytes / host_memory_rate_;
  const RateClass of = kernels::RateClassOf(decoded.op, decoded.attrs, shapes);
  const double rate = Rate(of);
  if (rate > 0 && flops > 0) {
    if (cached <= 0 || cached_.empty()) return flops / rate;
    return flops * ((1 - cached) / rate + cached / CachedRate(of));
  }
  return RooflineSeconds(decoded.attrs, flops, bytes);
}

}  // namespace terrace
