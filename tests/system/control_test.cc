// Coordinator and workers as processes that are killed at bad moments; ranks are fake.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "proto/v1/list.grpc.pb.h"
#include "tests/system/control_cluster.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

class ControlTest : public testing::Test {
 protected:
  void SetUp() override { cluster_.StartCoordinator(); }

  // A running job; its ranks are at some step.
  std::string RunningJob(const std::string& words, int devices = 1) {
    const std::string id = cluster_.Submit("job", words, devices);
    cluster_.WaitFor(id, [](const v1::Job& job) { return job.progress().step() > 3; });
    return id;
  }
  std::string LogOf(const std::string& process) {
    std::ifstream file(absl::StrCat(cluster_.folder(), "/", process, ".log"));
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }
  grpc::Status Cancel(const std::string& id, bool force) {
    v1::CancelJobRequest request;
    request.set_id(id);
    request.set_force(force);
    v1::CancelJobResponse response;
    grpc::ClientContext context;
    return cluster_.stub().Cancel(&context, request, &response);
  }
  // A second coordinator beside the running one: its exit code.
  int RunCoordinator(const std::vector<std::string>& options) {
    std::vector<std::string> command = {absl::StrCat(TERRACE_BIN_FOLDER, "/terrace-coordinator"),
                                        "serve"};
    command.insert(command.end(), options.begin(), options.end());
    return ChildProcess(command, cluster_.folder() + "/second.log").Wait();
  }

  ControlCluster cluster_;
};

TEST_F(ControlTest, AJobRunsToItsEndAndCanBeWatchedFromTheStart) {
  cluster_.StartWorker("w0", 2);
  const std::string id = cluster_.Submit("job", "steps=5 step_ms=1 rendezvous=1", 2);
  EXPECT_EQ(id, "job-1");
  const auto events = cluster_.WatchToEnd(id);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().state().state(), v1::SUCCEEDED);
  int64_t steps = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].sequence(), i + 1);
    if (!events[i].has_step()) continue;
    EXPECT_EQ(events[i].step().step(), ++steps);
  }
  EXPECT_EQ(steps, 5) << "no event is lost, none comes twice";
  EXPECT_EQ(cluster_.WatchToEnd(id, events.back().sequence() - 1).size(), 1) << "replay";
  const v1::Job job = cluster_.Get(id);
  EXPECT_EQ(job.progress().step(), 5);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_GT(job.finished_unix_ms(), 0);
}

TEST_F(ControlTest, LogsOfARankComeFromItsWorker) {
  cluster_.StartWorker("w0", 1);
  const std::string id = cluster_.Submit("job", "steps=3 step_ms=1");
  cluster_.WaitForState(id, v1::SUCCEEDED);
  v1::LogsRequest request;
  request.set_id(id);
  request.set_tail_lines(2);
  grpc::ClientContext context;
  auto reader = cluster_.stub().Logs(&context, request);
  std::string text;
  for (v1::LogsChunk chunk; reader->Read(&chunk);) text += chunk.text();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, "step 2\nstep 3\n");
}

