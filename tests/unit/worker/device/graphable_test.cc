// SPDX-License-Identifier: Apache-2.0
#include "worker/device/graphable.h"

#include <gtest/gtest.h>

#include "tests/unit/worker/vm/tiny_program.h"

namespace terrace {
namespace {

using kernels::Op;

constexpr uint32_t kCompute = 0, kOther = 1;

// A load, a computation and an output; on the second stream whatever a test adds.
class Step {
 public:
  explicit Step(v1::StreamKind other) : tiny({v1::COMPUTE, other}) {
    x = tiny.Buffer(v1::F32, {4});
    host = tiny.Buffer(v1::F32, {4}, v1::HOST);
    tiny.Input(kCompute, v1::LOAD_SCHEDULE, {x});
    tiny.Compute(kCompute, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, x}});
    tiny.Output(kCompute, v1::LOSS_TOTAL, x);
  }
  std::string WhyNot() { return WhyNotGraphable(tiny.program(), tiny.program().sequences(0)); }

  TinyProgram tiny;
  uint32_t x = 0, host = 0;
};

TEST(GraphableTest, InputsComputationsCopiesAndOutputsOfADeviceAre) {
  Step down(v1::DEVICE_TO_HOST);
  down.tiny.Copy(kOther, v1::TO_HOST, {{down.x, down.host}});
  EXPECT_EQ(down.WhyNot(), "");
  Step up(v1::HOST_TO_DEVICE);
  up.tiny.Copy(kOther, v1::TO_DEVICE, {{up.host, up.x}});
  EXPECT_EQ(up.WhyNot(), "");
}

TEST(GraphableTest, WhatAThreadOfTheHostDoesStandsAgainstItByName) {
  Step host(v1::HOST_COMPUTE);
  host.tiny.Compute(kOther, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, host.host}});
  EXPECT_EQ(host.WhyNot(), "instruction 3 (fill) runs on a thread of the host");
  Step nvme(v1::NVME_READ);
  nvme.tiny.Copy(kOther, v1::NVME_LOAD, {{nvme.x, nvme.host}});
  EXPECT_EQ(nvme.WhyNot(),
            "instruction 3 (copy) reads or writes NVMe, which a thread of the host does");
}

// Also on a stream that a device executes: the call blocks.
TEST(GraphableTest, CommunicationStandsAgainstIt) {
  Step sum(v1::COLLECTIVE);
  sum.tiny.AllReduce(kCompute, sum.x);
  sum.tiny.AllReduce(kOther, sum.x);
  EXPECT_EQ(sum.WhyNot(),
            "instruction 3 (all_reduce) is communication, which a thread of the host waits for");
  Step message(v1::COLLECTIVE);
  message.tiny.Transfer(kOther, v1::SEND, 0, 1, message.x);
  EXPECT_EQ(message.WhyNot(),
            "instruction 3 (send) is a message, which a thread of the host waits for");
}

// In its own stream and of a group that can.
TEST(GraphableTest, CollectivesOfAGroupThatCanBeCapturedAre) {
  Step sum(v1::COLLECTIVE);
  sum.tiny.AllReduce(kOther, sum.x);
  const v1::Program& program = sum.tiny.program();
  EXPECT_EQ(WhyNotGraphable(program, program.sequences(0), {true}), "");
  EXPECT_NE(WhyNotGraphable(program, program.sequences(0), {false}), "");
  EXPECT_TRUE(HasCollectives(program.sequences(0)));
  Step launched(v1::COLLECTIVE);
  launched.tiny.AllReduce(kCompute, launched.x);
  EXPECT_NE(WhyNotGraphable(launched.tiny.program(), launched.tiny.program().sequences(0), {true}),
            "");
  Step message(v1::COLLECTIVE);
  message.tiny.Transfer(kOther, v1::SEND, 0, 1, message.x);
  EXPECT_NE(WhyNotGraphable(message.tiny.program(), message.tiny.program().sequences(0), {true}),
            "");
  EXPECT_FALSE(HasCollectives(message.tiny.program().sequences(0)));
}

TEST(GraphableTest, MemoryThatMovesFromStepToStepStandsAgainstIt) {
  Step step(v1::DEVICE_TO_HOST);
  step.tiny.program().set_allocator("caching");
  EXPECT_EQ(step.WhyNot(), "layout.allocator is caching: step buffers lie elsewhere in every step");
}

TEST(GraphableTest, ASequenceThatComputesNothingIsNoGraph) {
  TinyProgram tiny({v1::COMPUTE, v1::HOST_TO_DEVICE}, "restore");
  const uint32_t x = tiny.Buffer(v1::F32, {4}), host = tiny.Buffer(v1::F32, {4}, v1::HOST);
  tiny.Copy(kOther, v1::TO_DEVICE, {{host, x}});
  EXPECT_EQ(WhyNotGraphable(tiny.program(), tiny.program().sequences(0)), "it computes nothing");
}

TEST(GraphableTest, OnlyTheFirstObstacleIsNamed) {
  Step step(v1::HOST_COMPUTE);
  step.tiny.AllReduce(kCompute, step.x);
  step.tiny.Compute(kOther, Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, step.host}});
  EXPECT_EQ(step.WhyNot(),
            "instruction 3 (all_reduce) is communication, which a thread of the host waits for");
}

}  // namespace
}  // namespace terrace
