// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/program_memory.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/memory/process_memory.h"
#include "worker/rank/memory_report.h"
#include "worker/train/initial_state.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMiB = 1 << 20;

v1::Program Needing(int64_t device, int64_t host, int64_t nvme) {
  v1::Program program;
  const auto add = [&program](v1::Tier tier, int64_t bytes) {
    if (bytes == 0) return;
    v1::Arena* arena = program.add_arenas();
    arena->set_id(program.arenas_size() - 1);
    arena->set_tier(tier);
    arena->set_bytes(bytes);
  };
  add(v1::DEVICE, device), add(v1::HOST, host), add(v1::NVME, nvme);
  return program;
}

std::string Refusal(const v1::Program& program, const HostLimits& limits) {
  const absl::Status status = CheckHostLimits(program, limits);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  return std::string(status.message());
}

TEST(HostLimitCheckTest, WithinAllLimitsIsFine) {
  v1::Program program = Needing(4 * kMiB, 2 * kMiB, 0);
  program.set_host_limit_bytes(2 * kMiB);
  EXPECT_TRUE(
      CheckHostLimits(program, {.available_bytes = 6 * kMiB, .group = {.free_bytes = 6 * kMiB}})
          .ok());
}

TEST(HostLimitCheckTest, EachRefusalNamesLimitNeedAndWayOut) {
  v1::Program program = Needing(4 * kMiB, 2 * kMiB, 8 * kMiB);
  EXPECT_THAT(Refusal(program, {.available_bytes = 6 * kMiB - 1}),
              AllOf(HasSubstr("fewer texts"), Not(HasSubstr("resources."))))
      << "nothing is trained";
  program.add_sequences()->set_name("train");
  EXPECT_THAT(Refusal(program, {.available_bytes = 6 * kMiB - 1}),
              AllOf(HasSubstr("6.0 MiB of RAM (4.0 MiB device, 2.0 MiB host)"),
                    HasSubstr("MemAvailable"), HasSubstr("resources.host_memory")));
  EXPECT_THAT(Refusal(program, {.group = {.free_bytes = 5 * kMiB,
                                          .limit_bytes = 64 * kMiB,
                                          .file = "/sys/fs/cgroup/a/memory.max"}}),
              AllOf(HasSubstr("6.0 MiB of RAM"), HasSubstr("/sys/fs/cgroup/a/memory.max"),
                    HasSubstr("64.0 MiB"), HasSubstr("5.0 MiB are free"), HasSubstr("raise")));
  program.set_host_limit_bytes(2 * kMiB - 1);
  EXPECT_THAT(Refusal(program, {}),
              AllOf(HasSubstr("2.0 MiB of host memory"), HasSubstr("resources.host_memory allows"),
                    HasSubstr("raise")));
  program.clear_host_limit_bytes();
  program.set_nvme_limit_bytes(kMiB);
  EXPECT_THAT(Refusal(program, {}), AllOf(HasSubstr("8.0 MiB on NVMe"),
                                          HasSubstr("resources.nvme.bytes allows 1.0 MiB")));
}

class ProgramMemoryTest : public testing::Test {
 protected:
  ProgramMemoryTest() {
    folder_ = (std::filesystem::temp_directory_path() / "terrace-memory-XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    nvme_.add_paths(folder_);
  }
  ~ProgramMemoryTest() override { std::filesystem::remove_all(folder_); }

  v1::NvmeSpec nvme_;
  std::string folder_;
};

TEST_F(ProgramMemoryTest, EachArenaIsARegionOfItsTier) {
  const v1::Program program = Needing(3 * kMiB, 2 * kMiB, 5 * kMiB);
  const auto memory =
      ProgramMemory::Reserve(program, {.threads = 2, .nvme = nvme_, .name = "a-rank-0"});
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_EQ(memory->regions().size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(memory->regions()[i]->bytes(), program.arenas(i).bytes());
    EXPECT_EQ(memory->regions()[i]->data(), memory->arenas()[i]);
    EXPECT_EQ(memory->arenas()[i] == nullptr, i == 2);
    EXPECT_EQ(memory->reserved_bytes(program.arenas(i).tier()), program.arenas(i).bytes());
  }
  EXPECT_TRUE(memory->pinned_bytes() == 0 || memory->pinned_bytes() == 2 * kMiB);
}

TEST_F(ProgramMemoryTest, ATierThatIsNotUsedIsNotThere) {
  const auto memory = ProgramMemory::Reserve(Needing(kMiB, 0, 0), 1);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->nvme(), nullptr);
  EXPECT_EQ(memory->host(), nullptr);
  EXPECT_EQ(memory->reserved_bytes(v1::HOST), 0);
}