TEST_F(ControlTest, AKilledCoordinatorComesBackAndTrainingNeverStopped) {
  cluster_.StartWorker("w0", 2);
  const std::string id = RunningJob("steps=1500 step_ms=2", 2);
  const std::string waiting = cluster_.Submit("waits", "steps=1", 2);
  const pid_t rank = cluster_.RankPid("w0", id, 1, 0);
  cluster_.coordinator().End(SIGKILL);
  usleep(300'000);
  EXPECT_TRUE(IsAlive(rank));
  cluster_.StartCoordinator();
  EXPECT_EQ(cluster_.Get(id).state(), v1::RUNNING);
  const v1::Job job = cluster_.WaitForState(id, v1::SUCCEEDED);
  EXPECT_EQ(job.epoch(), 1);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_EQ(job.progress().step(), 1500);
  cluster_.WaitForState(waiting, v1::SUCCEEDED);
}

TEST_F(ControlTest, AKilledDaemonComesBackAndFindsItsRanks) {
  cluster_.StartWorker("w0", 2);
  const std::string id = RunningJob("steps=1000 step_ms=2", 2);
  const pid_t rank = cluster_.RankPid("w0", id, 1, 1);
  cluster_.worker("w0").End(SIGKILL);
  EXPECT_TRUE(IsAlive(rank));
  cluster_.StartWorker("w0", 2);
  const v1::Job job = cluster_.WaitForState(id, v1::SUCCEEDED);
  EXPECT_EQ(job.epoch(), 1);
  EXPECT_EQ(job.restarts(), 0);
}

TEST_F(ControlTest, AKilledRankRestartsTheGang) {
  cluster_.StartWorker("w0", 2);
  const std::string id = RunningJob("steps=300 step_ms=2", 2);
  const pid_t survivor = cluster_.RankPid("w0", id, 1, 0);
  kill(cluster_.RankPid("w0", id, 1, 1), SIGKILL);
  const v1::Job job = cluster_.WaitForState(id, v1::SUCCEEDED);
  EXPECT_EQ(job.epoch(), 2);
  EXPECT_EQ(job.restarts(), 1);
  EXPECT_FALSE(IsAlive(survivor));
}

TEST_F(ControlTest, ALostWorkerMovesItsJobToAnother) {
  cluster_.StartWorker("w0", 1);
  const std::string id = RunningJob("steps=2000 step_ms=2");
  const pid_t old_rank = cluster_.RankPid("w0", id, 1, 0);
  cluster_.StartWorker("w1", 1);
  cluster_.worker("w0").End(SIGKILL);
  const v1::Job job = cluster_.WaitFor(id, [](const v1::Job& now) { return now.epoch() == 2; });
  EXPECT_EQ(job.placement().ranks(0).worker(), "w1");
  // The old worker returns; its rank of the old epoch must not go on beside the new one.
  cluster_.StartWorker("w0", 1);
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive(old_rank); }));
}

TEST_F(ControlTest, ARankThatKeepsDyingEndsTheJobAfterItsRestarts) {
  cluster_.StartWorker("w0", 1);
  const std::string id = cluster_.Submit("job", "steps=100 step_ms=1 crash_at=2");
  const v1::Job job = cluster_.WaitForState(id, v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_RESTARTS_EXHAUSTED);
  EXPECT_EQ(job.restarts(), 2);
  EXPECT_THAT(job.message(), HasSubstr("signal 9"));
}

TEST_F(ControlTest, WrongDataFailsTheJobAtOnceWithTheRanksSentence) {
  cluster_.StartWorker("w0", 1);
  const std::string id =
      cluster_.Submit("job", absl::StrCat("reason=", int{v1::REASON_DATA_ERROR}));
  const v1::Job job = cluster_.WaitForState(id, v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_DATA_ERROR);
  EXPECT_THAT(job.message(), HasSubstr("told to fail"));
  EXPECT_EQ(job.restarts(), 0);
}

TEST_F(ControlTest, ASecondJobWaitsForTheFirstAndSaysSo) {
  cluster_.StartWorker("w0", 1);
  const std::string first = RunningJob("steps=100000 step_ms=2");
  const std::string second = cluster_.Submit("second", "steps=2 step_ms=1");
  const v1::Job job = cluster_.WaitForState(second, v1::QUEUED);
  EXPECT_EQ(job.reason(), v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_THAT(job.message(), HasSubstr("0 of the 1 devices"));
  EXPECT_TRUE(Cancel(first, /*force=*/false).ok());
  EXPECT_EQ(cluster_.WaitForState(first, v1::CANCELLED).message(),
            "cancelled after a last checkpoint");
  cluster_.WaitForState(second, v1::SUCCEEDED);
  EXPECT_EQ(Cancel(first, true).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ControlTest, ForceKillsTheRanksAtOnce) {
  cluster_.StartWorker("w0", 1);
  const std::string id = RunningJob("steps=100000 step_ms=2");
  const pid_t rank = cluster_.RankPid("w0", id, 1, 0);
  EXPECT_TRUE(Cancel(id, /*force=*/true).ok());
  EXPECT_EQ(cluster_.Get(id).state(), v1::CANCELLED);
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive(rank); }));
}

