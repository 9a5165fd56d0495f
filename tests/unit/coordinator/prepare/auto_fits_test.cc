// Whatever fits when its layout is pinned fits with `layout: auto`: small models, clusters, batches
// and limits are drawn, and the search is compared with one that compiles every layout there is.
//
// TERRACE_AUTO_FITS=N draws N jobs from a seed of N instead of the few that always run.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/closed_form_error.h"
#include "coordinator/planner/cluster.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/planner/layout_rules.h"
#include "coordinator/planner/space.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/search.h"
#include "coordinator/prepare/search_sample.h"
#include "tests/unit/coordinator/prepare/open_spec.h"

namespace terrace {
namespace {

struct Drawn {
  v1::JobSpec spec;
  Model model;
  Budget budget;
  std::string words;
};

// A job whose limits are not drawn yet.
Drawn Draw(std::mt19937_64* random) {
  const auto one_of = [random](const std::vector<int64_t>& values) {
    return values[(*random)() % values.size()];
  };
  const std::string family = Families()[(*random)() % Families().size()];
  const TinySizes sizes = {.vocabulary = one_of({512, 4096, 32'768}),
                           .hidden = one_of({128, 256, 512}),
                           .layers = one_of({2, 4, 6}),
                           .intermediate = one_of({384, 1024}),
                           .sequence = one_of({64, 256})};
  const int64_t batch = one_of({4, 8, 16}), devices = one_of({1, 2, 4});
  Drawn job = {.spec = OpenSpec(TinyConfig(family, sizes), sizes.sequence, batch)};
  job.spec.mutable_resources()->set_nodes_min(1);
  job.spec.mutable_resources()->set_nodes_max(1);
  job.spec.mutable_resources()->set_devices_per_node(1);
  if ((*random)() % 2 == 0) job.spec.mutable_resources()->mutable_nvme()->add_paths("/nvme");
  const auto cluster = ParseCluster(absl::StrCat("a100x", devices, ":1"));
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(ApplyCluster(*cluster, &job.spec).ok());
  job.model = *ReadModel(job.spec);
  job.budget = BudgetOnPaper(job.spec, *cluster);
  job.budget.external_bytes = 0;
  job.words = absl::StrCat(family, ", vocabulary ", sizes.vocabulary, ", ", sizes.layers,
                           " layers of ", sizes.hidden, ", ", sizes.sequence, " tokens, batch ",
                           batch, ", ", devices, " devices");
  return job;
}

// Of more layouts so many are drawn.
constexpr size_t kLayoutsMax = 250;

std::vector<v1::Layout> SomeLayouts(const Drawn& job, std::mt19937_64* random) {
  std::vector<v1::Offload> offloads = {v1::Offload()};
  for (const v1::Offload& offload : Offloads(job.spec.resources().nvme().paths_size() > 0)) {
    offloads.push_back(offload);
    offloads.push_back(offload);
    offloads.back().mutable_activation()->set_host(1);
  }
  std::vector<v1::Layout> layouts;
  EXPECT_TRUE(ForEachLayout(job.spec, job.model, job.budget, Search::kAll, [&](v1::Layout layout) {
                for (const char* recompute : {"none", "block"}) {
                  layout.set_recompute(recompute);
                  for (const v1::Offload& offload : offloads) {
                    v1::Layout moved = layout;
                    *moved.mutable_offload() = offload;
                    moved = Completed(std::move(moved));
                    if (CheckLayout(moved, job.model, job.spec).ok()) layouts.push_back(moved);
                  }
                }
                return true;
              }).ok());
  std::shuffle(layouts.begin(), layouts.end(), *random);
  layouts.resize(std::min(layouts.size(), kLayoutsMax));
  return layouts;
}

class AutoFits {
 public:
  AutoFits(Drawn job, std::mt19937_64* random) : job_(std::move(job)), random_(*random) {
    for (const v1::Layout& layout : SomeLayouts(job_, random)) {
      absl::StatusOr<Evaluated> one =
          Sample(job_.spec, job_.model, job_.budget, layout, SizesOf(layout));
      if (one.ok()) {
        CheckBounds(*one);
        one->programs.clear();
        one->shorter.clear();
        compiled_.push_back(*std::move(one));
      }
    }
  }

  // With the bytes of some layout as the limits, and a little more.
  void Check() {
    ASSERT_FALSE(compiled_.empty()) << job_.words;
    const Evaluated& pinned = compiled_[random_() % compiled_.size()];
    const double room = 1 + 0.01 * static_cast<double>(random_() % 4);
    const auto limit = [room](int64_t bytes) {
      return static_cast<int64_t>(room * static_cast<double>(bytes)) + 4096;
    };
    const int64_t external = ExternalBytes(job_.budget);
    job_.budget.device_memory_bytes = external + limit(Least(pinned) - external);
    job_.spec.mutable_resources()->set_device_memory(job_.budget.device_memory_bytes);
    job_.spec.mutable_resources()->set_host_memory(limit(std::max<int64_t>(1, pinned.host_bytes)));
    const absl::StatusOr<Searched> searched = SearchLayouts(job_.spec, job_.model, job_.budget);
    ASSERT_TRUE(searched.ok()) << job_.words << ": " << searched.status();
    EXPECT_TRUE(searched->evaluated.front().fits)
        << job_.words << ", device " << job_.budget.device_memory_bytes << ", host "
        << job_.spec.resources().host_memory()
        << ": pinned this fits: " << LayoutText(fitting_->layout) << ", " << fitting_->device_bytes
        << " + " << fitting_->host_bytes << "; nearest "
        << LayoutText(searched->evaluated.front().layout) << ", "
        << searched->evaluated.front().device_bytes << " + "
        << searched->evaluated.front().host_bytes;
  }

 private:
  // What is called hopeless does not fit.
  void CheckBounds(const Evaluated& one) {
    const MemoryEstimate estimate =
        MemoryEstimator(EstimateModel(job_.spec, job_.model)).Memory(one.layout);
    const ClosedFormBounds bounds = BoundsOf(one.layout);
    const auto check = [&](const char* tier, int64_t estimated, int64_t bytes, double bound) {
      EXPECT_LE(static_cast<double>(estimated - kClosedFormSlackBytes),
                bound * static_cast<double>(bytes))
          << tier << ", " << std::string(bounds.kind) << ": " << job_.words << ": "
          << LayoutText(one.layout) << ", " << one.layout.micro_batches() << " x "
          << one.layout.micro_batch();
    };
    check("device", estimate.total(), one.device_bytes - ExternalBytes(job_.budget), bounds.device);
    check("host", estimate.host_bytes, one.host_bytes, bounds.host);
    check("nvme", estimate.nvme_bytes, one.nvme_bytes, bounds.nvme);
  }

  // On the device, of all that need no more of the host.
  int64_t Least(const Evaluated& pinned) {
    fitting_ = &pinned;
    for (const Evaluated& one : compiled_) {
      if (one.host_bytes <= pinned.host_bytes && one.device_bytes < fitting_->device_bytes)
        fitting_ = &one;
    }
    return fitting_->device_bytes;
  }

  Drawn job_;
  std::mt19937_64& random_;
  std::vector<Evaluated> compiled_;
  const Evaluated* fitting_ = nullptr;
};

// Each fits with tp 8, dp 8 or zero 3 pinned, and was refused without.
TEST(AutoFitsTest, LargeModelsFitEightDevicesWithHostMemoryAndNvme) {
  struct Case {
    const char* preset;
    int64_t batch;
  };
  for (const Case& c : {Case{"qwen2.5-72b", 32}, {"llama-2-70b", 64}}) {
    v1::JobSpec spec = OpenSpec(std::string(FindPreset(c.preset)->config_json), 2048, c.batch);
    v1::ResourceSpec* resources = spec.mutable_resources();
    resources->set_nodes_min(1);
    resources->set_nodes_max(1);
    resources->set_devices_per_node(1);
    resources->set_host_memory(int64_t{64} << 30);
    resources->mutable_nvme()->add_paths("/nvme");
    const auto cluster = ParseCluster("a800x8:1");
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    ASSERT_TRUE(ApplyCluster(*cluster, &spec).ok());
    const auto searched = SearchLayouts(spec, *ReadModel(spec), BudgetOnPaper(spec, *cluster),
                                        {.whole_max = kWholeToLook});
    ASSERT_TRUE(searched.ok()) << searched.status();
    EXPECT_TRUE(searched->evaluated.front().fits) << c.preset << ", batch " << c.batch;
  }
}

TEST(AutoFitsTest, WhateverAPinnedLayoutFitsAutoFits) {
  const char* asked = std::getenv("TERRACE_AUTO_FITS");
  const int jobs = asked == nullptr ? 8 : std::atoi(asked);
  std::mt19937_64 random(asked == nullptr ? 1 : static_cast<uint64_t>(jobs));
  for (int i = 0; i < jobs; ++i) AutoFits(Draw(&random), &random).Check();
}

}  // namespace
}  // namespace terrace
