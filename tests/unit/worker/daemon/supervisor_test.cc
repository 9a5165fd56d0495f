// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/loop.h"
#include "proto/program_hash.h"
#include "worker/daemon/run_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(15);

std::string MakeFolder() {
  std::string folder = testing::TempDir() + "supervisor_XXXXXX";
  return mkdtemp(folder.data());
}

// A supervisor on a loop of its own with real processes (fake_rank).
class SupervisorTest : public testing::Test {
 protected:
  void SetUp() override { StartDaemon(); }
  void TearDown() override {
    if (loop_ != nullptr) {
      loop_->Call([&] { supervisor_->KillAll(); });
      WaitUntil([&] { return supervisor_->LiveMetrics().empty(); });
      StopDaemon();
    }
    std::filesystem::remove_all(state_);
  }

  void StartDaemon() {
    loop_ = std::make_unique<Loop>();
    programs_ = std::make_unique<ProgramCache>(state_);
    supervisor_ = std::make_unique<Supervisor>(
        Supervisor::Options{.state_directory = state_, .rank_binary = TERRACE_FAKE_RANK},
        Supervisor::Ports{
            .post = [loop =
                         loop_.get()](std::function<void()> work) { loop->Post(std::move(work)); },
            .to_coordinator =
                [this](const v1::WorkerMessage& message) { sent_.push_back(message); },
            .changed = [] {}},
        *programs_);
    loop_->Start(absl::Milliseconds(50), [] {});
    loop_->Call([&] { supervisor_->Adopt(); });
  }
  // As a kill would: nothing is told to anybody.
  void StopDaemon() {
    loop_->Call([&] { supervisor_.reset(); });
    loop_->Stop();
    loop_.reset();
  }

  void WaitUntil(const std::function<bool()>& holds) {
    const absl::Time deadline = absl::Now() + kPatience;
    bool now = false;
    while (!now && absl::Now() < deadline) {
      loop_->Call([&] { now = holds(); });
      if (!now) absl::SleepFor(absl::Milliseconds(2));
    }
    EXPECT_TRUE(now) << "it did not come to that: " << Reports().ShortDebugString();
  }
  v1::Heartbeat Reports() {
    v1::Heartbeat reports;
    loop_->Call([&] { reports = supervisor_->Reports(); });
    return reports;
  }
  v1::RankReport Report(uint32_t rank = 0) {
    const v1::Heartbeat reports = Reports();
    for (const v1::RankReport& report : reports.ranks()) {
      if (report.rank() == rank) return report;
    }
    return {};
  }
  void WaitForState(v1::RankState state, uint32_t rank = 0) {
    WaitUntil([&] {
      const v1::Heartbeat reports = supervisor_->Reports();
      for (const v1::RankReport& report : reports.ranks()) {
        if (report.rank() == rank) return report.state() == state;
      }
      return false;
    });
  }

  // A program that is in the cache already.
  std::string CachedProgram(const std::string& bytes = "program") {
    v1::ProgramChunk chunk;
    chunk.set_data(bytes);
    chunk.set_total_bytes(static_cast<int64_t>(bytes.size()));
    chunk.set_sha256(Sha256Hex(bytes));
    loop_->Call([&] { EXPECT_TRUE(*programs_->Add(chunk)); });
    return chunk.sha256();
  }
  // One weight, and one activation that the second of its two instructions makes.
  static v1::Program SmallProgram() {
    v1::Program program;
    program.add_arenas()->set_tier(v1::DEVICE);
    program.mutable_arenas(0)->set_bytes(1 << 20);
    program.add_streams()->set_kind(v1::COMPUTE);
    for (const char* name : {"weight", "activation"}) {
      v1::Buffer* buffer = program.add_buffers();
      buffer->set_id(program.buffers_size() - 1);
      buffer->set_name(name);
      buffer->set_bytes(1 << 18);
      buffer->set_offset(buffer->id() << 18);
      buffer->set_class_(buffer->id() == 0 ? v1::PARAMETER : v1::ACTIVATION);
      buffer->set_lifetime(buffer->id() == 0 ? v1::PERSISTENT : v1::STEP);
    }
    program.add_sequences()->set_name("train");
    for (const char* text : {"first", "second"}) {
      v1::Instruction* instruction = program.mutable_sequences(0)->add_instructions();
      instruction->set_id(program.sequences(0).instructions_size() - 1);
      instruction->set_text(text);
      instruction->set_layer(instruction->id() == 0 ? -1 : 3);
      instruction->set_micro_batch(-1);
    }
    v1::Operand* made = program.mutable_sequences(0)->mutable_instructions(1)->add_operands();
    made->set_buffer(1);
    made->set_access(v1::WRITE);
    return program;
  }
  static v1::RankConfig Config(const std::string& words, uint32_t rank = 0, int64_t epoch = 1) {
    v1::RankConfig config;
    config.set_job("a-1");
    config.set_epoch(epoch);
    config.set_rank(rank);
    config.set_ranks(2);
    config.set_device(rank);
    config.mutable_spec()->set_yaml(words);
    return config;
  }
  void Start(v1::RankConfig config) {
    if (config.program_sha256().empty()) config.set_program_sha256(CachedProgram());
    v1::StartRanks start;
    *start.add_ranks() = config;
    loop_->Call([&] { supervisor_->Start(start); });
  }
  void Go(int64_t epoch = 1) {
    v1::Go go;
    go.set_job("a-1");
    go.set_epoch(epoch);
    loop_->Call([&] { supervisor_->Go(go); });
  }
  void Stop(bool checkpoint, int64_t epoch = 1) {
    v1::StopRanks stop;
    stop.set_job("a-1");
    stop.set_epoch(epoch);
    stop.set_checkpoint(checkpoint);
    loop_->Call([&] { supervisor_->Stop(stop); });
  }

