// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/compute_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "proto/peak_flops.h"
#include "proto/program/op_codec.h"

namespace terrace {
namespace {

using kernels::DType;
using kernels::Op;
using kernels::RateClass;
using kernels::TensorShape;

TensorShape F32(std::vector<int64_t> sizes) {
  TensorShape shape = {.dtype = DType::kF32, .dims = static_cast<int>(sizes.size())};
  std::copy(sizes.begin(), sizes.end(), shape.size.begin());
  shape.row_stride = shape.RowElements();
  return shape;
}

void AddRate(const std::string& kernel, int64_t rows, int64_t columns, int64_t inner, double rate,
             v1::HardwareProfile* profile) {
  v1::KernelRate* added = profile->add_kernels();
  added->set_kernel(kernel);
  added->set_precision("fp32");
  added->set_rows(rows);
  added->set_columns(columns);
  added->set_inner(inner);
  added->set_flops_per_second(rate);
}

RateClass Matmul(int64_t rows, int64_t columns, int64_t inner) {
  return {
      .kernel = "matmul", .precision = "fp32", .rows = rows, .columns = columns, .inner = inner};
}

TEST(ComputeTimeTest, RatesBetweenShapesAreInterpolatedInLogarithms) {
  v1::HardwareProfile profile;
  AddRate("matmul", 64, 64, 64, 1e9, &profile);
  AddRate("matmul", 1024, 64, 64, 16e9, &profile);
  AddRate("matmul", 1024, 1024, 64, 64e9, &profile);
  const ComputeTime time(profile);
  EXPECT_NEAR(time.Rate(Matmul(64, 64, 64)), 1e9, 1);
  EXPECT_NEAR(time.Rate(Matmul(1024, 64, 64)), 16e9, 1);
  // Half way between 64 and 1024 is 256; rates 1 and 16 meet at 4.
  EXPECT_NEAR(time.Rate(Matmul(256, 64, 64)), 4e9, 1e3);
  // Where few shapes of a size were measured, those that were stand for it.
  EXPECT_NEAR(time.Rate(Matmul(64, 1024, 64)), 1e9, 1);
  EXPECT_NEAR(time.Rate(Matmul(1024, 256, 64)), 32e9, 1e3);
}

TEST(ComputeTimeTest, BeyondTheShapesMeasuredTheRateHolds) {
  v1::HardwareProfile profile;
  AddRate("matmul", 64, 64, 64, 1e9, &profile);
  AddRate("matmul", 1024, 1024, 1024, 16e9, &profile);
  const ComputeTime time(profile);
  EXPECT_NEAR(time.Rate(Matmul(1, 1, 1)), 1e9, 1);
  EXPECT_NEAR(time.Rate(Matmul(1 << 20, 1 << 20, 1 << 20)), 16e9, 1);
}

TEST(ComputeTimeTest, TransposedProductsTakeTheirOwnRateOrThePlainOnes) {
  v1::HardwareProfile profile;
  AddRate("matmul", 64, 64, 64, 1e9, &profile);
  RateClass transposed = Matmul(64, 64, 64);
  transposed.kernel = "matmul_tn";
  EXPECT_NEAR(ComputeTime(profile).Rate(transposed), 1e9, 1);
  AddRate("matmul_tn", 64, 64, 64, 3e9, &profile);
  EXPECT_NEAR(ComputeTime(profile).Rate(transposed), 3e9, 1);
  transposed.precision = "bf16";
  EXPECT_EQ(ComputeTime(profile).Rate(transposed), 0);
}

TEST(ComputeTimeTest, RatesInTheCacheAreNeverBelowThoseInMemoryAndEndWhereNoneWasMeasured) {
  v1::HardwareProfile profile;
  AddRate("matmul", 64, 64, 64, 1e9, &profile);
  AddRate("matmul", 256, 64, 64, 4e9, &profile);
  AddRate("matmul", 1024, 64, 64, 5e9, &profile);
  profile.mutable_kernels(0)->set_cached_flops_per_second(2e9);
  profile.mutable_kernels(1)->set_cached_flops_per_second(3e9);
  EXPECT_NEAR(ComputeTime(profile).CachedRate(Matmul(64, 64, 64)), 1e9, 1) << "of no known size";
  profile.set_cache_bytes(32 << 20);
  const ComputeTime time(profile);
  EXPECT_NEAR(time.Rate(Matmul(64, 64, 64)), 1e9, 1);
  EXPECT_NEAR(time.CachedRate(Matmul(64, 64, 64)), 2e9, 1);
  EXPECT_NEAR(time.CachedRate(Matmul(256, 64, 64)), 4e9, 1);
  EXPECT_NEAR(time.CachedRate(Matmul(4096, 64, 64)), 5e9, 1) << "too large for the cache";
}

TEST(ComputeTimeTest, ProductsOfOneThreadAreLookedUpAmongSuch) {
  v1::HardwareProfile profile;
  AddRate("matmul", 32, 256, 256, 1e9, &profile);  // 4 MFLOP: one thread
  AddRate("matmul", 512, 256, 256, 4e9, &profile);
  EXPECT_NEAR(ComputeTime(profile).Rate(Matmul(64, 256, 256)), std::exp2(0.5) * 1e9, 1e6);
  profile.set_shared_cores(true);
  EXPECT_NEAR(ComputeTime(profile).Rate(Matmul(64, 256, 256)), std::exp2(0.5) * 1e9, 1e6)
      << "a rank of one thread";
  profile.set_threads(2);
  EXPECT_NEAR(ComputeTime(profile).Rate(Matmul(64, 256, 256)), 1e9, 1);
  EXPECT_NEAR(ComputeTime(profile).Rate(Matmul(128, 256, 256)), 2e9, 1) << "both threads";
}

TEST(ComputeTimeTest, RowsOfOneThreadAreLookedUpAmongSuchHoweverManyTheyAre) {
  v1::HardwareProfile profile;
  AddRate("rms_norm", 256, 64, 1, 1e9, &profile);   // 16384 elements: one thread
  AddRate("rms_norm", 32, 256, 1, 2e9, &profile);   // 8192
  AddRate("rms_norm", 256, 256, 1, 8e9, &profile);  // 65536: both
  const auto of = [](int64_t rows, int64_t columns) {
    return RateClass{.kernel = "rms_norm", .precision = "fp32", .rows = rows, .columns = columns};
  };
  profile.set_shared_cores(true);
  EXPECT_GT(ComputeTime(profile).Rate(of(128, 256)), 4e9) << "a rank of one thread";
  profile.set_threads(2);
  const ComputeTime time(profile);
  EXPECT_NEAR(time.Rate(of(128, 256)), 2e9, 1);
  EXPECT_NEAR(time.Rate(of(200, 256)), 2e9, 1);
  EXPECT_NEAR(time.Rate(of(128, 128)), std::exp2(0.5) * 1e9, 1e6) << "between lengths of rows";
  EXPECT_NEAR(time.Rate(of(256, 256)), 8e9, 1) << "both threads";
}

TEST(ComputeTimeTest, Tf32WithoutRatesIsBf16ByItsPeakOrFp32) {
  v1::HardwareProfile profile;
  AddRate("matmul", 64, 64, 64, 1e9, &profile);
  RateClass tf32 = Matmul(64, 64, 64);
  tf32.precision = "tf32";
  EXPECT_NEAR(ComputeTime(profile).Rate(tf32), 1e9, 1) << "a device without it";
  AddRate("matmul", 64, 64, 64, 20e9, &profile);
  profile.mutable_kernels(1)->set_precision("bf16");
  profile.set_bf16_flops_per_second(100e9);
  profile.set_tf32_flops_per_second(50e9);
  EXPECT_NEAR(ComputeTime(profile).Rate(tf32), 10e9, 10);
  AddRate("matmul", 64, 64, 64, 7e9, &profile);
  profile.mutable_kernels(2)->set_precision("tf32");
  EXPECT_NEAR(ComputeTime(profile).Rate(tf32), 7e9, 10) << "its own come first";
}

TEST(ComputeTimeTest, Fp16IsBf16OnTensorCoresAndFp32OnACpu) {
  v1::HardwareProfile profile;
  AddRate("matmul", 64, 64, 64, 1e9, &profile);
  AddRate("matmul", 64, 64, 64, 20e9, &profile);
  profile.mutable_kernels(1)->set_precision("bf16");
  profile.set_f32_flops_per_second(2e9);
  profile.set_bf16_flops_per_second(40e9);
  RateClass fp16 = Matmul(64, 64, 64);
  fp16.precision = "fp16";
  EXPECT_NEAR(ComputeTime(profile).Rate(fp16), 20e9, 20);
  EXPECT_EQ(PeakFlops(profile, "fp16"), 40e9);
  profile.set_shared_cores(true);
  EXPECT_NEAR(ComputeTime(profile).Rate(fp16), 1e9, 1);
  EXPECT_EQ(PeakFlops(profile, "fp16"), 2e9);
}

TEST(ComputeTimeTest, Fp8WithoutRatesIsBf16ByItsPeakOrBf16) {
  v1::HardwareProfile profile;
  AddRate("matmul", 64, 64, 64, 20e9, &profile);
  profile.mutable_kernels(0)->set_precision("bf16");
  profile.set_bf16_flops_per_second(100e9);
  RateClass fp8 = Matmul(64, 64, 64);
  fp8.precision = "fp8";
  EXPECT_NEAR(ComputeTime(profile).Rate(fp8), 20e9, 10) << "a device without it";
  profile.set_fp8_flops_per_second(200e9);
  EXPECT_NEAR(ComputeTime(profile).Rate(fp8), 40e9, 20);
  AddRate("matmul", 64, 64, 64, 33e9, &profile);
  profile.mutable_kernels(1)->set_precision("fp8");
  EXPECT_NEAR(ComputeTime(profile).Rate(fp8), 33e9, 10) << "its own come first";
}

TEST(ComputeTimeTest, OpsWithoutARateTakePeakAndBandwidth) {
  v1::HardwareProfile profile;
  profile.set_f32_flops_per_second(1e9);
  profile.set_memory_bytes_per_second(1e9);
  profile.set_host_memory_bytes_per_second(0.5e9);
  v1::ComputeOp add;
  EncodeOp(Op::kAdd, kernels::NoAttrs{}, &add);
  const std::vector<TensorShape> shapes = {F32({1000}), F32({1000})};
  const auto seconds = [&](const v1::HardwareProfile& on, bool on_host) {
    const auto result = ComputeTime(on).Seconds(add, shapes, on_host);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(0);
  };
  EXPECT_DOUBLE_EQ(seconds(profile, false), 12000 / 1e9 + 1000 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(profile, true), 12000 / 0.5e9);
  AddRate("add", 1000, 1, 1, 1e6, &profile);
  EXPECT_NEAR(seconds(profile, false), 1000 / 1e6, 1e-12);
  EXPECT_DOUBLE_EQ(seconds(profile, true), 12000 / 0.5e9);  // a device's rate, not the host's
  profile.set_shared_cores(true);
  EXPECT_NEAR(seconds(profile, true), 1000 / 1e6, 1e-12);
}

}  // namespace
}  // namespace terrace
