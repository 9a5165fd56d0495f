// The table of techniques: every row is one that a spec can have, and one row differs from none in
// what it names only.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/evaluation/techniques.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/spec/keys.h"
#include "tests/unit/coordinator/prepare_specs.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

bool IsKey(std::string_view key) {
  for (const SpecKey& one : SpecKeys()) {
    if (one.path == key) return true;
  }
  return false;
}

TEST(TechniquesTest, EveryKeyIsOneThatASpecHasAndEveryValueOneThatItTakes) {
  std::set<std::string> names;
  for (const Technique& technique : Techniques()) {
    const std::string name = absl::StrCat(std::string(technique.group), " ", std::string(technique.name));
    EXPECT_TRUE(names.insert(name).second) << name << " stands twice";
    EXPECT_FALSE(technique.settings.empty()) << name;
    for (const Setting& setting : technique.settings) {
      EXPECT_TRUE(IsKey(setting.key)) << setting.key;
      v1::JobSpec spec = Spec();
      EXPECT_TRUE(Apply(setting, &spec)) << setting.key;
    }
  }
  for (const Setting& setting : NoTechnique()) {
    EXPECT_TRUE(IsKey(setting.key)) << setting.key;
    v1::JobSpec spec = Spec();
    EXPECT_TRUE(Apply(setting, &spec)) << setting.key;
  }
}

TEST(TechniquesTest, AKeyThatIsNoneIsNotApplied) {
  v1::JobSpec spec = Spec();
  EXPECT_FALSE(Apply({"layout.nothing", "1"}, &spec));
  EXPECT_FALSE(Apply({"layout.tp.more", "1"}, &spec));
  EXPECT_FALSE(Apply({"layout.tp", "many"}, &spec));
  EXPECT_FALSE(Apply({"layout.offload.optimizer", "tape"}, &spec));
}

TEST(TechniquesTest, ATechniqueIsNoneWithItsOwnKeys) {
  std::vector<v1::SpecSetting> settings;
  const v1::JobSpec none = WithTechnique(Spec(), nullptr, &settings);
  EXPECT_EQ(settings.size(), NoTechnique().size());
  EXPECT_EQ(none.layout().recompute(), "none");
  EXPECT_EQ(none.layout().offload().optimizer().device(), 1);
  const Technique tiled = {.group = "offload",
                           .name = "tiled",
                           .meaning = "",
                           .no_effect = "",
                           .settings = {{"layout.offload.parameter", "host"},
                                        {"layout.tile_bytes", "16MiB"}}};
  settings.clear();
  v1::JobSpec spec = WithTechnique(Spec(), &tiled, &settings);
  EXPECT_EQ(settings.size(), NoTechnique().size()) << "a key stands twice";
  EXPECT_EQ(spec.layout().offload().parameter().host(), 1);
  EXPECT_EQ(spec.layout().offload().parameter().device(), 0);
  EXPECT_EQ(spec.layout().tile_bytes(), int64_t{16} << 20);
  *spec.mutable_layout() = none.layout();
  EXPECT_EQ(spec.SerializeAsString(), none.SerializeAsString());
}

TEST(TechniquesTest, WhatIsNoTechniqueIsKeptAndTheRestIsNamed) {
  v1::JobSpec spec = Open(Spec());
  EXPECT_THAT(LeftOut(spec), IsEmpty());
  spec.mutable_layout()->set_packing("contiguous");
  spec.mutable_layout()->set_bucket_bytes(4096);
  spec.mutable_layout()->set_micro_batch(2);
  spec.mutable_layout()->set_interleave(2);
  spec.mutable_layout()->set_zero(3);
  EXPECT_THAT(LeftOut(spec), ElementsAre("layout.zero", "layout.interleave"));
  std::vector<v1::SpecSetting> settings;
  const v1::JobSpec none = WithTechnique(spec, nullptr, &settings);
  EXPECT_EQ(none.layout().packing(), "contiguous");
  EXPECT_EQ(none.layout().bucket_bytes(), 4096);
  EXPECT_EQ(none.layout().interleave(), 0);
  EXPECT_EQ(none.layout().zero(), 0);
}

}  // namespace
}  // namespace terrace