  const std::string state_ = MakeFolder();
  std::vector<v1::WorkerMessage> sent_;
  std::unique_ptr<ProgramCache> programs_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Loop> loop_;
};

TEST_F(SupervisorTest, ARankWaitsForGoRunsAndIsReportedUntilForgotten) {
  Start(Config("steps=3"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_SUCCEEDED);
  EXPECT_EQ(Report().progress().step(), 3);
  EXPECT_FALSE(Report().stopped_early());
  int events = 0;
  loop_->Call([&] {
    for (const v1::WorkerMessage& message : sent_) events += message.has_event();
  });
  EXPECT_EQ(events, 3) << "all events come before the end is reported";
  Stop(/*checkpoint=*/false);
  EXPECT_EQ(Reports().ranks_size(), 0);
}

TEST_F(SupervisorTest, StartingTheSameRankTwiceIsStartingItOnce) {
  Start(Config(""));
  WaitForState(v1::RANK_READY);
  const int32_t pid = Report().pid();
  Start(Config(""));
  EXPECT_EQ(Report().pid(), pid);
  EXPECT_EQ(Reports().ranks_size(), 1);
}

TEST_F(SupervisorTest, AnOlderEpochIsRefused) {
  Start(Config("", 0, 5));
  Start(Config("", 0, 4));
  ASSERT_EQ(Reports().ranks_size(), 1);
  EXPECT_EQ(Report().epoch(), 5);
}

TEST_F(SupervisorTest, AKilledRankIsNoticedInLessThanHalfASecond) {
  Start(Config(""));
  WaitForState(v1::RANK_READY);
  const absl::Time killed = absl::Now();
  kill(Report().pid(), SIGKILL);
  WaitForState(v1::RANK_FAILED);
  EXPECT_LT(absl::Now() - killed, absl::Milliseconds(500));
  EXPECT_EQ(Report().reason(), v1::REASON_RANK_DIED);
  EXPECT_THAT(Report().message(), HasSubstr("signal 9 (SIGKILL)"));
  EXPECT_THAT(Report().message(), HasSubstr("starts")) << "the last line of its log";
}

TEST_F(SupervisorTest, AKilledRankLeavesAVerdictOnWhatItHeld) {
  v1::RankConfig config = Config("finished=1 steps=7 crash_at=7");
  config.set_program_sha256(CachedProgram(SmallProgram().SerializeAsString()));
  Start(config);
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_FAILED);
  EXPECT_THAT(Report().message(),
              HasSubstr("signal 9 (SIGKILL), sender unknown while executing instruction 1 second, "
                        "layer 3 of step 7: device 512.0 KiB live of 1.0 MiB"));
  const std::string folder = state_ + "/runs/a-1/1/0";
  const auto page = ReadTextFile(folder + "/memory_verdict.txt", 1 << 20);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, HasSubstr("activation  made by 1 second, layer 3"));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder + "/flight")))
      << "the shared memory is freed, its content kept";
}

TEST_F(SupervisorTest, ARankWhoseAllocationFailsHasRunOutOfMemory) {
  v1::RankConfig config = Config("finished=1 steps=7 bad_alloc_at=3");
  config.set_program_sha256(CachedProgram(SmallProgram().SerializeAsString()));
  Start(config);
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report().reason(), v1::REASON_OUT_OF_MEMORY) << Report().message();
  EXPECT_THAT(Report().message(), HasSubstr("std::bad_alloc"));
  EXPECT_EQ(Report().memory().step(), 3) << "what it held goes with every report";
  EXPECT_EQ(Report().memory().step(), 3);
}

