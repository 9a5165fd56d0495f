// SPDX-License-Identifier: Apache-2.0
#include "worker/train/resume_point.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/reporting/failure.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class ResumePointTest : public testing::Test {
 protected:
  ResumePointTest() {
    state_.Add("model.embed.weight", {11, 8});
    state_.Fill(1);
    spec_.mutable_train()->set_global_batch(8);
    spec_.mutable_checkpoint()->set_directory(folder_.path());
    spec_.mutable_checkpoint()->set_resume("auto");
    for (const int64_t step : {10, 20}) Write(step);
  }

  void Write(int64_t step) {
    const CheckpointHeader header = {.step = step, .tokens = step, .spec = &spec_, .data = data_};
    EXPECT_TRUE(WriteCheckpoint(folder_.path(), header, state_.state(), {}).ok());
  }
  void Damage(const std::string& name) {
    std::filesystem::resize_file(folder_.path(name + "/model.safetensors"), 100);
  }
  std::string Refusal(int64_t epoch = 1) {
    const auto point = FindResumePoint(spec_, epoch, data_);
    EXPECT_NE(ReasonOf(point.status()), v1::REASON_INTERNAL) << "it would be started again";
    return std::string(point.status().message());
  }

  TemporaryFolder folder_;
  StateFixture state_;
  v1::JobSpec spec_;
  TokenSums data_;
};

TEST_F(ResumePointTest, TheNewestWithoutAWord) {
  const ResumePoint point = FindResumePoint(spec_, 1, data_).value();
  EXPECT_EQ(point.step, 20);
  EXPECT_TRUE(point.remarks.empty());
  spec_.mutable_checkpoint()->set_directory(folder_.path("none"));
  EXPECT_EQ(FindResumePoint(spec_, 1, data_).value().step, 0);
}

TEST_F(ResumePointTest, ADamagedOneIsPassedOverAndNamed) {
  Damage("step-00000020");
  const ResumePoint point = FindResumePoint(spec_, 1, data_).value();
  EXPECT_EQ(point.step, 10);
  EXPECT_THAT(point.remarks,
              ElementsAre(AllOf(HasSubstr("step 20 is damaged and passed over"),
                                HasSubstr("has 100 bytes"), HasSubstr("goes on from step 10"))));
  Damage("step-00000010");
  EXPECT_THAT(Refusal(), HasSubstr("every checkpoint in"));
}

TEST_F(ResumePointTest, ChangesAreToldAndThoseThatBreakAreAskedAbout) {
  spec_.mutable_train()->mutable_optimizer()->set_lr(0.5);
  EXPECT_THAT(FindResumePoint(spec_, 1, data_).value().remarks,
              ElementsAre(HasSubstr("train.optimizer.lr from 0 to 0.5")));
  spec_.mutable_train()->set_global_batch(16);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("train.global_batch from 8 to 16"),
                               HasSubstr("checkpoint.resume: always")));
  spec_.mutable_checkpoint()->set_resume("always");
  EXPECT_EQ(FindResumePoint(spec_, 1, data_).value().step, 20);
}

TEST_F(ResumePointTest, NeverRefusesWhatIsThereButNotWhatTheJobItselfWrote) {
  spec_.mutable_checkpoint()->set_resume("never");
  EXPECT_THAT(Refusal(), HasSubstr("checkpoint.resume: got never"));
  EXPECT_EQ(FindResumePoint(spec_, 2, data_).value().step, 20);
  spec_.mutable_train()->mutable_optimizer()->set_lr(0.5);
  EXPECT_THAT(Refusal(2), HasSubstr("checkpoint.resume: got never"))
      << "the first epoch may have broken before it looked";
  spec_.mutable_train()->mutable_optimizer()->set_lr(0);
  spec_.mutable_formats()->set_moments("int8");
  EXPECT_THAT(FindResumePoint(spec_, 2, data_).value().remarks,
              ElementsAre(HasSubstr("formats.moments from f32 to int8")));
  spec_.set_name("another");
  EXPECT_THAT(Refusal(2), HasSubstr("checkpoint.resume: got never"));
}

TEST_F(ResumePointTest, ChangesAreLookedForInEveryEpoch) {
  spec_.mutable_train()->set_global_batch(16);
  EXPECT_THAT(Refusal(2), HasSubstr("train.global_batch from 8 to 16"));
}

TEST_F(ResumePointTest, OtherTokensUnderTheSameNameBreak) {
  data_.train = {.tokens = 1000, .hash = 0xabc};
  EXPECT_EQ(FindResumePoint(spec_, 1, data_).value().step, 20) << "an old one does not say";
  Write(30);
  EXPECT_TRUE(FindResumePoint(spec_, 1, data_).value().remarks.empty());
  data_.train.hash = 0xabd;
  EXPECT_THAT(Refusal(), HasSubstr("the contents of data.train from 1000 tokens of checksum "
                                   "0000000000000abc to 1000 tokens of checksum 0000000000000abd"));
  data_.train = {.tokens = 1001, .hash = 0xabc};
  EXPECT_THAT(Refusal(), HasSubstr("to 1001 tokens of checksum"));
  spec_.mutable_checkpoint()->set_resume("always");
  EXPECT_THAT(FindResumePoint(spec_, 1, data_).value().remarks,
              ElementsAre(HasSubstr("the contents of data.train")));
}

TEST_F(ResumePointTest, TheSameTokensCutElsewhereIntoSourcesBreak) {
  data_ = {.train = {.tokens = 50, .hash = 0xabc}, .validation = {}, .sources = {30, 20}};
  EXPECT_EQ(FindResumePoint(spec_, 1, data_).value().step, 20) << "an old one does not say";
  Write(30);
  EXPECT_TRUE(FindResumePoint(spec_, 1, data_).value().remarks.empty());
  data_.sources = {20, 30};
  EXPECT_THAT(Refusal(),
              HasSubstr("the tokens of each source of data.train from [30, 20] to [20, 30]"));
  data_.train.hash = 0xabd;
  EXPECT_THAT(Refusal(), testing::Not(HasSubstr("each source"))) << "once is enough";
}

}  // namespace
}  // namespace terrace
