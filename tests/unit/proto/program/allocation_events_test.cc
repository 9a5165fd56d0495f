// SPDX-License-Identifier: Apache-2.0
#include "proto/program/allocation_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "proto/caching/segments.h"
#include "proto/check/program_check.h"
#include "proto/program/caching_need.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

constexpr int64_t kStretch = 64;

using testing::ElementsAre;
using testing::HasSubstr;

// One stream of computation (0) and one of copies (1); every buffer has 1000 bytes.
class AllocationEventsTest : public testing::Test {
 protected:
  AllocationEventsTest() {
    program_.set_allocator("caching");
    program_.add_arenas()->set_tier(v1::DEVICE);
    program_.add_streams()->set_kind(v1::COMPUTE);
    program_.add_streams()->set_kind(v1::DEVICE_TO_HOST);
    program_.add_sequences()->set_name("train");
  }

  uint32_t Buffer(v1::Lifetime lifetime = v1::STEP) {
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_lifetime(lifetime);
    buffer->set_bytes(1000);
    return buffer->id();
  }
  uint32_t Add(uint32_t stream, std::vector<uint32_t> buffers, std::vector<uint32_t> waits = {}) {
    v1::Sequence* train = program_.mutable_sequences(0);
    v1::Instruction* instruction = train->add_instructions();
    instruction->set_id(train->instructions_size() - 1);
    instruction->set_stream(stream);
    for (const uint32_t buffer : buffers) {
      v1::Operand* operand = instruction->add_operands();
      operand->set_access(v1::UPDATE);
      operand->set_buffer(buffer);
    }
    for (const uint32_t wait : waits) instruction->add_waits(wait);
    return instruction->id();
  }
  // "1+0" buffer 0 is allocated when instruction 1 is launched, "~" retired, "-" freed.
  std::vector<std::string> Events() {
    const AllocationEvents events(program_, program_.sequences(0));
    std::vector<std::string> text;
    for (uint32_t i = 0; i <= events.instructions(); ++i) {
      for (const AllocationEvent& event : events.At(i))
        text.push_back(absl::StrCat(i, std::string(1, "+~-"[event.kind]), event.buffer));
    }
    return text;
  }

  v1::Program program_;
};

TEST_F(AllocationEventsTest, OneStreamFreesAtTheLastUse) {
  const uint32_t a = Buffer(), b = Buffer();
  Add(0, {a});
  Add(0, {a, b});
  Add(0, {b});
  EXPECT_THAT(Events(), ElementsAre("0+0", "1+1", "1-0", "2-1"));
}

TEST_F(AllocationEventsTest, PersistentAndPlannedBuffersAreLeftAlone) {
  Add(0, {Buffer(v1::PERSISTENT), Buffer()});
  EXPECT_THAT(Events(), ElementsAre("0+1", "0-1"));
  program_.set_allocator("planned");
  EXPECT_TRUE(Events().empty());
  EXPECT_EQ(SegmentBytesNeeded(program_), 0);
}

TEST_F(AllocationEventsTest, UseElsewhereIsRetiredUntilTheOwnStreamHasWaitedForIt) {
  const uint32_t a = Buffer();
  Add(0, {a});
  const uint32_t copy = Add(1, {a}, {0});
  Add(0, {});
  Add(0, {}, {copy});
  Add(0, {});
  EXPECT_THAT(Events(), ElementsAre("0+0", "1~0", "3-0"));
}

TEST_F(AllocationEventsTest, WhatNobodyWaitsForIsFreedAtTheEnd) {
  const uint32_t a = Buffer();
  Add(0, {a});
  Add(1, {a}, {0});
  Add(0, {});
  EXPECT_THAT(Events(), ElementsAre("0+0", "1~0", "3-0"));
}

TEST_F(AllocationEventsTest, ALastUseThatHasWaitedForTheOthersFreesAtOnce) {
  const uint32_t a = Buffer();
  Add(0, {a});
  Add(1, {a}, {0});
  Add(0, {a}, {1});
  EXPECT_THAT(Events(), ElementsAre("0+0", "2-0"));
}

TEST_F(AllocationEventsTest, ABufferThatTwoStreamsMayBeginKeepsItsMemoryThroughout) {
  const uint32_t a = Buffer(), b = Buffer();
  Add(0, {b});
  Add(0, {a});
  Add(1, {a});  // nothing orders it behind what buffer b left to stream 0
  EXPECT_THAT(Events(), ElementsAre("0+0", "0+1", "0-1", "3-0"));
}

