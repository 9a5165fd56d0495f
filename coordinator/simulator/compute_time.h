// How long a computation takes on a profile, alone.
//
// Where the profile has rates of the op's kernel (KernelRate, by the classes of
// kernels/rate_class.h), FLOPs over the rate at the op's shape: interpolated between the shapes
// measured, linear in the logarithms of sizes and rate, and held beyond the smallest and the
// largest. Elsewhere FLOPs over the peak plus bytes over memory's bandwidth.
//
// Products so small that the CPU backend gives them one of a rank's threads are looked up among
// such: the rates of those next to them that have all threads say nothing of them.
//
// A rate is that of operands in memory. Where it was also measured with operands in the last-level
// cache, a computation that finds a part of its operands there (cache_reuse.h) takes that part of
// its time at the second rate.
//
// Reads the profile once. Thread-safe once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/op.h"
#include "kernels/rate_class.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

class ComputeTime {
 public:
  explicit ComputeTime(const v1::HardwareProfile& profile);

  // INVALID_ARGUMENT when the op does not decode or the shapes do not fit it. `on_host`: on the
  // host's processors, beside the device. `cached`: the part of its operands' bytes that is in the
  // last-level cache, 0 to 1.
  absl::StatusOr<double> Seconds(const v1::ComputeOp& compute,
                                 const std::vector<kernels::TensorShape>& shapes, bool on_host,
                                 double cached = 0) const;

  // FLOPs a second of a class; 0 when the profile has no rate of its kernel. Without rates of tf32
  // they are those of bf16 by the ratio of the peaks, or fp32's on a device that has no tf32.
  // Likewise fp8, or bf16's on a device that has none. fp16 is bf16 on tensor cores, and fp32 on a
  // CPU, which converts it.
  double Rate(const kernels::RateClass& shape) const;
  // The same with operands in the cache; Rate where that was not measured, and never less.
  double CachedRate(const kernels::RateClass& shape) const;

 private:
  // Logarithms of rates by the logarithms of sizes: rows, of these columns, of these inner sizes.
  using Inner = std::map<double, double>;
  using Columns = std::map<double, Inner>;
  using Rows = std::map<double, Columns>;

  // By kernel and precision: all shapes, and those of which one thread does all.
  using Tables = std::map<std::tuple<std::string, std::string, bool>, Rows>;

  double RateOf(const kernels::RateClass& shape, const Tables& tables) const;
  // A product, or an op on rows, so small that one of the rank's threads does it.
  bool HasOneThread(const kernels::RateClass& shape) const;
  double RateInTable(const kernels::RateClass& shape, const Tables& tables) const;
  double Fp8Rate(kernels::RateClass shape, const Tables& tables) const;
  double RooflineSeconds(const kernels::OpAttrs& attrs, double flops, double bytes) const;

  Tables tables_;
  Tables cached_;  // empty where nothing was measured in a cache
  const double f32_rate_;
  const double tf32_rate_;
  const double bf16_rate_;
  const double fp8_rate_;
  const double memory_rate_;
  const double host_memory_rate_;
  const bool shared_cores_;
  const bool teams_;  // kernels that are worth it have several threads
};

}  // namespace terrace
