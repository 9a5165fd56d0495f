// Programs of several ranks on real connections: collectives, transfers between stages, and what
// the others say when one rank dies.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/device/groups.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/program/grid.h"
#include "tests/unit/worker/vm/tiny_program.h"
#include "worker/comm/file_rendezvous.h"
#include "worker/reporting/failure.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

using kernels::Op;
using testing::Each;
using testing::HasSubstr;
namespace fs = std::filesystem;

class LastOutput final : public SequenceIo {
 public:
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4>) override {}
  void Output(v1::OutputKind, std::span<const float> out) override {
    values.assign(out.begin(), out.end());
  }
  std::vector<float> values;
};

v1::Grid Grid(uint32_t data, uint32_t stages) {
  v1::Grid grid;
  grid.set_data_shard(data);
  grid.set_pipeline(stages);
  return grid;
}

class GroupsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> Connect(const v1::Program& program,
                                                                     uint32_t rank) {
    FileRendezvous store(folder_ / "rendezvous");
    return ConnectGroups(program, rank, {.interface_address = "127.0.0.1", .timeout_ms = 60'000},
                         &store);
  }

  fs::path folder_;
  const SystemClock clock_;
};

// A step of two stages and two data-parallel ranks: x goes forward, is doubled, comes back, and is
// summed over the ranks of a stage.
struct Stage {
  Stage(uint32_t rank, const v1::Grid& grid)
      : tiny({v1::COMPUTE, v1::COLLECTIVE, v1::TRANSFER, v1::TRANSFER}) {
    tiny.program().mutable_grid()->CopyFrom(grid);
    const Coordinates place = CoordinatesOf(grid, rank);
    const uint32_t data = tiny.Group("data", {v1::DATA_SHARD}),
                   pipeline = tiny.Group("pipeline", {v1::PIPELINE});
    const uint32_t x = tiny.Buffer(v1::F32, {1024}), y = tiny.Buffer(v1::F32, {1024}),
                   all = tiny.Buffer(v1::F32, {2048});
    const auto value = static_cast<float>(place.shard + 1);
    if (place.stage == 0) {
      tiny.Compute(0, Op::kFill, kernels::FillAttrs{.value = value}, {{v1::WRITE, x}});
      tiny.Transfer(2, v1::SEND, pipeline, 1, x)->add_waits(0);
      tiny.Transfer(3, v1::RECEIVE, pipeline, 1, y);
    } else {
      tiny.Transfer(2, v1::RECEIVE, pipeline, 0, x);
      tiny.Compute(0, Op::kFill, kernels::FillAttrs{.value = 0}, {{v1::WRITE, y}});
      tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, y}})->add_waits(0);
      tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, x}, {v1::UPDATE, y}});
      tiny.Transfer(3, v1::SEND, pipeline, 0, y)->add_waits(3);
    }
    v1::Instruction* gather = tiny.Collective(1, v1::ALL_GATHER, data, y, all);
    gather->add_waits(gather->id() - 1);
    tiny.Output(0, v1::LOGITS, all)->add_waits(gather->id());
  }
  TinyProgram tiny;
};

