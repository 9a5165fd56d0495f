// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/memory/memory_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;

void AddTier(v1::RankMemory* memory, v1::Tier tier, int64_t live, int64_t arena, int64_t limit) {
  v1::TierMemory* line = memory->add_tiers();
  line->set_tier(tier);
  line->set_predicted_bytes(arena);
  line->set_reserved_bytes(arena);
  line->set_limit_bytes(limit);
  v1::LiveClass* parameters = line->add_live();
  parameters->set_class_(v1::PARAMETER);
  parameters->set_bytes(live);
}

ProcessSample Sample(int64_t unix_ms, int64_t resident, std::optional<int64_t> oom_kills) {
  return {.unix_ms = unix_ms,
          .bytes = {.resident = resident, .anonymous = resident},
          .oom_kills = oom_kills};
}

FlightEvent Step(int64_t step, int64_t anonymous) {
  return {.kind = FlightEventKind::kStep, .step = step, .anonymous_bytes = anonymous};
}

// A rank of 500 + 1000 MiB of arenas with 300 MiB outside (160 allowed), in a group of 1700 MiB.
MemoryFacts KilledForMemory() {
  MemoryFacts facts{.job = "books-1", .rank = 3, .epoch = 2, .how = "killed by signal 9 (SIGKILL)"};
  AddTier(&facts.memory, v1::DEVICE, 480 * kMiB, 500 * kMiB, 660 * kMiB);
  AddTier(&facts.memory, v1::HOST, 1000 * kMiB, 1000 * kMiB, 0);
  AddTier(&facts.memory, v1::NVME, 9000 * kMiB, 9000 * kMiB, 0);
  facts.memory.set_external_bytes(300 * kMiB);
  facts.memory.set_external_allowed_bytes(160 * kMiB);
  facts.memory.set_step(7);
  facts.memory.set_sequence("train");
  facts.memory.set_instruction("812 adamw layer 3");
  facts.streams = {{"compute", "812 adamw layer 3"}, {"to_host", ""}};
  facts.largest = {{"first_moment.layer3", 64 * kMiB, v1::HOST, v1::OPTIMIZER, "801 nvme_load"},
                   {"weights.head", 32 * kMiB, v1::DEVICE, v1::PARAMETER, ""}};
  for (int step = 1; step <= 6; ++step)
    facts.events.push_back(Step(step, (step == 1 ? 500 : 1600 + 20 * step) * kMiB));
  facts.samples = {Sample(1'000, 1750 * kMiB, 4), Sample(1'200, 1780 * kMiB, 4)};
  facts.cgroup = "/jobs";
  facts.cgroup_limit_bytes = 1700 * kMiB;
  facts.cgroup_used_bytes = 1690 * kMiB;
  facts.oom_kills = 5;
  facts.node_memory_bytes = 64'000 * kMiB;
  return facts;
}

// What would have fit fills the limit: 1700 - 1000 (host) - 140 (outside, beyond what is allowed) =
// 560; then the arena may have 560 - 160 = 400, and 400 + 1000 + 300 = 1700.
TEST(MemoryVerdictTest, SaysWhoKilledWhereAndWhoHeldWhat) {
  EXPECT_EQ(ShortVerdict(KilledForMemory()),
            "killed by signal 9 (SIGKILL) by the kernel's OOM killer (oom_kill of control group "
            "/jobs grew) while executing instruction 812 adamw layer 3 of step 7: device 480.0 MiB "
            "live of 500.0 MiB, host 1000.0 MiB live of 1000.0 MiB, nvme 8.8 GiB live of 8.8 GiB, "
            "outside the arenas 300.0 MiB of 160.0 MiB allowed and growing 20.0 MiB a step; what "
            "would have fit: resources.device_memory: 560MiB, or control group /jobs with at least "
            "1800 MiB");
}

TEST(MemoryVerdictTest, RanksOfOneNodeShareItsLimit) {
  MemoryFacts facts = KilledForMemory();
  facts.local_ranks = 2;
  facts.cgroup_limit_bytes = 3400 * kMiB;
  facts.cgroup_used_bytes = 3400 * kMiB;
  EXPECT_THAT(ShortVerdict(facts), HasSubstr("device_memory: 560MiB, or control group /jobs with "
                                             "at least 3600 MiB"));
}

TEST(MemoryVerdictTest, OtherProcessesAreNamedWhenTheRankItselfFits) {
  MemoryFacts facts = KilledForMemory();
  facts.cgroup_limit_bytes.reset();
  EXPECT_THAT(ShortVerdict(facts), HasSubstr("of the node when it was last seen: that fits; other "
                                             "processes took the memory, or it took more at once"));
}

TEST(MemoryVerdictTest, WithoutAnOomKillTheSenderIsUnknown) {
  MemoryFacts facts = KilledForMemory();
  facts.oom_kills = 4;
  EXPECT_FALSE(OomKilled(facts));
  EXPECT_THAT(ShortVerdict(facts), AllOf(HasSubstr("signal 9 (SIGKILL), sender unknown while"),
                                         Not(HasSubstr("would have fit"))));
  EXPECT_THAT(VerdictPage(facts), HasSubstr("nothing says that memory was the cause"));
  facts.oom_kills.reset();
  EXPECT_FALSE(OomKilled(facts));
}

TEST(MemoryVerdictTest, AnotherSignalIsNotTheOomKiller) {
  MemoryFacts facts = KilledForMemory();
  facts.how = "killed by signal 11 (SIGSEGV)";
  EXPECT_FALSE(OomKilled(facts));
  EXPECT_THAT(ShortVerdict(facts),
              AllOf(HasSubstr("SIGSEGV) while executing"), Not(HasSubstr("sender"))));
}

TEST(MemoryVerdictTest, SaysWhenThereIsNothingToTell) {
  MemoryFacts facts{.job = "a-1"};
  EXPECT_EQ(ShortVerdict(facts),
            "it died while no daemon watched it before its program was prepared");
  facts.how = "exited with status 1";
  AddTier(&facts.memory, v1::DEVICE, 1, 2, 0);
  EXPECT_THAT(ShortVerdict(facts), HasSubstr("exited with status 1 before its first step"));
  facts.memory.set_step(4);
  EXPECT_THAT(ShortVerdict(facts), HasSubstr("between two executions, at step 4"));
}

TEST(MemoryVerdictTest, ThePageNamesBuffersStreamsAndTheProcess) {
  const std::string page = VerdictPage(KilledForMemory());
  EXPECT_THAT(
      page, AllOf(HasSubstr("rank 3 of job books-1, epoch 2\n"), HasSubstr("first_moment.layer3"),
                  HasSubstr("made by 801 nvme_load"), HasSubstr("weights.head"),
                  HasSubstr("there all the time"), HasSubstr("to_host"), HasSubstr("at its end")));
  EXPECT_THAT(page, AllOf(HasSubstr("free"), HasSubstr("limit 660.0 MiB"),
                          HasSubstr("00:00:01.200"), HasSubstr("oom_kill 5"),
                          HasSubstr("\nwhat would have fit\n  resources.device_memory: 560MiB")));
}

TEST(GrowthPerStepTest, LeavesTheFirstStepOut) {
  EXPECT_EQ(GrowthPerStep({}), std::nullopt);
  EXPECT_EQ(GrowthPerStep({Step(1, 10), Step(2, 100)}), std::nullopt);
  EXPECT_EQ(GrowthPerStep({Step(1, 10), Step(2, 100), Step(12, 200)}), 10);
}

}  // namespace
}  // namespace terrace
