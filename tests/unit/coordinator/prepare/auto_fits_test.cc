// Whatever fits when its layout is pinned fits with `layout: auto`: small models, clusters, batches
// and limits are drawn, and the search is compared with one that compiles every layout there is.
// And what a refusal advises fits when it is applied.
//
// TERRACE_AUTO_FITS=N draws N jobs from a seed of N instead of the few that always run.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"
#include "coordinator/hardware/cluster.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/closed_form_error.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/planner/space.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/search.h"
#include "coordinator/prepare/what_fits.h"
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
  job.budget = WhatIfBudget(job.spec, *cluster);
  job.budget.external_bytes = 0;
  job.words = absl::StrCat(family, ", vocabulary ", sizes.vocabulary, ", ", sizes.layers,
                           " layers of ", sizes.hidden, ", ", sizes.sequence, " tokens, batch ",
                           batch, ", ", devices, " devices");
  return job;
}

// Of more layouts so many are drawn.
constexpr size_t kLayoutsMax = 250;

// In quarters, each class by itself, so that some of what belongs together lies on several tiers.
v1::Offload DrawShares(bool to_nvme, std::mt19937_64* random) {
  v1::Offload offload;
  for (v1::TierShares* shares : {offload.mutable_parameter(), offload.mutable_gradient(),
                                 offload.mutable_optimizer(), offload.mutable_activation()}) {
    const double away = 0.25 * static_cast<double>((*random)() % 5);
    const double nvme = to_nvme ? 0.25 * static_cast<double>((*random)() % 3) : 0;
    shares->set_nvme(std::min(away, nvme));
    shares->set_host(away - shares->nvme());
    shares->set_device(1 - away);
  }
  return offload;
}

