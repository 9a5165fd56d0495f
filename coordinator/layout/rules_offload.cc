// What a layout may keep off the device, and what its offload leaves open.
//
// The host updates whatever is off the device, where its moments are (compiler/optimizer.h).
// Weights and gradients farther away than those would be read and written back by a step whose
// states are near: refused, as nobody wants it. Activations go where they like.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/layout/rules.h"
#include "proto/program/tiers.h"

namespace terrace {
namespace {

constexpr int64_t kDefaultChunkBytes = int64_t{8} << 20;

bool Absent(const v1::TierShares& shares) {
  return shares.device() == 0 && shares.host() == 0 && shares.nvme() == 0;
}

void AllOnDeviceIfAbsent(v1::TierShares* shares) {
  if (Absent(*shares)) shares->set_device(1);
}

class OffloadChecker {
 public:
  explicit OffloadChecker(const v1::Layout& layout) : layout_(layout) {}

  std::vector<std::string> Check() && {
    CheckPages("chunk_bytes", layout_.chunk_bytes());
    CheckPages("tile_bytes", layout_.tile_bytes());
    if (layout_.has_offload()) CheckTiers(layout_.offload());
    return std::move(problems_);
  }

 private:
  void Problem(std::string_view key, const std::string& got, const std::string& must,
               const std::string& way_out) {
    problems_.push_back(LayoutProblem(key, got, must, way_out));
  }

  void CheckPages(std::string_view key, int64_t bytes) {
    if (bytes >= 0 && bytes % kNvmeAlignment == 0) return;
    Problem(key, absl::StrCat(bytes), absl::StrCat("be a multiple of ", kNvmeAlignment), "");
  }

  void CheckTiers(const v1::Offload& offload) {
    CheckShares("parameter", offload.parameter());
    CheckShares("gradient", offload.gradient());
    CheckShares("optimizer", offload.optimizer());
    CheckShares("activation", offload.activation());
    CheckNotBeyondOptimizer("parameter", offload.parameter());
    CheckNotBeyondOptimizer("gradient", offload.gradient());
    CheckWholeWeights(offload.parameter());
  }

  void CheckWholeWeights(const v1::TierShares& parameter) {
    const bool whole = layout_.zero_stage() == 1 || layout_.zero_stage() == 2;
    if (!whole || FarthestTier(parameter) == v1::DEVICE) return;
    Problem("offload.parameter", std::string(TierName(FarthestTier(parameter))),
            absl::StrCat("be device with zero ", layout_.zero_stage(),
                         ", which keeps whole weights there"),
            "layout.zero 3");
  }

  void CheckShares(const std::string& name, const v1::TierShares& shares) {
    constexpr double kTolerance = 1e-6;
    const double sum = shares.device() + shares.host() + shares.nvme();
    const bool in_range = shares.device() >= 0 && shares.host() >= 0 && shares.nvme() >= 0;
    if (in_range && std::abs(sum - 1) <= kTolerance) return;
    Problem("offload." + name,
            absl::StrCat("device ", shares.device(), ", host ", shares.host(), ", nvme ",
                         shares.nvme()),
            "be parts of at least 0 that sum to 1", "");
  }

  void CheckNotBeyondOptimizer(const std::string& name, const v1::TierShares& shares) {
    const v1::Tier tier = FarthestTier(shares);
    const v1::Tier most = FarthestTier(layout_.offload().optimizer());
    if (tier <= most) return;
    const std::string near(TierName(most)), far(TierName(tier));
    Problem("offload." + name, far,
            "not be farther away than layout.offload.optimizer, which is on " + near,
            absl::StrCat(near, ", or layout.offload.optimizer ", far));
  }

  const v1::Layout& layout_;
  std::vector<std::string> problems_;
};

}  // namespace

v1::Tier FarthestTier(const v1::TierShares& shares) {
  if (shares.nvme() > 0) return v1::NVME;
  return shares.host() > 0 ? v1::HOST : v1::DEVICE;
}

bool IsOffloaded(const v1::Layout& layout) {
  const v1::Offload& offload = layout.offload();
  for (const v1::TierShares* shares :
       {&offload.parameter(), &offload.gradient(), &offload.optimizer(), &offload.activation()}) {
    if (FarthestTier(*shares) != v1::DEVICE) return true;
  }
  return false;
}

std::string_view TierName(v1::Tier tier) {
  if (tier == v1::NVME) return "nvme";
  return tier == v1::HOST ? "host" : "device";
}

v1::Layout CompletedOffload(v1::Layout layout) {
  if (!IsOffloaded(layout)) {
    layout.clear_offload();
    return layout;
  }
  v1::Offload& offload = *layout.mutable_offload();
  AllOnDeviceIfAbsent(offload.mutable_parameter());
  AllOnDeviceIfAbsent(offload.mutable_optimizer());
  AllOnDeviceIfAbsent(offload.mutable_activation());
  if (Absent(offload.gradient())) {
    const double away = offload.optimizer().host() + offload.optimizer().nvme();
    offload.mutable_gradient()->set_host(away);
    offload.mutable_gradient()->set_device(1 - away);
  }
  if (layout.chunk_bytes() == 0) layout.set_chunk_bytes(kDefaultChunkBytes);
  return layout;
}

std::vector<std::string> OffloadProblems(const v1::Layout& layout) {
  return OffloadChecker(layout).Check();
}

}  // namespace terrace