// 1 MiB of arena, 4 MiB allowed outside, 8 MiB in all; then 16 MiB more.
v1::RankConfig Growing(const std::string& sha256, v1::RankConfig config) {
  config.set_program_sha256(sha256);
  config.mutable_spec()->mutable_checkpoint()->set_directory("/checkpoints");
  return config;
}

TEST_F(SupervisorTest, ARankOverItsLimitIsEndedWithACheckpointAndHasRunOutOfMemory) {
  v1::Program program = SmallProgram();
  program.set_external_bytes(4 << 20);
  program.set_device_limit_bytes(8 << 20);
  const std::string sha256 = CachedProgram(program.SerializeAsString());
  const std::string words = "finished=1 steps=1000000 step_ms=1";
  Start(Growing(sha256, Config(words + " grow_mib=16", 0)));
  Start(Growing(sha256, Config(words, 1)));
  for (const uint32_t rank : {0u, 1u}) WaitForState(v1::RANK_READY, rank);
  Go();
  WaitUntil([&] {
    supervisor_->SampleMemory();
    return supervisor_->Reports().ranks(0).state() == v1::RANK_FAILED;
  });
  const v1::RankReport report = Report(0);
  EXPECT_EQ(report.reason(), v1::REASON_OUT_OF_MEMORY);
  EXPECT_THAT(report.message(), HasSubstr("and 8.0 MiB is its limit; ended after a checkpoint"));
  EXPECT_GE(report.memory().external_bytes(), 16 << 20);
  EXPECT_EQ(report.memory().external_allowed_bytes(), 4 << 20);
  EXPECT_EQ(Report(1).state(), v1::RANK_RUNNING) << "its gang would end it";
  StopDaemon();
  StartDaemon();
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report(0).reason(), v1::REASON_OUT_OF_MEMORY) << "another daemon knows it too";
}

TEST_F(SupervisorTest, ALiveRankIsReportedWithWhatItHoldsOnceAnInterval) {
  v1::RankConfig config = Config("finished=0 steps=1000000 step_ms=1");
  config.set_program_sha256(CachedProgram(SmallProgram().SerializeAsString()));
  Start(config);
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_RUNNING);
  v1::RankMemory memory;
  WaitUntil([&] {
    supervisor_->SampleMemory();
    const v1::Heartbeat told = supervisor_->Reports();
    if (told.ranks(0).has_memory()) memory = told.ranks(0).memory();
    return memory.step() > 0;
  });
  EXPECT_FALSE(Report().has_memory()) << "told already";
  EXPECT_EQ(memory.sequence(), "train");
  EXPECT_EQ(memory.instruction(), "0 first");
  ASSERT_EQ(memory.tiers_size(), 1);
  EXPECT_EQ(memory.tiers(0).reserved_bytes(), 1 << 20);
  ASSERT_EQ(memory.tiers(0).live_size(), 1) << "the activation is not made yet";
  EXPECT_EQ(memory.tiers(0).live(0).class_(), v1::PARAMETER);
  EXPECT_EQ(memory.allocator().largest_free_block_bytes(), (1 << 20) - (1 << 18));
  loop_->Call([&] { EXPECT_EQ(supervisor_->LiveMetrics()[0].memory.sequence(), "train"); });
}

TEST_F(SupervisorTest, AFailureKeepsTheReasonThatTheRankGave) {
  Start(Config(absl::StrCat("reason=", int{v1::REASON_DATA_ERROR})));
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report().reason(), v1::REASON_DATA_ERROR);
  EXPECT_EQ(Report().message(), "told to fail");
}

TEST_F(SupervisorTest, AProgramNameThatIsNoHashFailsTheRankAndNotTheDaemon) {
  v1::RankConfig config = Config("");
  config.set_program_sha256("no hash");
  Start(config);
  WaitForState(v1::RANK_FAILED);
  EXPECT_EQ(Report().reason(), v1::REASON_INTERNAL);
}

