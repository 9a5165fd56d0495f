// Where what does not fit the device rests (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840;
// ZeRO-Infinity, Rajbhandari et al. 2021, arXiv 2104.07857), as the passes see it.
//
// Pure and thread-safe, except where said.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "coordinator/compiler/graph/builder.h"
#include "proto/program/tiers.h"
#include "proto/v1/plan.pb.h"

namespace terrace::compiler {

// Elements of this type in a page. Matrices of at least so many may rest off the device and begin
// on a page there; smaller ones and vectors stay, as copies of a few bytes cost more than they
// save. Whether a parameter is such a one does not depend on where it rests, so that gradients are
// summed in the same order on every tier. Whole pages of a shorter type are whole pages of f32 too.
constexpr int64_t StreamedElements(kernels::DType dtype) {
  return kNvmeAlignment / kernels::SizeOf(dtype);
}

inline constexpr int64_t kDefaultChunkBytes = int64_t{8} << 20;

bool OffDevice(const v1::TierShares& shares);
bool OffDevice(const v1::Offload& offload);

// Hands out tiers so that the elements on each come as near to the shares as whole pieces allow, at
// any time: neighbours differ, so that slow tiers work all the time. Thread-compatible.
class TierChooser {
 public:
  explicit TierChooser(const v1::TierShares& shares);
  v1::Tier Next(int64_t elements);

 private:
  std::array<double, v1::Tier_ARRAYSIZE> share_ = {};
  std::array<double, v1::Tier_ARRAYSIZE> given_ = {};
  double total_ = 0;
};

// Which buffers of the host copies pass through (staging.h).
enum class Ring {
  kFetch,
  kLeave,
  kGradient,
  kWeight,
  kFirstMoment,
  kSecondMoment,
  kRounded,
  kFirstMomentScales,
  kSecondMomentScales
};

// Copies between tiers, in pieces of a fixed size, through the host where one end is on NVMe.
// Borrows the builder. Thread-compatible.
class TierCopies {
 public:
  TierCopies(int64_t chunk_bytes, Builder* builder);

  int64_t ChunkElements(kernels::DType dtype) const;

  // All of a dense slice that rests on `from`'s tier to the device, or from there to `to`'s tier.
  // To NVMe it goes with its padding (Padded).
  void ToDevice(Slice from, Slice to, const std::string& name);
  void FromDevice(Slice from, Slice to, const std::string& name);

  // All of a dense slice in `to`'s type, wherever both rest. It is rounded where it rests, by the
  // host where that is off the device, so that fewer bits travel.
  void Round(Slice from, Slice to, const std::string& name);
  // The same of one piece that is on the host.
  void RoundOnHost(Slice here, Slice to, const std::string& name);

  // A new host buffer of a ring for one piece, a whole number of pages.
  Slice Staging(Ring ring, const Slice& piece, const std::string& name);
  // The piece with the padding up to the next page. REQUIRES: that is part of its buffer.
  static Slice Padded(const Slice& piece);

 private:
  // One piece that is on the device to another tier.
  void RoundAndLeave(Slice here, Slice to, const std::string& name);
  void Cast(Slice from, Slice to, const std::string& name);

  const int64_t chunk_bytes_;
  Builder& builder_;
};

}  // namespace terrace::compiler