TEST_F(GroupsTest, TwoStagesOfTwoRanksExchangeActivationsAndGather) {
  const v1::Grid grid = Grid(2, 2);
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      Stage stage(rank, grid);
      const auto groups = Connect(stage.tiny.program(), rank);
      ASSERT_TRUE(groups.ok()) << groups.status();
      const auto arenas = stage.tiny.Arenas();
      const auto vm =
          Vm::Create(stage.tiny.program(), {.arenas = arenas, .groups = *groups, .rank = rank},
                     &clock_, nullptr);
      ASSERT_TRUE(vm.ok()) << vm.status();
      ASSERT_TRUE((*vm)->Warm().ok());
      for (int run = 0; run < 20; ++run) {
        LastOutput io;
        ASSERT_TRUE((*vm)->Run("train", &io).ok());
        ASSERT_EQ(io.values.size(), 2048);
        EXPECT_THAT(std::span(io.values).first(1024), Each(2));
        EXPECT_THAT(std::span(io.values).last(1024), Each(4));
      }
      const SequenceTimes times = Times(*(*vm)->Find("train"));
      EXPECT_GT(times.collective, 0);
      EXPECT_GT(times.collective_exposed, 0);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(GroupsTest, EveryCollectiveDoesWhatItsOperandsSay) {
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE});
      *tiny.program().mutable_grid() = Grid(2, 1);
      tiny.Group("data", {v1::DATA_SHARD});
      const uint32_t in = tiny.Buffer(v1::F32, {8}), part = tiny.Buffer(v1::F32, {4}),
                     out = tiny.Buffer(v1::F32, {8}), last = tiny.Buffer(v1::F32, {8});
      tiny.Compute(0, Op::kFill, kernels::FillAttrs{.value = float(rank + 1)}, {{v1::WRITE, in}});
      tiny.Collective(1, v1::REDUCE_SCATTER, 0, in, part)->add_waits(0);  // 3 everywhere
      tiny.Collective(1, v1::ALL_GATHER, 0, part, out);
      tiny.AllReduce(1, out);                           // 6
      tiny.Collective(1, v1::RING_SHIFT, 0, in, last);  // the other's value
      tiny.Compute(0, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, last}, {v1::UPDATE, out}})
          ->add_waits(4);  // 6 + (2, 1)
      tiny.Collective(1, v1::ALL_TO_ALL, 0, out, last)->add_waits(5);
      tiny.Output(0, v1::LOGITS, last)->add_waits(6);
      const auto groups = Connect(tiny.program(), rank);
      ASSERT_TRUE(groups.ok()) << groups.status();
      const auto arenas = tiny.Arenas();
      const auto vm = Vm::Create(
          tiny.program(), {.arenas = arenas, .groups = *groups, .rank = rank}, &clock_, nullptr);
      ASSERT_TRUE(vm.ok()) << vm.status();
      LastOutput io;
      ASSERT_TRUE((*vm)->Run("train", &io).ok());
      EXPECT_THAT(io.values, testing::ElementsAre(8, 8, 8, 8, 7, 7, 7, 7));
      EXPECT_EQ((*groups)[0]->bytes_sent(), 16 + 16 + 32 + 32 + 16);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(GroupsTest, ARankOutsideOfAGroupHasNoConnectionAndAloneItNeedsNoStore) {
  TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE});
  *tiny.program().mutable_grid() = Grid(1, 3);
  tiny.Group("data", {v1::DATA_SHARD});
  const uint32_t ends = tiny.Group("ends", {v1::PIPELINE});
  tiny.program().mutable_groups(ends)->add_stages(0);
  tiny.program().mutable_groups(ends)->add_stages(2);
  const auto groups = ConnectGroups(tiny.program(), 1, {}, nullptr);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ((*groups)[0]->size(), 1);
  EXPECT_EQ((*groups)[1], nullptr);
  const uint32_t x = tiny.Buffer(v1::F32, {4});
  tiny.AllReduce(1, x)->mutable_collective()->set_group(ends);
  const auto arenas = tiny.Arenas();
  const auto vm = Vm::Create(tiny.program(), {.arenas = arenas, .groups = *groups, .rank = 1},
                             &clock_, nullptr);
  EXPECT_THAT(std::string(vm.status().message()), HasSubstr("rank 1 is not connected to group 1"));
}

// What NCCL may use in place lies at one offset on all members (worker/comm/nccl_registration.h).
TEST_F(GroupsTest, OnlyMembersOfOneStageHaveOneLayout) {
  TinyProgram tiny({v1::COMPUTE});
  *tiny.program().mutable_grid() = Grid(2, 2);
  const auto data = static_cast<int>(tiny.Group("data", {v1::DATA_SHARD}));
  const auto stages = static_cast<int>(tiny.Group("stages", {v1::PIPELINE}));
  const auto all = static_cast<int>(tiny.Group("all", {v1::DATA_SHARD, v1::PIPELINE}));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    tiny.program().set_stage(CoordinatesOf(tiny.program().grid(), rank).stage);
    EXPECT_TRUE(OptionsOf(tiny.program(), data, rank, {})->one_layout) << rank;
    EXPECT_FALSE(OptionsOf(tiny.program(), stages, rank, {})->one_layout) << rank;
    EXPECT_FALSE(OptionsOf(tiny.program(), all, rank, {})->one_layout) << rank;
  }
}

