// Ranks together: agreement of collectives, and deadlock under rendezvous.
//
// SPDX-License-Identifier: Apache-2.0
#include "proto/check/joint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// One thing that a stage does with its only buffer.
struct Step {
  enum What { kSum, kSend, kReceive, kCompute };
  What what = kSum;
  uint32_t group = 0;  // 0: "a", 1: "b"
  uint32_t stream = 0;
  std::vector<uint32_t> waits = {};
  uint32_t peer = 0;
  int64_t elements = 4;
  int32_t micro_batch = 0;
};

Step Send(uint32_t peer, uint32_t stream = 0, std::vector<uint32_t> waits = {}) {
  return {.what = Step::kSend, .stream = stream, .waits = std::move(waits), .peer = peer};
}
Step Receive(uint32_t peer, uint32_t stream = 0, std::vector<uint32_t> waits = {}) {
  return {.what = Step::kReceive, .stream = stream, .waits = std::move(waits), .peer = peer};
}

// One rank a stage.
v1::Program Stage(uint32_t stage, uint32_t stages, const std::vector<Step>& steps) {
  v1::Program program;
  program.set_stage(stage);
  program.set_stages(stages);
  program.set_ranks(stages);
  program.mutable_grid()->set_pipeline(stages);
  program.add_buffers()->set_name("x");
  for (const char* name : {"a", "b"}) {
    v1::Group* group = program.add_groups();
    group->set_name(name);
    group->add_axes(v1::PIPELINE);
  }
  for (int stream = 0; stream < 4; ++stream) program.add_streams();
  v1::Sequence* sequence = program.add_sequences();
  sequence->set_name("train");
  sequence->mutable_instructions()->Reserve(static_cast<int>(steps.size()));
  for (const Step& step : steps) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(sequence->instructions_size() - 1);
    instruction->set_stream(step.stream);
    instruction->set_micro_batch(step.micro_batch);
    instruction->mutable_waits()->Assign(step.waits.begin(), step.waits.end());
    if (step.what == Step::kSum) {
      instruction->mutable_collective()->set_kind(v1::ALL_REDUCE);
      instruction->mutable_collective()->set_group(step.group);
    } else if (step.what == Step::kCompute) {
      instruction->mutable_compute()->set_op("gelu");
    } else {
      instruction->mutable_transfer()->set_kind(step.what == Step::kSend ? v1::SEND : v1::RECEIVE);
      instruction->mutable_transfer()->set_group(step.group);
      instruction->mutable_transfer()->set_peer_stage(step.peer);
    }
    v1::Operand* operand = instruction->add_operands();
    operand->set_access(v1::UPDATE);
    operand->set_dtype(v1::F32);
    operand->add_shape(step.elements);
  }
  return program;
}

std::string Joint(const std::vector<std::vector<Step>>& lists) {
  std::vector<v1::Program> stages;
  for (const std::vector<Step>& list : lists) {
    stages.push_back(Stage(stages.size(), lists.size(), list));
  }
  absl::Status status = check::CheckAgree(stages);
  if (status.ok()) status = check::CheckTermination(stages);
  return std::string(status.message());
}

TEST(CheckJointTest, TheSameCollectivesInTheSameOrderTerminate) {
  EXPECT_EQ(Joint({{{.elements = 4}, {.elements = 8}}, {{.elements = 4}, {.elements = 8}}}), "");
}

TEST(CheckJointTest, SwappedCollectivesOfOneGroupAreRefused) {
  EXPECT_THAT(Joint({{{.elements = 4}, {.elements = 8}}, {{.elements = 8}, {.elements = 4}}}),
              AllOf(HasSubstr("rank 1 (stage1)"), HasSubstr("brings 8 F32"), HasSubstr("group 'a'"),
                    HasSubstr("buffer 0 'x'")));
}

TEST(CheckJointTest, GroupsOnOneStreamInOppositeOrderDeadlock) {
  EXPECT_THAT(Joint({{{.group = 0}, {.group = 1}}, {{.group = 1}, {.group = 0}}}),
              AllOf(HasSubstr("deadlock"), HasSubstr("rank 0"), HasSubstr("rank 1"),
                    HasSubstr("instruction 1"), HasSubstr("buffer 0 'x'")));
}

TEST(CheckJointTest, GroupsOnStreamsOfTheirOwnMayRunInAnyOrder) {
  EXPECT_EQ(Joint({{{.group = 0, .stream = 0}, {.group = 1, .stream = 1}},
                   {{.group = 1, .stream = 1}, {.group = 0, .stream = 0}}}),
            "");
}