TEST_F(SupervisorTest, StopWithACheckpointLetsTheRankEndByItself) {
  Start(Config("steps=100000 step_ms=5"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_RUNNING);
  Stop(/*checkpoint=*/true);
  WaitForState(v1::RANK_SUCCEEDED);
  EXPECT_TRUE(Report().stopped_early());
}

TEST_F(SupervisorTest, StopKillsAndForgetsRanksOfThisAndOlderEpochs) {
  Start(Config("mute=1", 0, 1));
  Start(Config("steps=100000 step_ms=5", 1, 2));
  Stop(/*checkpoint=*/false, 2);
  WaitUntil([&] { return supervisor_->Reports().ranks_size() == 0; });
}

TEST_F(SupervisorTest, ARankWaitsForItsProgramAndStartsWhenItArrives) {
  v1::RankConfig config = Config("");
  config.set_program_sha256(Sha256Hex("late program"));
  Start(config);
  EXPECT_EQ(Report().state(), v1::RANK_STARTED);
  ASSERT_FALSE(sent_.empty());
  EXPECT_EQ(sent_.back().need_program().sha256(), config.program_sha256());
  v1::ProgramChunk chunk;
  chunk.set_data("late program");
  chunk.set_total_bytes(12);
  chunk.set_sha256(config.program_sha256());
  loop_->Call([&] {
    ASSERT_TRUE(*programs_->Add(chunk));
    supervisor_->ProgramArrived(chunk.sha256());
  });
  WaitForState(v1::RANK_READY);
}

TEST_F(SupervisorTest, ANewDaemonFindsLiveRanksAndGoesOnWithThem) {
  Start(Config("steps=100000 step_ms=5"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitForState(v1::RANK_RUNNING);
  const int32_t pid = Report().pid();
  StopDaemon();
  EXPECT_EQ(kill(pid, 0), 0) << "the rank lives on";
  StartDaemon();
  EXPECT_EQ(Report().pid(), pid);
  WaitForState(v1::RANK_RUNNING);
  const int64_t step = Report().progress().step();
  WaitUntil([&] { return supervisor_->Reports().ranks(0).progress().step() > step; });
  Stop(/*checkpoint=*/true);
  WaitForState(v1::RANK_SUCCEEDED);
  EXPECT_TRUE(Report().stopped_early());
}

TEST_F(SupervisorTest, ANewDaemonLearnsHowARankEndedWhileNoneWasThere) {
  Start(Config("steps=3 step_ms=20"));
  Start(Config("steps=3 step_ms=20 crash_at=2", 1));
  WaitForState(v1::RANK_READY, 0);
  WaitForState(v1::RANK_READY, 1);
  const int32_t pids[] = {Report(0).pid(), Report(1).pid()};
  Go();
  WaitForState(v1::RANK_RUNNING, 0);
  WaitForState(v1::RANK_RUNNING, 1);
  StopDaemon();
  absl::SleepFor(absl::Milliseconds(300));
  for (const int32_t pid : pids) waitpid(pid, nullptr, 0);  // this process is still their parent
  StartDaemon();
  EXPECT_EQ(Report(0).state(), v1::RANK_SUCCEEDED) << "exit.pb says so";
  EXPECT_EQ(Report(1).state(), v1::RANK_FAILED);
  EXPECT_THAT(Report(1).message(), HasSubstr("while no daemon watched it"));
}

TEST_F(SupervisorTest, KeysAndOpenWaitsAreSentAgainAfterAReconnect) {
  Start(Config("rendezvous=1"));
  WaitUntil([&] { return !sent_.empty() && sent_.back().has_kv_wait(); });
  loop_->Call([&] {
    sent_.clear();
    supervisor_->Resend();
  });
  ASSERT_EQ(sent_.size(), 2);
  EXPECT_EQ(sent_[0].kv_set().key(), "rank0");
  EXPECT_EQ(sent_[1].kv_wait().keys_size(), 2);
  v1::KvValues values;
  values.set_job("a-1");
  values.set_epoch(1);
  values.set_request(1);
  values.add_values("here");
  loop_->Call([&] { supervisor_->Answer(values); });
  WaitForState(v1::RANK_READY);
}

TEST_F(SupervisorTest, MetricsAreThoseOfLiveRanksOnly) {
  Start(Config("steps=100000 step_ms=5"));
  WaitForState(v1::RANK_READY);
  Go();
  WaitUntil([&] {
    const auto all = supervisor_->LiveMetrics();
    return all.size() == 1 && all[0].metrics.loss() == 2.5;
  });
  kill(Report().pid(), SIGKILL);
  WaitForState(v1::RANK_FAILED);
  loop_->Call([&] { EXPECT_TRUE(supervisor_->LiveMetrics().empty()); });
}

TEST_F(SupervisorTest, AJobNamedLikeAPathIsRefused) {
  v1::RankConfig config = Config("");
  config.set_job("../../etc");
  Start(config);
  EXPECT_EQ(Reports().ranks_size(), 0);
}

}  // namespace
}  // namespace terrace
