// SPDX-License-Identifier: Apache-2.0
#include "proto/spec_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

v1::JobSpec Spec() {
  v1::JobSpec spec;
  spec.mutable_model()->set_config_json(R"({"n_embd": 32, "torch_dtype": "float32"})");
  spec.mutable_data()->add_train("/data/books.txt");
  spec.mutable_data()->set_sequence_length(64);
  spec.mutable_train()->set_global_batch(8);
  spec.mutable_train()->mutable_optimizer()->set_lr(1e-3);
  return spec;
}

TEST(SpecChangesTest, WhatDoesNotShowInTheNumbersIsNoChange) {
  v1::JobSpec now = Spec();
  now.set_name("another");
  now.mutable_layout()->set_tp(4);
  now.mutable_model()->set_config_json(R"({"torch_dtype": "bfloat16", "n_embd": 32})");
  EXPECT_TRUE(SpecChanges(Spec(), now).empty());
}

TEST(SpecChangesTest, FilesThatMovedAreToldAndOthersBreak) {
  v1::JobSpec now = Spec();
  now.mutable_data()->set_train(0, "/elsewhere/books.txt");
  EXPECT_EQ(DescribeChanges(SpecChanges(Spec(), now), false),
            "data.train from [/data/books.txt] to [/elsewhere/books.txt]");
  EXPECT_EQ(DescribeChanges(SpecChanges(Spec(), now), true), "");
  v1::JobSpec c4 = Spec(), pile = Spec();
  c4.mutable_data()->set_train(0, "/data/c4/");
  pile.mutable_data()->set_train(0, "/data/pile/");
  EXPECT_EQ(DescribeChanges(SpecChanges(c4, pile), true),
            "data.train from [/data/c4/] to [/data/pile/]");
}

// What the loss counts is part of the data; checkpoints from before the key hold nothing.
TEST(SpecChangesTest, OtherAnswersAndAnotherTemplateBreak) {
  v1::JobSpec now = Spec();
  now.mutable_data()->set_loss_on("answers");
  EXPECT_TRUE(SpecChanges(Spec(), now).empty());
  now.mutable_data()->set_loss_on("all");
  now.mutable_data()->set_chat_template("/data/chat.jinja");
  EXPECT_EQ(
      DescribeChanges(SpecChanges(Spec(), now), true),
      "data.chat_template from nothing to /data/chat.jinja, data.loss_on from answers to all");
}

v1::JobSpec MixtureOf(double weight, double other) {
  v1::JobSpec spec = Spec();
  v1::MixtureSource* source = spec.mutable_data()->add_mixture();
  source->set_weight(weight);
  source->set_files(2);
  spec.mutable_data()->add_mixture()->set_weight(other);
  return spec;
}

TEST(SpecChangesTest, OtherSharesOfAMixtureBreak) {
  EXPECT_TRUE(SpecChanges(MixtureOf(0.5, 1), MixtureOf(0.5, 1)).empty());
  EXPECT_EQ(DescribeChanges(SpecChanges(MixtureOf(0.5, 1), MixtureOf(2, 1)), true),
            "data.train's weights from [0.5 of 2 files, 1] to [2 of 2 files, 1]");
}

TEST(SpecChangesTest, WeightsOfTheSameSharesAreNoChange) {
  EXPECT_TRUE(SpecChanges(MixtureOf(3, 1), MixtureOf(0.75, 0.25)).empty());
  EXPECT_TRUE(SpecChanges(MixtureOf(7, 3), MixtureOf(0.7, 0.3)).empty());
  EXPECT_FALSE(SpecChanges(MixtureOf(3, 1), MixtureOf(0.75, 0.2501)).empty());
}

TEST(SpecChangesTest, AnotherScheduleIsToldAndBreaksNothing) {
  v1::JobSpec now = Spec();
  now.mutable_train()->mutable_optimizer()->set_lr(2e-3);
  const auto changes = SpecChanges(Spec(), now);
  EXPECT_EQ(DescribeChanges(changes, false), "train.optimizer.lr from 0.001 to 0.002");
  EXPECT_EQ(DescribeChanges(changes, true), "");
}

// Checkpoints from before these keys existed hold their zeros.
TEST(SpecChangesTest, NumbersOfASchedulesFormThatNobodyGaveAreNoChange) {
  v1::JobSpec now = Spec();
  v1::ScheduleSpec* schedule = now.mutable_train()->mutable_schedule();
  schedule->set_power(1);
  schedule->set_cycles(1);
  schedule->set_decay("linear");
  EXPECT_TRUE(SpecChanges(Spec(), now).empty());
  schedule->set_cycles(4);
  now.mutable_train()->mutable_optimizer()->set_momentum(0.9);
  EXPECT_EQ(DescribeChanges(SpecChanges(Spec(), now), false),
            "train.optimizer.momentum from 0 to 0.9, train.schedule.cycles from 1 to 4");
}

TEST(SpecChangesTest, AnotherPrecisionOfALayerIsTold) {
  v1::JobSpec now = Spec();
  v1::PrecisionRule* rule = now.mutable_train()->add_precision_rules();
  rule->set_where("first 1");
  rule->set_precision("bf16");
  EXPECT_EQ(DescribeChanges(SpecChanges(Spec(), now), false),
            "train.precision.layers from [] to [first 1: bf16]");
}

TEST(SpecChangesTest, FormatsThatWereChosenAreToldAsThoseThatWereAskedFor) {
  v1::JobSpec open = Spec();
  open.mutable_formats()->mutable_allow()->set_moments("int8");
  v1::Layout layout;
  layout.set_gradient_format("f32");
  layout.set_reduce_format("f32");
  v1::JobSpec then = open, now = open;
  PinFormats(layout, &then);
  EXPECT_TRUE(SpecChanges(open, then).empty()) << "nothing was chosen";
  layout.set_moments_format("int8");
  layout.set_reduce_format("bf16");
  PinFormats(layout, &now);
  EXPECT_EQ(DescribeChanges(SpecChanges(then, now), false),
            "formats.reduce from formats.gradient to bf16, formats.moments from f32 to int8");
  EXPECT_EQ(DescribeChanges(SpecChanges(then, now), true), "");
}

TEST(SpecChangesTest, AnotherModelOrOtherSamplesAreNoContinuation) {
  v1::JobSpec now = Spec();
  now.mutable_model()->set_config_json(R"({"n_embd": 64, "rope_theta": 1e4})");
  now.mutable_data()->set_train(0, "/data/papers.txt");
  now.mutable_train()->set_global_batch(16);
  EXPECT_EQ(DescribeChanges(SpecChanges(Spec(), now), true),
            "model.config.n_embd from 32 to 64, model.config.rope_theta from nothing to 10000.0, "
            "data.train from [/data/books.txt] to [/data/papers.txt], "
            "train.global_batch from 8 to 16");
}

// Where it is of other shapes `always` does not help.
TEST(SpecChangesTest, WhatGoesOnAllTheSameIsSaidForAnotherModelToo) {
  const auto way_out = [](const v1::JobSpec& now) {
    return WhyNoContinuation("/ck/step-00000002", SpecChanges(Spec(), now), now);
  };
  v1::JobSpec now = Spec();
  now.mutable_train()->set_global_batch(16);
  EXPECT_TRUE(way_out(now).ends_with("go on from there all the same")) << way_out(now);
  now.mutable_model()->set_config_json(R"({"n_embd": 64})");
  EXPECT_TRUE(way_out(now).ends_with("all the same, where all tensors keep their shapes"));
}

}  // namespace
}  // namespace terrace
