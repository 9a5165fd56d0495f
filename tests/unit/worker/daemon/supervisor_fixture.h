// A supervisor on a loop of its own with real processes (tests/support/fake_rank.cc).
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/loop.h"
#include "proto/program/program_hash.h"
#include "worker/daemon/supervisor.h"

namespace terrace {

inline constexpr absl::Duration kPatience = absl::Seconds(15);

inline std::string MakeFolder() {
  std::string folder = testing::TempDir() + "supervisor_XXXXXX";
  return mkdtemp(folder.data());
}

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
        Supervisor::Options{
            .state_directory = state_, .rank_binary = TERRACE_FAKE_RANK, .starting = starting_},
        Supervisor::Ports{
            .post = [loop =
                         loop_.get()](std::function<void()> work) { loop->Post(std::move(work)); },
            .to_coordinator =
                [this](const v1::WorkerMessage& message) { sent_.push_back(message); },
            .changed = [] {}},
        *programs_);
    loop_->Start(absl::Milliseconds(50),
                 [this] { return std::min(absl::Milliseconds(50), supervisor_->AdvanceStarts()); });
    loop_->Call([&] { supervisor_->Adopt(); });
  }
  // As a kill would: nothing is told to anybody. The loop first: what ranks have posted there is of
  // the supervisor.
  void StopDaemon() {
    loop_->Stop();
    supervisor_.reset();
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

  // Of the events that were passed on.
  std::vector<int64_t> StepsSent() {
    std::vector<int64_t> steps;
    loop_->Call([&] {
      for (const v1::WorkerMessage& message : sent_) {
        for (const v1::JobEvent& event : message.events()) steps.push_back(event.step().step());
      }
    });
    return steps;
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
  Supervisor::Starting starting_;
  std::vector<v1::WorkerMessage> sent_;
  std::unique_ptr<ProgramCache> programs_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace terrace
