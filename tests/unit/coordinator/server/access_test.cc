// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/access.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/v1/backup.pb.h"
#include "proto/v1/drain.pb.h"
#include "proto/v1/evaluation.pb.h"
#include "proto/v1/hold.pb.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/list.pb.h"
#include "proto/v1/queue.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {
namespace {

using testing::HasSubstr;

Caller With(Role role, const std::string& name) {
  return {
      .shown = Caller::Shown::kCertificate, .identity = {{{role, name}}}, .peer = "ipv4:1.2.3.4:5"};
}
const Caller kNobodyAsked = {.peer = "ipv4:127.0.0.1:5"};

TEST(AccessTest, EachCallOfEachServiceHasARowAndNoRowIsForNothing) {
  // So that their files are linked in.
  v1::BackupChunk().GetTypeName();
  v1::Drain().GetTypeName();
  v1::Evaluation().GetTypeName();
  v1::JobSummary().GetTypeName();
  v1::SubmitHeldRequest().GetTypeName();
  v1::SubmitAfterRequest().GetTypeName();
  v1::WorkerMessage().GetTypeName();
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  std::set<std::string> calls;
  for (const auto& entry : std::filesystem::directory_iterator(TERRACE_PROTO_FOLDER)) {
    if (entry.path().extension() != ".proto") continue;
    const auto* file = pool->FindFileByName("proto/v1/" + entry.path().filename().string());
    if (file == nullptr) continue;  // nothing that is served includes it
    for (int i = 0; i < file->service_count(); ++i) {
      const auto* service = file->service(i);
      for (int j = 0; j < service->method_count(); ++j)
        calls.insert(absl::StrCat("/", service->full_name(), "/", service->method(j)->name()));
    }
  }
  EXPECT_GE(calls.size(), 17u);
  for (const std::string& call : calls) EXPECT_NE(RuleOfPath(call), nullptr) << call;
  for (const CallRule& rule : CallRules()) {
    const std::string call =
        absl::StrCat("/", std::string(rule.service), "/", std::string(rule.method));
    EXPECT_EQ(RuleOfPath(call), &rule);
    if (rule.service == "grpc.health.v1.Health") continue;
    EXPECT_TRUE(calls.contains(call)) << call;
    EXPECT_EQ(&RuleOf(rule.method), &rule) << "methods of ours have different names";
  }
}

TEST(AccessTest, PathsOfNothingHaveNoRow) {
  for (const char* path : {"", "/", "/terrace.v1.JobService/", "terrace.v1.JobService/Get",
                           "/terrace.v1.JobService/Gett", "/terrace.v1.JobService/get",
                           "/terrace.v1.JobService/Get/", "/terrace.v1.HoldService/Get",
                           "//terrace.v1.JobService/Get", "/terrace.v1.JobServiceX/Get"}) {
    EXPECT_EQ(RuleOfPath(path), nullptr) << path;
  }
}

TEST(AccessTest, AnOperatorMayWhatASubmitterMayAndASubmitterWhatAViewerMay) {
  for (const CallRule& rule : CallRules()) {
    EXPECT_LE(rule.For(Role::kViewer), rule.For(Role::kSubmitter)) << rule.method;
    EXPECT_LE(rule.For(Role::kSubmitter), rule.For(Role::kOperator)) << rule.method;
    if (rule.changes) {
      EXPECT_EQ(rule.For(Role::kViewer), May::kNo) << rule.method;
    }
  }
}

TEST(AccessTest, OnlyWorkersConnectAsWorkersAndDoNothingElseButDrainThemselves) {
  for (const CallRule& rule : CallRules()) {
    const bool workers = rule.method == "Connect" || rule.service == "terrace.v1.DrainService" ||
                         rule.service == "grpc.health.v1.Health";
    EXPECT_EQ(rule.For(Role::kWorker) != May::kNo, workers) << rule.method;
  }
  for (const Role role : {Role::kViewer, Role::kSubmitter, Role::kOperator})
    EXPECT_EQ(RuleOf("Connect").For(role), May::kNo);
}

TEST(AccessTest, SubmittersChangeTheirOwnJobs) {
  const CallRule& cancel = RuleOf("Cancel");
  EXPECT_TRUE(CheckJobCall(cancel, With(Role::kSubmitter, "alice"), "a-1", "alice").ok());
  EXPECT_TRUE(CheckJobCall(cancel, With(Role::kOperator, "bob"), "a-1", "alice").ok());
  EXPECT_TRUE(CheckJobCall(cancel, kNobodyAsked, "a-1", "alice").ok());
  const absl::Status other = CheckJobCall(cancel, With(Role::kSubmitter, "carol"), "a-1", "alice");
  EXPECT_EQ(other.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(
      other.message(),
      "submitter carol may not Cancel job a-1, which alice submitted: alice or an operator may");
  EXPECT_FALSE(CheckJobCall(cancel, With(Role::kSubmitter, ""), "a-1", "").ok());
  EXPECT_FALSE(CheckJobCall(cancel, With(Role::kSubmitter, "alice"), "a-1", "").ok());
  EXPECT_FALSE(CheckJobCall(cancel, With(Role::kViewer, "alice"), "a-1", "alice").ok());
  EXPECT_FALSE(CheckJobCall(cancel, With(Role::kWorker, "alice"), "a-1", "alice").ok())
      << "a worker of a person's name is not that person";
}

TEST(AccessTest, AWorkerIsItselfAlone) {
  const CallRule& connect = RuleOf("Connect");
  EXPECT_TRUE(CheckNodeCall(connect, With(Role::kWorker, "node-1"), "node-1").ok());
  EXPECT_TRUE(CheckNodeCall(connect, With(Role::kWorker, "*"), "node-1").ok());
  EXPECT_EQ(CheckNodeCall(connect, With(Role::kWorker, "node-2"), "node-1").message(),
            "worker node-2 may not Connect worker node-1: worker node-1 itself may");
  EXPECT_EQ(CheckNodeCall(connect, With(Role::kSubmitter, "node-1"), "node-1").message(),
            "submitter node-1 may not Connect: a worker may");
  const CallRule& drain = RuleOf("Drain");
  EXPECT_TRUE(CheckNodeCall(drain, With(Role::kOperator, "bob"), "node-1").ok());
  EXPECT_TRUE(CheckNodeCall(drain, With(Role::kWorker, "node-1"), "node-1").ok());
  EXPECT_THAT(std::string(CheckNodeCall(drain, With(Role::kWorker, "node-2"), "node-1").message()),
              HasSubstr("worker node-1 itself or an operator may"));
  EXPECT_FALSE(CheckNodeCall(drain, With(Role::kSubmitter, "alice"), "node-1").ok());
}

TEST(AccessTest, OfSeveralGrantsTheOneThatMayMostCounts) {
  Caller both = With(Role::kViewer, "eve");
  both.identity.grants.push_back({Role::kWorker, "node-1"});
  EXPECT_TRUE(CheckCall(RuleOf("Get"), both).ok());
  EXPECT_TRUE(CheckNodeCall(RuleOf("Connect"), both, "node-1").ok());
  EXPECT_FALSE(CheckCall(RuleOf("Submit"), both).ok());
}

}  // namespace
}  // namespace terrace
