// SPDX-License-Identifier: Apache-2.0
#include "proto/program/played_program.h"

#include <utility>

namespace terrace {

PlayedProgram::PlayedProgram(const v1::Program* program, int64_t leave_out) : program_(program) {
  if (!HasLoops(*program)) return;
  auto written = std::make_shared<WrittenOut>(WriteOut(*program, leave_out));
  for (int id = 0; id < program->buffers_size(); ++id) {
    v1::Buffer* buffer = written->program.mutable_buffers(id);
    buffer->set_bytes(program->buffers(id).bytes());
    *buffer->mutable_shape() = program->buffers(id).shape();
  }
  *written->program.mutable_rules() = program->rules();
  for (int s = 0; s < program->sequences_size(); ++s) {
    const LoopIndex index(program->sequences(s));
    v1::Sequence* sequence = written->program.mutable_sequences(s);
    for (v1::Instruction& instruction : *sequence->mutable_instructions()) {
      const WrittenOut::Played& played = written->played[s][instruction.id()];
      instruction.set_micro_batch(index.MicroBatchOf(played.instruction, played.iteration));
    }
  }
  written_ = std::move(written);
}

int PlayedProgram::IndexOf(const v1::Sequence& sequence) const {
  int index = 0;
  while (&program().sequences(index) != &sequence) ++index;
  return index;
}

}  // namespace terrace