// The bytes outside the arenas must not grow with the host tier.
TEST_F(ProgramMemoryTest, HostMemoryIsNotExternal) {
  const int64_t before = ExternalBytes();
  const auto memory = ProgramMemory::Reserve(Needing(kMiB, 64 * kMiB, 0), 2);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_LT(ExternalBytes() - before, 8 * kMiB);
}

TEST_F(ProgramMemoryTest, NvmeWithoutAFolderIsRefused) {
  const auto memory = ProgramMemory::Reserve(Needing(kMiB, kMiB, kMiB), {.name = "a-rank-0"});
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("resources.nvme.paths: got none"));
}

TEST_F(ProgramMemoryTest, NothingIsReservedWhenALimitIsTooSmall) {
  const auto memory = ProgramMemory::Reserve(
      Needing(kMiB, kMiB, kMiB), {.nvme = nvme_, .name = "a", .limits = {.available_bytes = 5}});
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(ProgramMemoryTest, InitialStateIsZeroOnAllTiers) {
  v1::Program program = Needing(kMiB, kMiB, kMiB);
  for (uint32_t arena = 0; arena < 3; ++arena) {
    v1::Buffer* buffer = program.add_buffers();
    buffer->set_id(arena);
    buffer->set_class_(v1::OPTIMIZER);
    buffer->set_lifetime(v1::PERSISTENT);
    buffer->set_arena(arena);
    buffer->set_offset(4096);
    buffer->set_bytes(8192);
  }
  const auto memory = ProgramMemory::Reserve(program, {.nvme = nvme_, .name = "a-rank-0"});
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (int i = 0; i < 2; ++i) std::fill_n(memory->arenas()[i], kMiB, std::byte{9});
  ASSERT_TRUE(FillInitialState(program, memory->regions(), 2).ok());
  for (Region* region : memory->regions()) {
    std::vector<std::byte> state(8192, std::byte{1});
    ASSERT_TRUE(region->Read(4096, state).ok());
    EXPECT_EQ(state, std::vector<std::byte>(8192)) << region->bytes();
  }
  EXPECT_EQ(memory->arenas()[1][4096 + 8192], std::byte{9});
}

TEST_F(ProgramMemoryTest, ReportsNameEveryTier) {
  v1::Program program = Needing(2 * kMiB, kMiB, 4 * kMiB);
  program.set_device_limit_bytes(3 * kMiB);
  const auto memory = ProgramMemory::Reserve(program, {.nvme = nvme_, .name = "a-rank-0"});
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_THAT(MemoryLine({program, *memory, kMiB}),
              AllOf(HasSubstr("device 2.0 MiB of 3.0 MiB, outside of it 1.0 MiB"),
                    HasSubstr("; host 1.0 MiB"), HasSubstr("; nvme 4.0 MiB")));
  EXPECT_TRUE(CheckDeviceLimit({program, *memory, kMiB}).ok());
  EXPECT_EQ(CheckDeviceLimit({program, *memory, kMiB + 1}).code(),
            absl::StatusCode::kResourceExhausted);
  const v1::RankMetrics metrics = MemoryMetrics({program, *memory, kMiB});
  EXPECT_EQ(metrics.arena_reserved_bytes(), 2 * kMiB);
  EXPECT_EQ(metrics.arena_predicted_bytes(), 2 * kMiB);
  EXPECT_EQ(metrics.host_reserved_bytes(), kMiB);
  EXPECT_EQ(metrics.nvme_reserved_bytes(), 4 * kMiB);
  EXPECT_EQ(metrics.host_pinned_bytes(), memory->pinned_bytes());
  EXPECT_EQ(metrics.allocator().mode(), "planned");
}

}  // namespace
}  // namespace terrace
