// What the search finds by itself is as good as what it finds with a part of the layout pinned:
// large models on few devices, whose states need the host and a drive.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "coordinator/hardware/cluster.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/search.h"
#include "tests/unit/coordinator/prepare/open_spec.h"

namespace terrace {
namespace {

// Closed forms of layouts that offload order them no better than this.
constexpr double kAsGood = 1.1;
constexpr int64_t kHostGib = 64;

class PinnedPartsTest : public testing::Test {
 protected:
  void Ask(std::string_view preset, int64_t batch) {
    spec_ = OpenSpec(std::string(FindPreset(preset)->config_json), /*sequence=*/2048, batch);
    spec_.mutable_resources()->set_nodes_min(1);
    spec_.mutable_resources()->set_nodes_max(1);
    spec_.mutable_resources()->set_devices_per_node(1);
    spec_.mutable_resources()->set_host_memory(kHostGib << 30);
    spec_.mutable_resources()->mutable_nvme()->add_paths("/nvme");
    const auto cluster = ParseCluster("a800x8:1");
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    ASSERT_TRUE(ApplyCluster(*cluster, &spec_).ok());
    budget_ = WhatIfBudget(spec_, *cluster);
  }

  double Seconds(const v1::JobSpec& spec) {
    const auto searched = SearchLayouts(spec, *ReadModel(spec), budget_);
    EXPECT_TRUE(searched.ok()) << searched.status();
    if (!searched.ok()) return 1e300;
    EXPECT_TRUE(searched->evaluated.front().fits);
    return searched->evaluated.front().simulation.step_seconds;
  }

  void ExpectAsGoodAsPinned() {
    const double open = Seconds(spec_);
    for (const char* pin : {"pp", "tp", "dp", "zero"}) {
      v1::JobSpec pinned = spec_;
      v1::LayoutSpec& layout = *pinned.mutable_layout();
      if (pin == std::string_view("pp")) layout.set_pp(1);
      if (pin == std::string_view("tp")) layout.set_tp(8);
      if (pin == std::string_view("dp")) layout.set_dp(8);
      if (pin == std::string_view("zero")) layout.set_zero(3);
      EXPECT_LE(open, kAsGood * Seconds(pinned)) << "than with " << pin << " pinned";
    }
  }

  v1::JobSpec spec_;
  Budget budget_;
};

TEST_F(PinnedPartsTest, QwenOf72BillionOnEightDevicesOf80Gib) {
  for (const int64_t batch : {8, 32, 64}) {
    SCOPED_TRACE(absl::StrCat("batch ", batch));
    Ask("qwen2.5-72b", batch);
    ExpectAsGoodAsPinned();
  }
}

TEST_F(PinnedPartsTest, LlamaOf70BillionOnEightDevicesOf80Gib) {
  for (const int64_t batch : {32, 64}) {
    SCOPED_TRACE(absl::StrCat("batch ", batch));
    Ask("llama-2-70b", batch);
    ExpectAsGoodAsPinned();
  }
}

}  // namespace
}  // namespace terrace