TEST_F(ControlTest, ACoordinatorKilledRightAfterAPauseStillPausesTheJobAndKnowsOfIt) {
  cluster_.StartWorker("w0", 2);
  const std::string id = RunningJob("steps=1500 step_ms=2", 2);
  const pid_t rank = cluster_.RankPid("w0", id, 1, 0);
  v1::PauseJobRequest pause;
  pause.set_id(id);
  v1::PauseJobResponse paused;
  grpc::ClientContext pause_context;
  ASSERT_TRUE(cluster_.stub().Pause(&pause_context, pause, &paused).ok());
  EXPECT_TRUE(paused.job().pause_requested()) << "answered before its ranks have stopped";
  cluster_.coordinator().End(SIGKILL);
  cluster_.StartCoordinator();
  const v1::Job job = cluster_.WaitForState(id, v1::PAUSED);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_LT(job.progress().step(), 1500);
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive(rank); }));
  cluster_.worker("w0").End(SIGKILL);
  cluster_.coordinator().End(SIGKILL);
  cluster_.StartCoordinator();
  cluster_.StartWorker("w0", 2);
  EXPECT_EQ(cluster_.Get(id).state(), v1::PAUSED);
  v1::ResumeJobRequest resume;
  resume.set_id(id);
  v1::ResumeJobResponse resumed;
  grpc::ClientContext resume_context;
  ASSERT_TRUE(cluster_.stub().Resume(&resume_context, resume, &resumed).ok());
  EXPECT_EQ(cluster_.WaitForState(id, v1::SUCCEEDED).epoch(), 2);
}

