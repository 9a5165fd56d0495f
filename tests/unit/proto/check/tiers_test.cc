// Programs whose memory lies on several tiers: what the compiler makes passes, and every rule about
// tiers refuses a program that was broken in one place.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/mutate.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// All on NVMe, so that there are copies of every kind.
TinyJob OnNvme() {
  TinyJob job = {.family = "gpt2", .precision = "bf16", .data_parallel = 2, .micro_batches = 2};
  job.sizes.layers = 1;
  job.parameter = job.gradient = job.optimizer = v1::NVME;
  return job;
}

TEST(TierCheckTest, WhatTheCompilerMakesPasses) {
  for (const std::string& family : Families()) {
    for (v1::Tier tier : {v1::HOST, v1::NVME}) {
      for (uint32_t zero : {0u, 1u, 2u, 3u}) {
        TinyJob job = OnNvme();
        job.family = family;
        job.zero_stage = zero;
        // Weights that every rank holds whole beside the shards stay on the device.
        job.parameter = zero == 1 || zero == 2 ? v1::DEVICE : tier;
        job.gradient = job.optimizer = job.activation = tier;
        EXPECT_EQ(CheckPrograms(CompileStages(job)), absl::OkStatus()) << Describe(job);
      }
    }
  }
}

v1::Instruction* FirstCopy(v1::CopyKind kind, v1::Program* program) {
  for (v1::Instruction& instruction : *program->mutable_sequences(0)->mutable_instructions()) {
    if (instruction.copy().kind() == kind) return &instruction;
  }
  return nullptr;
}

v1::Instruction* FirstOnHost(v1::Program* program) {
  for (v1::Instruction& instruction : *program->mutable_sequences(0)->mutable_instructions()) {
    if (program->streams(instruction.stream()).kind() == v1::HOST_COMPUTE) return &instruction;
  }
  return nullptr;
}

uint32_t StreamOf(v1::StreamKind kind, const v1::Program& program) {
  uint32_t stream = 0;
  while (program.streams(stream).kind() != kind) ++stream;
  return stream;
}

struct Breakage {
  const char* name;
  void (*apply)(v1::Program*);
  const char* says;
};

class BrokenTierTest : public testing::TestWithParam<Breakage> {};

TEST_P(BrokenTierTest, IsRefusedWithTheRule) {
  v1::Program program = CompileTiny(OnNvme());
  ASSERT_EQ(CheckProgram(program), absl::OkStatus());
  GetParam().apply(&program);
  EXPECT_THAT(std::string(CheckProgram(program).message()), HasSubstr(GetParam().says));
}

const Breakage kBreakages[] = {
    {"FirstArenaOnHost", [](v1::Program* p) { p->mutable_arenas(0)->set_tier(v1::HOST); },
     "the first is DEVICE"},
    {"TwoArenasOfATier", [](v1::Program* p) { p->mutable_arenas(2)->set_tier(v1::HOST); },
     "is the second on HOST"},
    {"HostOverLimit", [](v1::Program* p) { p->set_host_limit_bytes(p->arenas(1).bytes() - 1); },
     "host_limit_bytes is"},
    {"NvmeOverLimit", [](v1::Program* p) { p->set_nvme_limit_bytes(p->arenas(2).bytes() - 1); },
     "nvme_limit_bytes is"},
    {"NegativeLimit", [](v1::Program* p) { p->set_nvme_limit_bytes(-1); }, "must not be negative"},
    {"BufferInTheMiddleOfAPage",
     [](v1::Program* p) {
       for (v1::Buffer& buffer : *p->mutable_buffers()) {
         if (buffer.arena() == 1) return buffer.set_offset(buffer.offset() + 256);
       }
     },
     "multiple of 4096 on HOST"},
    {"CopyOfUnknownKind",
     [](v1::Program* p) {
       FirstCopy(v1::NVME_LOAD, p)->mutable_copy()->set_kind(static_cast<v1::CopyKind>(9));
     },
     "copy kind 9 does not exist"},
    {"CopyWithoutPair",
     [](v1::Program* p) { FirstCopy(v1::TO_DEVICE, p)->mutable_operands()->RemoveLast(); },
     "must have pairs"},
    {"CopyThatUpdates",
     [](v1::Program* p) {
       FirstCopy(v1::TO_DEVICE, p)->mutable_operands(1)->set_access(v1::UPDATE);
     },
     "must have access READ and WRITE"},
    {"CopyOfOtherLength",
     [](v1::Program* p) {
       FirstCopy(v1::TO_DEVICE, p)->mutable_operands(1)->clear_shape();
       FirstCopy(v1::TO_DEVICE, p)->mutable_operands(1)->add_shape(1);
     },
     "must hold the same"},
    {"CopyOfOtherType",
     [](v1::Program* p) { FirstCopy(v1::TO_DEVICE, p)->mutable_operands(1)->set_dtype(v1::I32); },
     "must hold the same"},
    {"CopyOfPartOfAPage",
     [](v1::Program* p) {
       for (v1::Operand& operand : *FirstCopy(v1::NVME_LOAD, p)->mutable_operands()) {
         operand.clear_shape();
         operand.add_shape(1000);
       }
     },
     "multiples of 4096"},
    {"CopyOverItself",
     [](v1::Program* p) {
       v1::Instruction* copy = FirstCopy(v1::NVME_LOAD, p);
       const v1::Operand from = copy->operands(0), to = copy->operands(1);
       *copy->add_operands() = from;
       *copy->add_operands() = to;
     },
     "all of a copy is in flight together"},
    {"CopyOnAStreamOfAnotherKind",
     [](v1::Program* p) {
       v1::Instruction* copy = FirstCopy(v1::NVME_LOAD, p);
       copy->set_stream(StreamOf(v1::NVME_WRITE, *p));
     },
     "must be NVME_READ"},
    {"CopyFromAnotherTier",
     [](v1::Program* p) {
       v1::Instruction* copy = FirstCopy(v1::TO_DEVICE, p);
       copy->mutable_operands(1)->set_buffer(FirstCopy(v1::NVME_STORE, p)->operands(0).buffer());
     },
     "must lie on DEVICE"},
    {"HostOperandOfADeviceOperation",
     [](v1::Program* p) { FirstOnHost(p)->set_stream(StreamOf(v1::COMPUTE, *p)); },
     "lies on HOST, must lie on DEVICE"},
    {"ComputationOnACopyStream",
     [](v1::Program* p) {
       FirstOnHost(p)->set_stream(StreamOf(v1::DEVICE_TO_HOST, *p));
       DropWaitsInsideStreams(p->mutable_sequences(0));
     },
     "must be COMPUTE or HOST_COMPUTE"},
};

INSTANTIATE_TEST_SUITE_P(OneChange, BrokenTierTest, testing::ValuesIn(kBreakages),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
