// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/coordinator/simulator/simulate_programs.h"

#include <gtest/gtest.h>

namespace terrace {

v1::HardwareProfile OneElementASecond() {
  v1::HardwareProfile profile;
  profile.set_f32_flops_per_second(1e12);
  profile.set_bf16_flops_per_second(1e12);
  profile.set_memory_bytes_per_second(4);
  profile.set_link_bytes_per_second(4);
  return profile;
}

v1::Program MakeProgram(const std::vector<Line>& lines) {
  v1::Program program;
  program.add_streams()->set_kind(v1::COMPUTE);
  program.add_streams()->set_kind(v1::COLLECTIVE);
  program.mutable_grid()->set_data_shard(2);
  program.add_groups()->add_axes(v1::DATA_SHARD);
  v1::Sequence* sequence = program.add_sequences();
  sequence->set_name("train");
  for (const Line& line : lines) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(sequence->instructions_size() - 1);
    instruction->set_stream(line.reduce ? 1 : 0);
    instruction->set_phase(line.phase);
    instruction->mutable_waits()->Assign(line.waits.begin(), line.waits.end());
    if (line.reduce) {
      instruction->mutable_collective()->set_kind(v1::ALL_REDUCE);
    } else {
      instruction->mutable_compute()->set_op("fill");
      instruction->mutable_compute()->mutable_fill();
    }
    v1::Operand* operand = instruction->add_operands();
    operand->set_access(line.reduce ? v1::UPDATE : v1::WRITE);
    operand->set_dtype(v1::F32);
    operand->add_shape(line.seconds);
  }
  return program;
}

Simulation SimulateOrDie(const v1::Program& program) {
  const auto simulation = Simulate(program, "train", OneElementASecond());
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.value_or(Simulation{});
}

}  // namespace terrace