TEST_F(ControlTest, AnInvalidSpecIsRefusedAndNothingIsStored) {
  v1::SubmitRequest request;
  request.set_yaml("name: x\nmodle: {}\n");
  v1::SubmitResponse response;
  grpc::ClientContext context;
  const grpc::Status status = cluster_.stub().Submit(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("model"));
  v1::ListJobsRequest list;
  list.set_all(true);
  v1::ListJobsResponse jobs;
  grpc::ClientContext list_context;
  EXPECT_TRUE(cluster_.stub().List(&list_context, list, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
}

TEST_F(ControlTest, PagesThatCannotBeAreRefused) {
  const auto lists = v1::ListService::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", cluster_.port()), grpc::InsecureChannelCredentials()));
  const auto refusal = [&](const std::function<void(v1::ListPageRequest*)>& change) {
    v1::ListPageRequest request;
    change(&request);
    v1::ListPageResponse page;
    grpc::ClientContext context;
    const grpc::Status status = lists->ListPage(&context, request, &page);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refusal([](auto* request) { request->set_limit(1001); }),
              HasSubstr("limit: got 1001, must be from 1 to 1000"));
  EXPECT_THAT(refusal([](auto* request) { request->set_limit(-1); }), HasSubstr("limit: got -1"));
  EXPECT_THAT(refusal([](auto* request) { request->set_before(-7); }), HasSubstr("before: got -7"));
  EXPECT_THAT(refusal([](auto* request) { request->add_states(static_cast<v1::JobState>(77)); }),
              HasSubstr("states: got 77"));
}

TEST_F(ControlTest, AnUnreadableModelConfigNamesTheKeyAndThePath) {
  std::string yaml = cluster_.Spec("x", "", 1);
  yaml.replace(yaml.find("{model_type"), yaml.find("0.02}") + 5 - yaml.find("{model_type"),
               "absent/config.json");
  v1::SubmitRequest request;
  request.set_yaml(yaml);
  request.set_base_directory(cluster_.folder());
  v1::SubmitResponse response;
  grpc::ClientContext context;
  const grpc::Status status = cluster_.stub().Submit(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("model.config"));
  EXPECT_THAT(status.error_message(), HasSubstr("absent/config.json"));
}

TEST_F(ControlTest, AJobThatDoesNotFitIsRefusedBeforeItStarts) {
  std::string yaml = cluster_.Spec("x", "", 1);
  yaml.replace(yaml.find("resources: {"), 12, "resources: {device_memory: 1MiB, ");
  v1::SubmitRequest request;
  request.set_yaml(yaml);
  v1::SubmitResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(cluster_.stub().Submit(&context, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ControlTest, ExplainPrintsTheStoredProgram) {
  cluster_.StartWorker("w0", 1);
  const std::string id = RunningJob("steps=100000 step_ms=2");
  v1::ExplainRequest request;
  request.set_id(id);
  v1::ExplainResponse response;
  grpc::ClientContext context;
  const grpc::Status status = cluster_.stub().Explain(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.text(), HasSubstr("matmul"));
  EXPECT_EQ(response.programs_size(), 1);
}

TEST_F(ControlTest, JobsThatShareAPlanAreListedByTheirOwnNames) {
  cluster_.StartWorker("w0", 1);
  std::string sha256;
  for (const std::string name : {"first", "second"}) {
    const std::string id = cluster_.Submit(name, "steps=100000 step_ms=2");
    const v1::Job job = cluster_.WaitFor(
        id, [](const v1::Job& planned) { return planned.plan().program_sha256_size() > 0; });
    EXPECT_THAT(sha256, testing::AnyOf("", job.plan().program_sha256(0)));
    sha256 = job.plan().program_sha256(0);
    v1::ExplainRequest request;
    request.set_id(id);
    v1::ExplainResponse response;
    grpc::ClientContext context;
    const grpc::Status status = cluster_.stub().Explain(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(response.text(), HasSubstr("program " + name + "  stage 0"));
  }
}

// ---- starting and stopping --------------------------------------------------------------------

TEST_F(ControlTest, SigtermEndsBothCleanlyAndRanksLiveOn) {
  cluster_.StartWorker("w0", 1);
  const std::string id = RunningJob("steps=100000 step_ms=2");
  const pid_t rank = cluster_.RankPid("w0", id, 1, 0);
  EXPECT_EQ(cluster_.worker("w0").End(SIGTERM), 0);
  EXPECT_EQ(cluster_.coordinator().End(SIGTERM), 0);
  EXPECT_TRUE(IsAlive(rank));
}

TEST_F(ControlTest, AWorkerToldSoTakesItsRanksAlongHoweverItEnds) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    cluster_.StartWorker("w0", 1, {"--stop-ranks-on-exit"});
    const std::string id = RunningJob("steps=100000 step_ms=2");
    const pid_t rank = cluster_.RankPid("w0", id, cluster_.Get(id).epoch(), 0);
    cluster_.worker("w0").End(signal);
    EXPECT_TRUE(WaitUntil([&] { return !IsAlive(rank); })) << "signal " << signal;
    EXPECT_TRUE(Cancel(id, /*force=*/true).ok());
  }
}

TEST_F(ControlTest, AProcessToldSoEndsWithItsParent) {
  // A shell that starts the coordinator in the background and stays.
  const std::string pid_file = cluster_.folder() + "/child";
  ChildProcess shell(
      {"/bin/sh", "-c",
       absl::StrCat(
           TERRACE_BIN_FOLDER,
           "/terrace-coordinator serve --listen 127.0.0.1:0 --exit-with-parent --state-dir ",
           cluster_.folder(), "/other --port-file ", cluster_.folder(), "/other_port & echo $! > ",
           pid_file, "; wait")},
      cluster_.folder() + "/other.log");
  ASSERT_TRUE(
      WaitUntil([&] { return std::filesystem::exists(cluster_.folder() + "/other_port"); }));
  pid_t child = 0;
  std::ifstream(pid_file) >> child;
  ASSERT_TRUE(IsAlive(child));
  shell.End(SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive(child); }));
}

TEST_F(ControlTest, APortInUseIsSaidClearly) {
  EXPECT_EQ(RunCoordinator({"--listen", absl::StrCat("127.0.0.1:", cluster_.port()), "--state-dir",
                            cluster_.folder() + "/second"}),
            ToInt(ExitCode::kUnavailable));
  EXPECT_THAT(LogOf("second"), HasSubstr("the port is in use"));
}

TEST_F(ControlTest, AStateDirectoryInUseIsSaidClearly) {
  EXPECT_EQ(RunCoordinator(
                {"--listen", "127.0.0.1:0", "--state-dir", cluster_.folder() + "/coordinator"}),
            ToInt(ExitCode::kUnavailable));
  EXPECT_THAT(LogOf("second"), HasSubstr("another coordinator"));
}

TEST_F(ControlTest, OffLoopbackWithoutTlsIsRefused) {
  EXPECT_EQ(RunCoordinator({"--listen", "0.0.0.0:0", "--state-dir", cluster_.folder() + "/second"}),
            ToInt(ExitCode::kInvalidInput));
  EXPECT_THAT(LogOf("second"), HasSubstr("--tls-cert"));
}

// A certificate authority and one certificate for both sides, made with the openssl program.
bool MakeCertificates(const std::string& folder) {
  const std::string command = absl::StrCat(
      "cd ", folder,
      " && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj "
      "/CN=ca"
      " && openssl req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=localhost"
      " && echo subjectAltName=DNS:localhost,IP:127.0.0.1,URI:terrace://worker/member > node.ext"
      " && openssl x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
      "    -extfile node.ext -out node.pem");
  return system(absl::StrCat("(", command, ") > /dev/null 2>&1").c_str()) == 0;
}

TEST_F(ControlTest, WithMutualTlsOnlyWhoHasACertificateGetsIn) {
  if (!MakeCertificates(cluster_.folder())) GTEST_SKIP() << "there is no openssl program";
  const auto file = [this](const char* name) { return cluster_.folder() + "/" + name; };
  const std::vector<std::string> tls = {"--tls-ca",       file("ca.pem"), "--tls-cert",
                                        file("node.pem"), "--tls-key",    file("node.key")};
  cluster_.coordinator().End(SIGTERM);
  cluster_.StartCoordinator(tls);
  cluster_.StartWorker("stranger", 1);
  cluster_.StartWorker("member", 1, tls);
  const auto says = [this](const char* process, const char* text) {
    return LogOf(process).find(text) != std::string::npos;
  };
  EXPECT_TRUE(WaitUntil([&] { return says("coordinator", "worker member"); }));
  EXPECT_TRUE(WaitUntil([&] { return says("stranger", "cannot reach the coordinator"); }));
  EXPECT_FALSE(says("coordinator", "worker stranger"));
}

TEST_F(ControlTest, AWorkerWaitsForItsCoordinator) {
  cluster_.coordinator().End(SIGKILL);
  cluster_.StartWorker("w0", 1);
  usleep(300'000);
  EXPECT_TRUE(IsAlive(cluster_.worker("w0").pid()));
  cluster_.StartCoordinator();
  const std::string id = cluster_.Submit("job", "steps=2 step_ms=1");
  cluster_.WaitForState(id, v1::SUCCEEDED);
  EXPECT_THAT(LogOf("coordinator"), Not(HasSubstr("is lost")));
}

}  // namespace
}  // namespace terrace