std::vector<v1::Layout> SomeLayouts(const Drawn& job, std::mt19937_64* random) {
  std::vector<v1::Offload> offloads = {v1::Offload()};
  for (const v1::Offload& offload : Offloads(job.spec.resources().nvme().paths_size() > 0)) {
    offloads.push_back(offload);
    offloads.push_back(offload);
    offloads.back().mutable_activation()->set_host(1);
  }
  constexpr int kShares = 4;
  for (int i = 0; i < kShares; ++i)
    offloads.push_back(DrawShares(job.spec.resources().nvme().paths_size() > 0, random));
  std::vector<v1::Layout> layouts;
  EXPECT_TRUE(ForEachLayout(job.spec, job.model, job.budget, Search::kAll, [&](v1::Layout layout) {
                for (const char* recompute : {"none", "block"}) {
                  layout.set_recompute(recompute);
                  for (const v1::Offload& offload : offloads) {
                    v1::Layout moved = layout;
                    *moved.mutable_offload() = offload;
                    moved.set_parameter_format((*random)() % 2 == 0 ? "bf16" : "f32");
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
      absl::StatusOr<Evaluated> one = CompileLayout(job_.spec, job_.model, job_.budget, layout);
      EXPECT_FALSE(absl::IsInternal(one.status()))
          << job_.words << ", " << LayoutText(layout) << ": " << one.status();
      if (one.ok()) {
        CheckBounds(*one);
        one->programs.clear();
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
  // What is called infeasible does not fit.
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
    const auto searched = SearchLayouts(spec, *ReadModel(spec), WhatIfBudget(spec, *cluster));
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

// The layout that is chosen for `open` with just the memory that `pinned` needs.
v1::Layout ChosenWithMemoryOf(const v1::JobSpec& pinned, v1::JobSpec open, Budget budget) {
  const Model model = *ReadModel(open);
  const auto fitting = SearchLayouts(pinned, model, budget);
  EXPECT_TRUE(fitting.ok()) << fitting.status();
  if (!fitting.ok()) return {};
  const Evaluated& least = fitting->evaluated.front();
  budget.device_memory_bytes = least.device_bytes;
  open.mutable_resources()->set_device_memory(least.device_bytes);
  open.mutable_resources()->set_host_memory(least.host_bytes);
  const auto searched = SearchLayouts(open, model, budget);
  EXPECT_TRUE(searched.ok()) << searched.status();
  if (!searched.ok()) return {};
  const Evaluated& chosen = searched->evaluated.front();
  EXPECT_TRUE(chosen.fits) << LayoutText(chosen.layout) << ", " << chosen.device_bytes << " of "
                           << least.device_bytes << ", host " << chosen.host_bytes << " of "
                           << least.host_bytes;
  return chosen.layout;
}

// "host", "device 25 % + nvme 75 %".
v1::TierShares SharesOf(std::string_view words) {
  v1::TierShares shares;
  for (const absl::string_view part : absl::StrSplit(Absl(words), " + ")) {
    const std::vector<std::string> word = absl::StrSplit(part, ' ');
    const double share = word.size() > 1 ? std::stod(word[1]) / 100 : 1;
    if (word[0] == "host") shares.set_host(share);
    if (word[0] == "nvme") shares.set_nvme(share);
    if (word[0] == "device") shares.set_device(share);
  }
  return shares;
}

// Two tiers are nearly full then, and the closed form, which is a few percent too high, has no
// share for either that it calls small enough.
TEST(AutoFitsTest, WhatAPlanNeedsIsEnoughForIt) {
  struct Case {
    const char* preset;
    const char* cluster;
    int64_t sequence, batch;
    v1::LayoutSpec layout;
  };
  v1::LayoutSpec activations;  // leave the device, shared with the host
  activations.set_tp(1);
  activations.set_pp(2);
  activations.set_cp(1);
  activations.set_dp(4);
  activations.set_zero(2);
  activations.set_micro_batch(4);
  activations.set_recompute("selective");
  activations.set_schedule("1f1b");
  v1::LayoutSpec beside_states = activations;
  beside_states.set_pp(1);
  beside_states.set_dp(16);
  beside_states.set_zero(3);
  beside_states.set_micro_batch(1);
  beside_states.set_schedule("breadth_first");
  *beside_states.mutable_offload()->mutable_optimizer() = SharesOf("device 50 % + nvme 50 %");
  *beside_states.mutable_offload()->mutable_parameter() = SharesOf("device 75 % + host 25 %");
  for (const Case& c : {Case{"llama-2-7b", "h100x8:1", 4096, 32, activations},
                        Case{"qwen2.5-72b", "h100x8:2", 2048, 16, beside_states}}) {
    v1::JobSpec spec =
        OpenSpec(std::string(FindPreset(c.preset)->config_json), c.sequence, c.batch);
    spec.mutable_train()->set_precision("fp32");
    spec.mutable_resources()->set_host_memory(int64_t{200} << 30);
    spec.mutable_resources()->mutable_nvme()->add_paths("/nvme");
    const auto cluster = ParseCluster(c.cluster);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    ASSERT_TRUE(ApplyCluster(*cluster, &spec).ok());
    *spec.mutable_layout() = c.layout;
    Budget budget = WhatIfBudget(spec, *cluster);
    const auto ample = SearchLayouts(spec, *ReadModel(spec), budget);
    ASSERT_TRUE(ample.ok()) << ample.status();
    const Evaluated& needs = ample->evaluated.front();
    ASSERT_TRUE(needs.fits);
    const auto limit = [](int64_t bytes) { return bytes + bytes / 100; };
    budget.device_memory_bytes = limit(needs.device_bytes);
    spec.mutable_resources()->set_device_memory(budget.device_memory_bytes);
    spec.mutable_resources()->set_host_memory(limit(needs.host_bytes));
    const auto searched = SearchLayouts(spec, *ReadModel(spec), budget);
    ASSERT_TRUE(searched.ok()) << searched.status();
    EXPECT_TRUE(searched->evaluated.front().fits)
        << c.preset << ", device " << budget.device_memory_bytes << ", host "
        << limit(needs.host_bytes) << ": with more of both " << LayoutText(needs.layout);
  }
}

// For two nodes of one device. A layer and an embedding are too large for a rank alone, whichever
// way they are brought.
v1::JobSpec WideEmbedding() {
  const TinySizes sizes = {
      .vocabulary = 32'768, .hidden = 512, .layers = 1, .intermediate = 1024, .sequence = 64};
  return OpenSpec(TinyConfig("llama", sizes), sizes.sequence, 4);
}

TEST(AutoFitsTest, TensorParallelismGoesOverNodesWhereNothingElseFits) {
  v1::JobSpec spec = WideEmbedding();
  const auto cluster = ParseCluster("a100x1:2");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(ApplyCluster(*cluster, &spec).ok());
  v1::JobSpec pinned = spec;
  pinned.mutable_resources()->clear_host_memory();
  pinned.mutable_layout()->set_tp(2);
  pinned.mutable_layout()->set_micro_batch(1);
  pinned.mutable_layout()->set_recompute("block");
  EXPECT_EQ(ChosenWithMemoryOf(pinned, spec, WhatIfBudget(spec, *cluster)).tensor_parallel(), 2);
}

// By closed form it is a little too large, and of its split not the fastest.
TEST(AutoFitsTest, TheSmallestLayoutOfASplitIsTried) {
  const TinySizes sizes = {
      .vocabulary = 512, .hidden = 512, .layers = 4, .intermediate = 1024, .sequence = 256};
  v1::JobSpec spec = OpenSpec(TinyConfig("llama", sizes), sizes.sequence, 8);
  const auto cluster = ParseCluster("a100x2:1");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(ApplyCluster(*cluster, &spec).ok());
  v1::JobSpec pinned = spec;
  pinned.mutable_formats()->set_parameter("f32");
  pinned.mutable_layout()->set_tp(2);
  pinned.mutable_layout()->set_micro_batch(1);
  pinned.mutable_layout()->set_recompute("block");
  pinned.mutable_resources()->clear_host_memory();
  Budget budget = WhatIfBudget(spec, *cluster);
  const auto least = SearchLayouts(pinned, *ReadModel(spec), budget);
  ASSERT_TRUE(least.ok()) << least.status();
  budget.device_memory_bytes = least->evaluated.front().device_bytes + 4096;
  spec.mutable_resources()->set_device_memory(budget.device_memory_bytes);
  spec.mutable_resources()->set_host_memory(4096);  // of no use
  const auto searched = SearchLayouts(spec, *ReadModel(spec), budget);
  ASSERT_TRUE(searched.ok()) << searched.status();
  EXPECT_TRUE(searched->evaluated.front().fits);
}

// There is hardly any memory of the host, so that no offload helps.
TEST(AutoFitsTest, ARefusalTriesWhatAPlanTriesWhereNothingElseFits) {
  v1::JobSpec spec = WideEmbedding();
  const auto cluster = ParseCluster("a100x1:2");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(ApplyCluster(*cluster, &spec).ok());
  spec.mutable_resources()->set_host_memory(int64_t{1} << 20);
  v1::JobSpec fitting = spec;
  fitting.mutable_layout()->set_tp(2);
  fitting.mutable_layout()->set_recompute("block");
  fitting.mutable_layout()->set_micro_batch(1);
  Budget budget = WhatIfBudget(spec, *cluster);
  const auto least = SearchLayouts(fitting, *ReadModel(spec), budget);
  ASSERT_TRUE(least.ok()) << least.status();
  budget.device_memory_bytes = least->evaluated.front().device_bytes;
  spec.mutable_resources()->set_device_memory(budget.device_memory_bytes);
  spec.mutable_layout()->set_micro_batch(2);
  std::vector<std::string> tried;
  const auto tell = [&tried](const std::string& words) { tried.push_back(words); };
  const Changes changes = ChangesThatFit(spec, budget, 1, tell);
  ASSERT_FALSE(changes.found.empty());
  EXPECT_EQ(tried.back(), "all layouts with a drive");
  EXPECT_EQ(changes.found[0].evaluated.layout.tensor_parallel(), 2);
  EXPECT_THAT(changes.found[0].words, testing::StartsWith("layout.micro_batch "));
}

// Weights in 16 bits stay on the device, masters and moments on the host: neither has room for
// more.
TEST(AutoFitsTest, WeightsInSixteenBitsMayStayWhereTheirMastersDoNot) {
  const TinySizes sizes = {
      .vocabulary = 32'768, .hidden = 256, .layers = 6, .intermediate = 384, .sequence = 64};
  v1::JobSpec spec = OpenSpec(TinyConfig("qwen3", sizes), sizes.sequence, 16);
  const auto cluster = ParseCluster("a100x1:1");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(ApplyCluster(*cluster, &spec).ok());
  v1::JobSpec pinned = spec;
  pinned.mutable_formats()->set_parameter("bf16");
  v1::LayoutSpec* layout = pinned.mutable_layout();
  layout->set_schedule("breadth_first");
  layout->set_recompute("block");
  layout->mutable_offload()->mutable_gradient()->set_host(1);
  layout->mutable_offload()->mutable_optimizer()->set_host(1);
  layout->mutable_offload()->mutable_parameter()->set_device(1);
  layout->set_micro_batch(1);
  const v1::Layout chosen = ChosenWithMemoryOf(pinned, spec, WhatIfBudget(spec, *cluster));
  EXPECT_EQ(chosen.parameter_format(), "bf16");
}

// Sets what a refusal advises, as a user would.
void Apply(const std::string& advice, v1::JobSpec* spec) {
  const std::string in_turn = absl::StrReplaceAll(advice, {{" with ", " and "}});
  const std::vector<std::string> changes = absl::StrSplit(in_turn, " and ");
  for (const std::string& change : changes) {
    const std::pair<std::string, std::string> of = absl::StrSplit(change, absl::MaxSplits(' ', 1));
    const auto& [key, value] = of;
    v1::LayoutSpec* layout = spec->mutable_layout();
    const auto number = [&value = value] { return static_cast<uint32_t>(std::stoul(value)); };
    if (key == "train.precision") {
      spec->mutable_train()->set_precision(value);
    } else if (key == "data.sequence_length") {
      spec->mutable_data()->set_sequence_length(number());
    } else if (key == "resources.nvme") {
      spec->mutable_resources()->mutable_nvme()->add_paths("/nvme");
    } else if (key == "layout.micro_batch") {
      layout->set_micro_batch(number());
    } else if (key == "layout.recompute") {
      layout->set_recompute(value);
    } else if (key == "layout.zero") {
      layout->set_zero(static_cast<int32_t>(number()));
    } else if (key == "layout.dp") {
      layout->set_dp(number());
    } else if (key == "layout.tp") {
      layout->set_tp(number());
    } else if (key == "layout.pp") {
      layout->set_pp(number());
    } else if (key == "layout.cp") {
      layout->set_cp(number());
    } else if (key == "layout.schedule") {
      layout->set_schedule(value);
    } else if (key == "layout.offload.parameter") {
      *layout->mutable_offload()->mutable_parameter() = SharesOf(value);
    } else if (key == "layout.offload.gradient") {
      *layout->mutable_offload()->mutable_gradient() = SharesOf(value);
    } else if (key == "layout.offload.optimizer") {
      *layout->mutable_offload()->mutable_optimizer() = SharesOf(value);
    } else if (key == "layout.offload.activation") {
      *layout->mutable_offload()->mutable_activation() = SharesOf(value);
    } else if (key == "formats.parameter") {
      spec->mutable_formats()->set_parameter(value);
    } else {
      ADD_FAILURE() << "no user can apply this: " << change;
    }
  }
}

// Jobs whose pinned layout does not fit: with what the refusal advises they do, and where it
// advises nothing they do not fit with any layout.
TEST(AutoFitsTest, TheAdviceOfARefusalFits) {
  const char* asked = std::getenv("TERRACE_AUTO_FITS");
  const int jobs = asked == nullptr ? 12 : std::atoi(asked);
  std::mt19937_64 random(asked == nullptr ? 1 : static_cast<uint64_t>(jobs));
  int advised = 0;
  for (int i = 0; i < jobs; ++i) {
    Drawn job = Draw(&random);
    v1::LayoutSpec* layout = job.spec.mutable_layout();
    layout->set_zero(0);
    layout->set_tp(1);
    layout->set_pp(1);
    layout->set_cp(1);
    layout->set_recompute("none");
    layout->set_micro_batch(job.spec.train().global_batch() / job.budget.ranks);
    const auto pinned = SearchLayouts(job.spec, job.model, job.budget);
    ASSERT_TRUE(pinned.ok()) << job.words << ": " << pinned.status();
    const int64_t external = ExternalBytes(job.budget);
    const double part = 0.1 * static_cast<double>(1 + random() % 9);
    const int64_t arena = pinned->evaluated.front().device_bytes - external;
    job.budget.device_memory_bytes =
        external + static_cast<int64_t>(part * static_cast<double>(arena));
    job.spec.mutable_resources()->set_device_memory(job.budget.device_memory_bytes);
    const Changes changes = ChangesThatFit(job.spec, job.budget, 1, {});
    if (changes.found.empty()) {
      v1::JobSpec open = job.spec;
      open.clear_layout();
      const auto released = SearchLayouts(open, job.model, job.budget);
      EXPECT_FALSE(released.ok() && released->evaluated.front().fits)
          << job.words << ", device " << job.budget.device_memory_bytes << ": "
          << LayoutText(released->evaluated.front().layout);
      continue;
    }
    ++advised;
    const std::string& advice = changes.found[0].words;
    v1::JobSpec spec = job.spec;
    Apply(advice, &spec);
    const absl::StatusOr<Model> model = ReadModel(spec);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto searched = SearchLayouts(spec, *model, job.budget);
    ASSERT_TRUE(searched.ok()) << job.words << ", " << advice << ": " << searched.status();
    EXPECT_TRUE(searched->evaluated.front().fits) << job.words << ", " << advice;
  }
  EXPECT_GE(advised, jobs / 2);
}

}  // namespace
}  // namespace terrace
