// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

// Jobs that come together, and where their checkpoints go.
namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SubmitTest : public ReconcilerTest {
 protected:
  static SubmittedJob Job(const std::string& name, const std::string& directory = "",
                          const std::string& place = "") {
    SubmittedJob job{
        .spec = Spec(name), .planned = PrepareFake(Spec(name), {.ranks = 1}), .as = {}};
    job.spec.mutable_checkpoint()->set_directory(directory);
    job.as.place = place;
    return job;
  }
  std::vector<absl::StatusOr<std::string>> SubmitAll(const std::vector<SubmittedJob>& jobs) {
    return reconciler_->SubmitAll(jobs);
  }
  // Each id, or what the refusal says.
  static std::vector<std::string> Texts(const std::vector<absl::StatusOr<std::string>>& results) {
    std::vector<std::string> texts;
    for (const auto& result : results)
      texts.push_back(result.ok() ? *result : std::string(result.status().message()));
    return texts;
  }
};

TEST_F(SubmitTest, JobsThatComeTogetherAreStoredByOneWrite) {
  const auto ids = SubmitAll({Job("a"), Job("b"), Job("c")});
  EXPECT_THAT(Texts(ids), ElementsAre("a-1", "b-2", "c-3"));
  EXPECT_EQ(store_.commits, 1);
  StartCoordinator();
  for (const char* id : {"a-1", "b-2", "c-3"}) EXPECT_EQ(JobNow(id).state(), v1::QUEUED) << id;
  EXPECT_THAT(store_.Events("b-2", 0, 10)->size(), 1u);
  EXPECT_EQ(store_.GetProgram("program of stage 0").status(), absl::OkStatus());
  EXPECT_EQ(Submit(Spec("d")), "d-4");
}

TEST_F(SubmitTest, OneThatIsRefusedHoldsUpNoOther) {
  SubmittedJob after_nobody = Job("b");
  after_nobody.as.after.Add()->set_job("nobody-7");
  const auto ids = SubmitAll({Job("a"), after_nobody, Job("c")});
  EXPECT_THAT(Texts(ids), ElementsAre("a-1", HasSubstr("nobody-7"), "c-2"));
  EXPECT_EQ(store_.commits, 1);
}

TEST_F(SubmitTest, OfTwoThatComeTogetherForOneDirectoryTheSecondIsRefused) {
  const auto ids = SubmitAll({Job("a", "/run/x"), Job("b", "/run/x/"), Job("c", "/link/x", "1:2:x"),
                              Job("d", "/run/y", "1:2:x"), Job("e", "/run/z")});
  EXPECT_THAT(
      Texts(ids),
      ElementsAre("a-1", AllOf(HasSubstr("got /run/x/"), HasSubstr("job a-1")), "c-2",
                  AllOf(HasSubstr("got /run/y, which is /link/x"), HasSubstr("job c-2")), "e-3"));
}

TEST_F(SubmitTest, WhatCannotBeStoredIsAcceptedOfNobody) {
  store_.full = true;
  const auto ids = SubmitAll({Job("a"), Job("b")});
  EXPECT_THAT(Texts(ids), ElementsAre(HasSubstr("disk is full"), HasSubstr("disk is full")));
  EXPECT_EQ(reconciler_->Get("a-1").status().code(), absl::StatusCode::kNotFound);
  store_.full = false;
  EXPECT_THAT(Texts(SubmitAll({Job("c")})), ElementsAre("c-1"));
}

TEST_F(SubmitTest, AHeldJobIsStoredAsOne) {
  SubmittedJob held = Job("a");
  held.as.held = true;
  EXPECT_THAT(Texts(SubmitAll({held})), ElementsAre("a-1"));
  EXPECT_EQ(store_.GetJob("a-1")->state(), v1::PAUSED);
}

TEST_F(SubmitTest, PlacesOfDirectoriesAreAskedForAfterARestartAndAfterAStart) {
  AddWorker("w0", 1);
  SubmitAll({Job("a", "/run/a", "1:2:a")});
  EXPECT_THAT(reconciler_->DirectoriesToPlace(), IsEmpty()) << "who submitted it has told";
  Settle();
  ASSERT_EQ(JobNow("a-1").state(), v1::STARTING);
  EXPECT_THAT(reconciler_->DirectoriesToPlace(), ElementsAre("/run/a")) << "it may be there now";
  reconciler_->NotePlace("/run/a", "1:3:");
  EXPECT_THAT(reconciler_->DirectoriesToPlace(), IsEmpty());
  EXPECT_TRUE(absl::IsFailedPrecondition(reconciler_->CheckDirectoryIsFree("/link/a", "1:3:")));
  EXPECT_TRUE(reconciler_->CheckDirectoryIsFree("/link/a", "1:2:a").ok());
  StartCoordinator();
  EXPECT_THAT(reconciler_->DirectoriesToPlace(), ElementsAre("/run/a"));
}

TEST_F(SubmitTest, ADirectoryThatIsThereByAnotherNameIsLookedAtAgain) {
  SubmitAll({Job("a", "/run/a", "1:2:")});
  EXPECT_FALSE(reconciler_->DoubtPlace("/run/a/", "1:2:")) << "it is that name";
  EXPECT_FALSE(reconciler_->DoubtPlace("/run/b", "1:9:")) << "nobody is there";
  EXPECT_TRUE(reconciler_->DoubtPlace("/link/a", "1:2:"));
  EXPECT_THAT(reconciler_->DirectoriesToPlace(), ElementsAre("/run/a"));
}

}  // namespace
}  // namespace terrace