TEST(CheckJointTest, WaitsThatCrossBetweenStagesDeadlock) {
  EXPECT_THAT(Joint({{{.group = 0, .stream = 0}, {.group = 1, .stream = 1, .waits = {0}}},
                     {{.group = 1, .stream = 1}, {.group = 0, .stream = 0, .waits = {0}}}}),
              HasSubstr("deadlock"));
}

TEST(CheckJointTest, ACollectiveThatOneStageLacksIsNamed) {
  EXPECT_THAT(Joint({{{}, {}}, {{}}}),
              AllOf(HasSubstr("rank 0"), HasSubstr("instruction 1"), HasSubstr("is number 2")));
}

TEST(CheckJointTest, ASendAndItsReceiveMeet) {
  EXPECT_EQ(Joint({{Send(1), Receive(1)}, {Receive(0), Send(0)}}), "");
}

TEST(CheckJointTest, TwoSendsTowardsEachOtherDeadlockForNothingIsBuffered) {
  const std::string message = Joint({{Send(1), Receive(1)}, {Send(0), Receive(0)}});
  EXPECT_THAT(message, AllOf(HasSubstr("deadlock"), HasSubstr("rank 0 (stage0)"),
                             HasSubstr("rank 1 (stage1)"), HasSubstr("(SEND)"),
                             HasSubstr("(RECEIVE)"), HasSubstr("which waits for")));
}

TEST(CheckJointTest, OnStreamsOfTheirOwnTheyDoNot) {
  EXPECT_EQ(Joint({{Send(1, 0), Receive(1, 1)}, {Send(0, 0), Receive(0, 1)}}), "");
}

TEST(CheckJointTest, AComputationBetweenThemIsPartOfTheCycle) {
  const Step compute = {.what = Step::kCompute, .stream = 2, .waits = {0}};
  const std::string message =
      Joint({{Receive(1, 0), compute, Send(1, 1, {1})}, {Receive(0, 0), compute, Send(0, 1, {1})}});
  EXPECT_THAT(message, AllOf(HasSubstr("deadlock"), HasSubstr("instruction 2 of 'train' (SEND)"),
                             HasSubstr("comes after")));
}

TEST(CheckJointTest, ACircleOfStagesDeadlocks) {
  EXPECT_THAT(
      Joint({{Send(1), Receive(2)}, {Send(2), Receive(0)}, {Send(0), Receive(1)}}),
      AllOf(HasSubstr("deadlock"), HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("rank 2")));
}

TEST(CheckJointTest, ADroppedReceiveIsNamedByItsSend) {
  EXPECT_THAT(Joint({{Send(1), Send(1)}, {Receive(0)}}),
              AllOf(HasSubstr("rank 0"), HasSubstr("instruction 1 of 'train' (SEND)"),
                    HasSubstr("there is only 1 receives")));
}

TEST(CheckJointTest, ADroppedSendIsNamedByItsReceive) {
  EXPECT_THAT(Joint({{Send(1)}, {Receive(0), Receive(0)}}),
              AllOf(HasSubstr("rank 1"), HasSubstr("instruction 1 of 'train' (RECEIVE)"),
                    HasSubstr("there is only 1 sends")));
}

TEST(CheckJointTest, SwappedSendsOfOneSizeAreToldApartByMicroBatch) {
  Step second = Send(1);
  second.micro_batch = 1;
  Step later = Receive(0);
  later.micro_batch = 1;
  EXPECT_EQ(Joint({{Send(1), second}, {Receive(0), later}}), "");
  EXPECT_THAT(Joint({{second, Send(1)}, {Receive(0), later}}),
              AllOf(HasSubstr("micro-batch 1"), HasSubstr("receives"), HasSubstr("buffer 0 'x'")));
}

TEST(CheckJointTest, SizesAtBothEndsMustBeEqual) {
  Step large = Receive(0);
  large.elements = 8;
  EXPECT_THAT(Joint({{Send(1)}, {large}}),
              AllOf(HasSubstr("sends 4 F32"), HasSubstr("receives 8 F32")));
}

TEST(CheckJointTest, StagesMustAgree) {
  const std::vector<v1::Program> alone = {Stage(0, 2, {})};
  EXPECT_THAT(std::string(check::CheckAgree(alone).message()), HasSubstr("stage 0 of 2"));
  const auto disagree = [](void (*change)(v1::Program*)) {
    std::vector<v1::Program> stages = {Stage(0, 2, {}), Stage(1, 2, {})};
    change(&stages[1]);
    return std::string(check::CheckAgree(stages).message());
  };
  EXPECT_EQ(disagree([](v1::Program*) {}), "");
  EXPECT_THAT(disagree([](v1::Program* p) { p->mutable_grid()->set_tensor(2); }),
              HasSubstr("its grid is not"));
  EXPECT_THAT(disagree([](v1::Program* p) { p->mutable_groups(1)->add_stages(0); }),
              HasSubstr("its groups or sequences are not"));
  EXPECT_THAT(disagree([](v1::Program* p) { p->mutable_rules()->set_micro_batches(3); }),
              HasSubstr("its rules are not"));
}

