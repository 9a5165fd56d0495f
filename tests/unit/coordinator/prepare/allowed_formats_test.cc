// Formats that change the numbers are chosen where a spec allows them and nothing fits without, or
// where they are faster by more than a tenth; otherwise a plan is what it is without them.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/allowed_formats.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/prepare_specs.h"

namespace terrace {
namespace {

v1::JobSpec Pinned() { return Alone(Gpt2("bf16", 2)); }

void AllowAll(v1::JobSpec* spec) {
  v1::FormatSpec* allow = spec->mutable_formats()->mutable_allow();
  allow->set_gradient("bf16");
  allow->set_reduce("int8");
  allow->set_moments("int8");
  allow->set_activation("fp8");
  allow->set_gather("int8");
}

int64_t BytesWith(const v1::JobSpec& spec) {
  const auto prepared = Prepare(spec, MakeBudget());
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return prepared.ok() ? DeviceBytes(*prepared) : 0;
}

TEST(AllowedFormatsTest, EachIsTriedAloneAndWhatIsPinnedStays) {
  v1::JobSpec spec = Pinned();
  EXPECT_TRUE(WithAllowedFormats(spec).empty());
  AllowAll(&spec);
  EXPECT_EQ(WithAllowedFormats(spec).size(), 5u);
  spec.mutable_formats()->set_moments("bf16");
  spec.mutable_formats()->set_activation("int8");
  const std::vector<v1::JobSpec> specs = WithAllowedFormats(spec);
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[0].formats().gradient(), "bf16");
  EXPECT_EQ(specs[1].formats().reduce(), "int8");
  EXPECT_EQ(specs[2].formats().gather(), "int8");
  for (const v1::JobSpec& one : specs) {
    EXPECT_EQ(one.formats().moments(), "bf16");
    EXPECT_EQ(one.formats().activation(), "int8");
  }
  spec.mutable_formats()->mutable_allow()->clear_gradient();
  EXPECT_EQ(WithAllowedFormats(spec).size(), 2u);
  spec.mutable_layout()->set_communication_dtype("fp32");
  EXPECT_EQ(WithAllowedFormats(spec).size(), 1u) << "formats.reduce by its older name";
}

TEST(AllowedFormatsTest, NothingIsTakenThatIsNotNeeded) {
  v1::JobSpec spec = Pinned();
  const auto without = Prepare(spec, MakeBudget(int64_t{16} << 30));
  AllowAll(&spec);
  const auto with = Prepare(spec, MakeBudget(int64_t{16} << 30));
  ASSERT_TRUE(with.ok() && without.ok()) << with.status() << without.status();
  EXPECT_EQ(with->plan.program_sha256(0), without->plan.program_sha256(0));
}

// Everything fits; only the link decides.
TEST(AllowedFormatsTest, OneThatIsFasterByMoreThanATenthIsChosenThoughAllFits) {
  v1::JobSpec spec = Alone(Spec("llama", "bf16"));
  spec.mutable_layout()->set_dp(2);
  for (const int zero : {1, 3}) {
    spec.mutable_layout()->set_zero(zero);
    v1::JobSpec allowing = spec;
    allowing.mutable_formats()->mutable_allow()->set_gradient("bf16");
    if (zero == 3) allowing.mutable_formats()->mutable_allow()->set_gather("int8");
    for (const bool slow : {false, true}) {
      SCOPED_TRACE(absl::StrCat("zero ", zero, slow ? ", a slow link" : ", a fast link"));
      Budget budget = MakeBudget(0, 2);
      budget.profile.set_link_bytes_per_second(slow ? 1e5 : 1e12);
      budget.profile.set_link_latency_seconds(0);
      const auto with = Prepare(allowing, budget), without = Prepare(spec, budget);
      ASSERT_TRUE(with.ok() && without.ok()) << with.status() << without.status();
      EXPECT_EQ(with->plan.layout().gradient_format(), slow ? "bf16" : "f32");
      EXPECT_EQ(with->plan.layout().gather_format(), slow && zero == 3 ? "int8" : "");
      const double faster =
          without->plan.time().step_seconds() / with->plan.time().step_seconds() - 1;
      if (slow) {
        EXPECT_GT(faster, 0.1);
      } else {
        EXPECT_EQ(faster, 0);
      }
    }
  }
}

TEST(AllowedFormatsTest, OverASlowLinkGradientsAreSentInCodes) {
  v1::JobSpec spec = Alone(Spec("llama", "bf16"));
  spec.mutable_layout()->set_dp(2);
  spec.mutable_formats()->mutable_allow()->set_reduce("int8");
  for (const int zero : {0, 1, 2}) {
    spec.mutable_layout()->set_zero(zero);
    for (const bool slow : {false, true}) {
      Budget budget = MakeBudget(0, 2);
      budget.profile.set_link_bytes_per_second(slow ? 1e5 : 1e12);
      budget.profile.set_link_latency_seconds(0);
      const auto prepared = Prepare(spec, budget);
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      EXPECT_EQ(prepared->plan.layout().reduce_format(), slow && zero > 0 ? "int8" : "f32")
          << "zero " << zero << (slow ? ", a slow link" : ", a fast link");
    }
  }
}

TEST(AllowedFormatsTest, OneThatMakesItFitIsChosenAndAllWhereOneIsNotEnough) {
  v1::JobSpec spec = Pinned();
  const int64_t whole = BytesWith(spec);
  v1::JobSpec less = spec;
  less.mutable_formats()->set_moments("int8");
  const int64_t with_moments = BytesWith(less);
  less.mutable_formats()->set_gradient("bf16");
  less.mutable_formats()->set_activation("fp8");
  const int64_t with_all = BytesWith(less);
  ASSERT_LT(with_all, with_moments);
  ASSERT_LT(with_moments, whole);

  const Budget one = MakeBudget(with_moments), all = MakeBudget(with_all);
  EXPECT_EQ(Prepare(spec, one).status().code(), absl::StatusCode::kResourceExhausted);
  AllowAll(&spec);
  const auto fits = Prepare(spec, one);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->plan.layout().moments_format(), "int8");
  EXPECT_EQ(fits->plan.layout().activation_format(), "") << "one was enough";
  EXPECT_EQ(fits->plan.layout().gradient_format(), "f32") << "one was enough";
  const auto small = Prepare(spec, all);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->plan.layout().moments_format(), "int8");
  EXPECT_EQ(small->plan.layout().activation_format(), "fp8");
  EXPECT_EQ(small->plan.layout().gradient_format(), "bf16");
  EXPECT_EQ(small->plan.layout().gather_format(), "") << "one rank gathers nothing";
  // What a refusal asks for counts them.
  const std::string refusal =
      Refusal(spec, MakeBudget(with_all / 2), absl::StatusCode::kResourceExhausted);
  v1::JobSpec without = Pinned();
  EXPECT_NE(refusal,
            Refusal(without, MakeBudget(with_all / 2), absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace terrace