TEST_F(AllocationEventsTest, ARefusalNamesInstructionAndBufferAndLeavesNothingHeld) {
  program_.add_buffers();
  for (int i = 0; i < 2; ++i) {
    const uint32_t id = Buffer();
    program_.mutable_buffers(static_cast<int>(id))->set_bytes(12 << 20);
    program_.mutable_buffers(static_cast<int>(id))->set_name(absl::StrCat("big", i));
  }
  Add(0, {1});
  Add(0, {1, 2});
  program_.mutable_sequences(0)->mutable_instructions(1)->set_text("mlp up");
  const AllocationEvents events(program_, program_.sequences(0));
  CountedSegments source;
  BlockCache cache(&source, {.limit_bytes = 20 << 20, .release_when_full = false});
  const absl::Status status = ReplaySequence(program_, program_.sequences(0), events, &cache);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(HasSubstr("instruction 1 (mlp up): buffer 'big1'"),
                     HasSubstr("12582912 bytes reserved 12582912 are allocated"),
                     HasSubstr("fragmentation 0.000"), HasSubstr("layout.allocator planned")));
  EXPECT_EQ(cache.statistics().active_bytes, 0);
  EXPECT_EQ(cache.statistics().retries, 0);
}

// Tiny buffers would all share the smallest segments: each gets more bytes than its shape takes.
std::vector<v1::Program> CompileCaching(const TinyJob& job) {
  const v1::JobSpec spec = TinySpec(job.sizes.sequence);
  const Model model = TinyModel(job.family, job.sizes);
  v1::Layout layout = TinyLayout(job);
  layout.set_allocator("caching");
  auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
  EXPECT_TRUE(programs.ok()) << Describe(job) << programs.status();
  if (!programs.ok()) return {};
  for (v1::Program& program : *programs) {
    for (v1::Buffer& buffer : *program.mutable_buffers()) {
      if (IsDynamic(program, buffer)) buffer.set_bytes(buffer.bytes() * kStretch);
    }
  }
  return *std::move(programs);
}

// The allocator's choices as offsets of a planned program: the checker, which knows nothing of
// them, must find every byte ordered.
void ExpectOrdered(const v1::Program& program, const std::string& what) {
  const std::vector<AllocationEvents> events = EventsOfSequences(program);
  CountedSegments source;
  BlockCache cache(&source, {.limit_bytes = SegmentBytesNeeded(program, events)});
  ASSERT_TRUE(SettleCache(program, events, &cache).ok()) << what;
  EXPECT_EQ(cache.statistics().active_bytes, 0) << what;
  v1::Program fixed = program;
  fixed.set_allocator("planned");
  for (size_t s = 0; s < events.size(); ++s) {
    const absl::Status replayed = ReplaySequence(
        program, program.sequences(static_cast<int>(s)), events[s], &cache,
        [&](uint32_t, const AllocationEvent& event, const BlocksOfBuffers& blocks) {
          if (event.kind != AllocationEvent::kAllocate) return;
          fixed.mutable_buffers(static_cast<int>(event.buffer))
              ->set_offset(static_cast<int64_t>(reinterpret_cast<uintptr_t>(blocks[event.buffer])));
        });
    ASSERT_TRUE(replayed.ok()) << what << replayed;
  }
  EXPECT_EQ(cache.statistics().reserved_bytes, SegmentBytesNeeded(program)) << what;
  fixed.mutable_arenas(0)->set_bytes(int64_t{1} << 45);
  for (v1::Buffer& buffer : *fixed.mutable_buffers()) {
    const bool unused = IsDynamic(program, buffer) && buffer.offset() == 0;
    if (unused) buffer.set_offset(int64_t{1} << 44);
  }
  const absl::Status checked = CheckProgram(fixed);
  EXPECT_TRUE(checked.ok()) << what << ": " << checked;
}

TEST(CompiledAllocationTest, WhatSharesBytesIsOrderedInEveryLayout) {
  std::vector<TinyJob> jobs = {{},
                               {.family = "llama", .micro_batches = 3, .recompute = "block"},
                               {.family = "qwen3", .data_parallel = 2, .micro_batches = 2},
                               {.family = "llama", .micro_batches = 2, .optimizer = v1::HOST},
                               {.family = "llama",
                                .micro_batches = 2,
                                .parameter = v1::NVME,
                                .gradient = v1::NVME,
                                .optimizer = v1::NVME}};
  for (const uint32_t zero : {1, 2, 3}) {
    jobs.push_back({.family = "llama", .data_parallel = 4, .micro_batches = 2, .zero_stage = zero});
    jobs.push_back({.family = "llama",
                    .data_parallel = 4,
                    .micro_batches = 2,
                    .zero_stage = zero,
                    .recompute = "selective",
                    .gradient = v1::HOST,
                    .optimizer = v1::HOST});
  }
  jobs.push_back({.family = "qwen3", .micro_batches = 4, .pipeline_parallel = 2});
  jobs.push_back({.family = "llama", .micro_batches = 2, .tensor_parallel = 2});
  jobs.push_back({.family = "llama", .micro_batches = 2, .context_parallel = 2});
  for (const TinyJob& job : jobs) {
    const std::vector<v1::Program> programs = CompileCaching(job);
    for (const v1::Program& program : programs) {
      ASSERT_TRUE(UsesCaching(program));
      EXPECT_GT(SegmentBytesNeeded(program), 0);
      ExpectOrdered(program, absl::StrCat(Describe(job), ", stage ", program.stage()));
    }
    const absl::Status checked = CheckPrograms(programs);
    EXPECT_TRUE(checked.ok()) << checked;
  }
}

}  // namespace
}  // namespace terrace