TEST_F(GroupsTest, OperandsThatDoNotFitACollectiveAreRefused) {
  const auto problem = [&](v1::CollectiveKind kind, std::vector<int64_t> in,
                           std::vector<int64_t> out) {
    TinyProgram tiny({v1::COMPUTE, v1::COLLECTIVE});
    tiny.Group("data", {v1::DATA_SHARD});
    const uint32_t a = tiny.Buffer(v1::F32, in), b = tiny.Buffer(v1::F32, out);
    tiny.Collective(1, kind, 0, a, b);
    const auto groups = ConnectGroups(tiny.program(), 0, {}, nullptr);
    const auto arenas = tiny.Arenas();
    return std::string(
        Vm::Create(tiny.program(), {.arenas = arenas, .groups = *groups}, &clock_, nullptr)
            .status()
            .message());
  };
  EXPECT_EQ(problem(v1::REDUCE_SCATTER, {4}, {4}), "");
  EXPECT_THAT(problem(v1::REDUCE_SCATTER, {4}, {3}), HasSubstr("4 and 3 elements"));
  EXPECT_THAT(problem(v1::ALL_GATHER, {4}, {8}), HasSubstr("4 and 8 elements"));
  EXPECT_THAT(problem(v1::ALL_REDUCE, {4}, {4}), HasSubstr("has 2 operands, must have 1"));
}

// ---- a rank dies ------------------------------------------------------------------------------

// The life of one rank in a process of its own: steps without end. Writes why it ended.
int RunForever(const fs::path& folder, uint32_t rank, const v1::Grid& grid) {
  Stage stage(rank, grid);
  FileRendezvous store(folder / "rendezvous");
  auto groups =
      ConnectGroups(stage.tiny.program(), rank, {.interface_address = "127.0.0.1"}, &store);
  if (!groups.ok()) return 2;
  const SystemClock clock;
  const auto arenas = stage.tiny.Arenas();
  const auto vm = Vm::Create(stage.tiny.program(),
                             {.arenas = arenas, .groups = *groups, .rank = rank}, &clock, nullptr);
  if (!vm.ok()) return 3;
  LastOutput io;
  absl::Status status;
  for (int step = 0; status.ok(); ++step) {
    status = (*vm)->Run("train", &io);
    if (step == 10) std::ofstream(folder / absl::StrCat("running", rank)) << "yes";
  }
  status = ShareCause(rank, status, &store);
  std::ofstream(folder / absl::StrCat("end", rank)) << status;
  return absl::IsUnavailable(status) ? 0 : 4;
}

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST_F(GroupsTest, WhenOneRankDiesAllEndWithinSecondsAndNameIt) {
  constexpr uint32_t kDead = 3;
  const v1::Grid grid = Grid(2, 2);
  std::vector<pid_t> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    ranks.push_back(fork());
    if (ranks.back() == 0) _exit(RunForever(folder_, rank, grid));
  }
  const auto all_run = [&] {
    for (uint32_t rank = 0; rank < 4; ++rank)
      if (!fs::exists(folder_ / absl::StrCat("running", rank))) return false;
    return true;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!all_run() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(all_run());
  const auto killed_at = std::chrono::steady_clock::now();
  kill(ranks[kDead], SIGKILL);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    int status = 0;
    waitpid(ranks[rank], &status, 0);
    if (rank == kDead) continue;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << rank << ": " << status;
    EXPECT_THAT(ReadAll(folder_ / absl::StrCat("end", rank)),
                HasSubstr(absl::StrCat("rank ", kDead, " is lost")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, std::chrono::seconds(5));
}

}  // namespace
}  // namespace terrace
