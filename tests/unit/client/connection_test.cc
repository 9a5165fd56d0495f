// What a person is told when the coordinator is older than the client.
//
// SPDX-License-Identifier: Apache-2.0
#include "client/connection.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/v1/job.grpc.pb.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

// Lists jobs and knows no other call, neither of its own service nor of services that came later.
class OldCoordinator final : public v1::JobService::Service {
 public:
  OldCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  std::unique_ptr<Connection> Dial() const {
    GlobalOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", port_);
    auto connection = Connection::Open(options);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return *std::move(connection);
  }

  grpc::Status Cancel(grpc::ServerContext* /*context*/, const v1::CancelJobRequest* /*request*/,
                      v1::CancelJobResponse* /*response*/) override {
    return grpc::Status::OK;
  }
  // As a proxy or another server does, through gRPC's words for its answer.
  grpc::Status Get(grpc::ServerContext* /*context*/, const v1::GetJobRequest* /*request*/,
                   v1::GetJobResponse* /*response*/) override {
    return {grpc::StatusCode::UNIMPLEMENTED, "Received http2 header with status: 404"};
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

struct Call {
  std::string name;
  absl::Status status;
};

TEST(ConnectionTest, EveryCallThatAnOlderCoordinatorDoesNotKnowSaysSo) {
  const OldCoordinator coordinator;
  const std::unique_ptr<Connection> connection = coordinator.Dial();
  EXPECT_EQ(connection->Cancel("job", false).status(), absl::OkStatus());
  const std::vector<Call> calls = {
      {"Drain", connection->Drain({}).status()},
      {"Undrain", connection->Undrain("node").status()},
      {"ListDrains", connection->ListDrains().status()},
      {"ListPage", connection->ListPage({}).status()},
      {"GetMemory", connection->GetMemory("job").status()},
      {"Submit", connection->Submit({}).status()},
      {"Watch", connection->Watch({}, [](const v1::JobEvent&) { return true; })},
      {"Logs", connection->Logs({}, [](const v1::LogsChunk&) {})},
      {"Evaluate", connection->Evaluate({}, [](const v1::EvaluationProgress&) {}).status()}};
  for (const Call& call : calls) {
    EXPECT_EQ(call.status.code(), absl::StatusCode::kFailedPrecondition) << call.name;
    const std::string words(call.status.message());
    EXPECT_THAT(words, HasSubstr(absl::StrCat("does not know the call ", call.name,
                                              ": it is of an "
                                              "older version than this terrace ")));
    EXPECT_THAT(words, HasSubstr("upgrade it to that version"));
    EXPECT_THAT(words, call.name == "Evaluate"
                           ? testing::Matcher<std::string>(HasSubstr("--cluster"))
                           : Not(HasSubstr("--cluster")));
  }
}

TEST(ConnectionTest, WhoAnswersAndIsNoCoordinatorIsNotTakenForAnOldOne) {
  const OldCoordinator other;
  const absl::Status status = other.Dial()->Get("job").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  const std::string words(status.message());
  EXPECT_THAT(words, HasSubstr("something else does (Received http2 header with status: 404)"));
  EXPECT_THAT(words, HasSubstr("no_proxy"));
  EXPECT_THAT(words, Not(HasSubstr("older version")));
}

}  // namespace
}  // namespace terrace
