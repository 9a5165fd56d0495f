// Ranks together: agreement of collectives, and deadlock under rendezvous.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/check/joint.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/mutate.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// One collective of `elements` f32 in `group` on `stream`.
struct Step {
  uint32_t group = 0;
  uint32_t stream = 0;
  int64_t elements = 4;
  std::vector<uint32_t> waits;
};

// Two ranks, one a stage, that share groups "a" and "b".
v1::Program Stage(uint32_t stage, const std::vector<Step>& steps) {
  v1::Program program;
  program.set_stage(stage);
  program.set_stages(2);
  program.set_ranks(2);
  for (const char* name : {"a", "b"}) {
    v1::Group* group = program.add_groups();
    group->set_name(name);
    for (uint32_t rank : {0, 1})
      (rank == 0 ? group->add_instances() : group->mutable_instances(0))->add_rank(rank);
    program.add_streams()->set_name(name);
  }
  v1::Sequence* sequence = program.add_sequences();
  sequence->set_name("train");
  for (const Step& step : steps) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(sequence->instructions_size() - 1);
    instruction->set_stream(step.stream);
    instruction->mutable_collective()->set_kind(v1::ALL_REDUCE);
    instruction->mutable_collective()->set_group(step.group);
    instruction->mutable_waits()->Assign(step.waits.begin(), step.waits.end());
    v1::Operand* operand = instruction->add_operands();
    operand->set_access(v1::UPDATE);
    operand->set_dtype(v1::F32);
    operand->add_shape(step.elements);
  }
  return program;
}

std::string Joint(const std::vector<Step>& first, const std::vector<Step>& second) {
  const std::vector<v1::Program> stages = {Stage(0, first), Stage(1, second)};
  return std::string(check::CheckJoint(stages).message());
}

TEST(CheckJointTest, TheSameCollectivesInTheSameOrderTerminate) {
  EXPECT_EQ(Joint({{.elements = 4}, {.elements = 8}}, {{.elements = 4}, {.elements = 8}}), "");
}

TEST(CheckJointTest, SwappedCollectivesOfOneGroupAreRefused) {
  EXPECT_THAT(Joint({{.elements = 4}, {.elements = 8}}, {{.elements = 8}, {.elements = 4}}),
              AllOf(HasSubstr("rank 1"), HasSubstr("ALL_REDUCE of 8 F32"), HasSubstr("group 'a'")));
}

TEST(CheckJointTest, GroupsOnOneStreamInOppositeOrderDeadlock) {
  EXPECT_THAT(Joint({{.group = 0}, {.group = 1}}, {{.group = 1}, {.group = 0}}),
              HasSubstr("deadlock: rank 0"));
}

TEST(CheckJointTest, GroupsOnStreamsOfTheirOwnMayRunInAnyOrder) {
  EXPECT_EQ(Joint({{.group = 0, .stream = 0}, {.group = 1, .stream = 1}},
                  {{.group = 1, .stream = 1}, {.group = 0, .stream = 0}}),
            "");
}

TEST(CheckJointTest, WaitsThatCrossBetweenRanksDeadlock) {
  EXPECT_THAT(Joint({{.group = 0, .stream = 0}, {.group = 1, .stream = 1, .waits = {0}}},
                    {{.group = 1, .stream = 1}, {.group = 0, .stream = 0, .waits = {0}}}),
              HasSubstr("deadlock"));
}

TEST(CheckJointTest, ACollectiveThatOneRankLacksDeadlocks) {
  EXPECT_THAT(Joint({{}, {}}, {{}}),
              AllOf(HasSubstr("deadlock: rank 0"), HasSubstr("instruction 1")));
}

TEST(CheckJointTest, AllRanksOfACompiledProgramTerminateTogether) {
  const v1::Program program = CompileTiny({.data_parallel = 4, .micro_batches = 2});
  EXPECT_TRUE(check::CheckJoint({program}).ok());
}

TEST(CheckJointTest, StagesMustAgreeOnTheirNumber) {
  const v1::Program program = Stage(0, {});
  EXPECT_THAT(std::string(check::CheckJoint({program}).message()), HasSubstr("stage 0 of 2"));
}

}  // namespace
}  // namespace terrace