TEST(CheckJointTest, AChannelHasOneStream) {
  const auto streams = [](const std::vector<Step>& steps) {
    const v1::Program program = Stage(0, 3, steps);
    return std::string(check::CheckChannelStreams(program, program.sequences(0)).message());
  };
  EXPECT_EQ(streams({Send(1, 0), Receive(1, 1), Send(2, 2), {.stream = 3}}), "");
  EXPECT_THAT(streams({Send(1, 0), Send(1, 1)}), HasSubstr("transfers of its kind with its peer"));
  EXPECT_THAT(streams({{.stream = 3}, {.stream = 2}}), HasSubstr("a group has one stream"));
}

// ---- time -------------------------------------------------------------------------------------

// What a stage of a pipeline does in one forward and backward pass after the other (1f1b), with
// `computations` instructions a pass.
std::vector<Step> Pipeline(uint32_t stage, uint32_t stages, int micro_batches, int computations) {
  std::vector<Step> steps;
  const auto add = [&](Step step, int micro_batch, uint32_t group) {
    step.micro_batch = micro_batch;
    step.group = group;
    steps.push_back(step);
  };
  const auto pass = [&](int micro_batch, uint32_t group, bool from, uint32_t before, bool to,
                        uint32_t after) {
    // Computation waits for what it received, a send for what it sends; nobody waits for a send.
    const auto before_this = [&] { return static_cast<uint32_t>(steps.size() - 1); };
    if (from) add(Receive(before, 1 + 2 * group), micro_batch, group);
    for (int c = 0; c < computations; ++c) {
      Step compute = {.what = Step::kCompute};
      if (c == 0 && from) compute.waits = {before_this()};
      add(compute, micro_batch, group);
    }
    if (to) add(Send(after, 2 + 2 * group, {before_this()}), micro_batch, group);
  };
  const bool first = stage == 0, last = stage + 1 == stages;
  const int warm_up = std::min<int>(micro_batches, stages - stage);
  int forward = 0, backward = 0;
  while (backward < micro_batches) {
    while (forward < std::min(micro_batches, backward + warm_up)) {
      pass(forward++, 0, !first, stage - 1, !last, stage + 1);
    }
    pass(backward++, 1, !last, stage + 1, !first, stage - 1);
  }
  return steps;
}

std::vector<v1::Program> LargePipeline() {
  std::vector<v1::Program> stages;
  for (uint32_t s = 0; s < 64; ++s) {
    stages.push_back(Stage(s, 64, Pipeline(s, 64, 512, 4)));
    stages.back().add_streams();
  }
  return stages;
}

double Seconds(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The bound is 1 s on the reference machine; other work on the test machine gets a margin of 5.
TEST(CheckJointTest, SixtyFourStagesOf512MicroBatchesAreRunAtOnce) {
  std::vector<v1::Program> stages = LargePipeline();
  absl::Status status;
  EXPECT_LT(Seconds([&] { status = check::CheckTermination(stages); }), 5.0);
  EXPECT_EQ(status, absl::OkStatus());
  // In the middle of the run one stage wants a gradient before it sends the activation that it
  // depends on.
  v1::Sequence* sequence = stages[31].mutable_sequences(0);
  int send = 0, waited = 0;
  for (const v1::Instruction& instruction : sequence->instructions()) {
    if (instruction.transfer().kind() != v1::SEND || instruction.transfer().group() != 0) continue;
    if (instruction.micro_batch() == 300) send = static_cast<int>(instruction.id());
  }
  for (const v1::Instruction& instruction : sequence->instructions()) {
    if (instruction.transfer().kind() != v1::RECEIVE || instruction.transfer().group() != 1)
      continue;
    if (instruction.micro_batch() == 300) waited = static_cast<int>(instruction.id());
  }
  ASSERT_LT(send, waited);
  sequence->mutable_instructions(send)->add_waits(waited);
  EXPECT_LT(Seconds([&] { status = check::CheckTermination(stages); }), 5.0);
  EXPECT_THAT(std::string(status.message()), HasSubstr("deadlock"));
}

}  // namespace
}  // namespace terrace
