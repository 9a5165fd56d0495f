// Ways to break a program, for tests of what must notice.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

// Gives instructions ids by position again after `moved` (old id -> new id, -1: gone); a wait for
// what is gone is dropped.
inline void Renumber(const std::vector<int>& moved, v1::Sequence* sequence) {
  for (int i = 0; i < sequence->instructions_size(); ++i) {
    v1::Instruction* instruction = sequence->mutable_instructions(i);
    instruction->set_id(i);
    std::vector<uint32_t> waits;
    for (uint32_t wait : instruction->waits()) {
      if (moved[wait] >= 0) waits.push_back(moved[wait]);
    }
    instruction->mutable_waits()->Assign(waits.begin(), waits.end());
  }
}

// The next instruction of its stream inherits what it waited for, so that order stays as it was.
inline void RemoveInstruction(int position, v1::Sequence* sequence) {
  const v1::Instruction gone = sequence->instructions(position);
  std::vector<int> moved;
  for (int i = 0; i < sequence->instructions_size(); ++i) {
    moved.push_back(i == position ? -1 : i > position ? i - 1 : i);
  }
  for (int i = position + 1; i < sequence->instructions_size(); ++i) {
    if (sequence->instructions(i).stream() != gone.stream()) continue;
    sequence->mutable_instructions(i)->mutable_waits()->MergeFrom(gone.waits());
    break;
  }
  sequence->mutable_instructions()->DeleteSubrange(position, 1);
  Renumber(moved, sequence);
}

// A second copy directly behind the first, with the same waits; who waited for the first now waits
// for the second.
inline void RepeatInstruction(int position, v1::Sequence* sequence) {
  std::vector<int> moved;
  for (int i = 0; i < sequence->instructions_size(); ++i)
    moved.push_back(i >= position ? i + 1 : i);
  *sequence->add_instructions() = sequence->instructions(position);
  for (int i = sequence->instructions_size() - 1; i > position + 1; --i) {
    sequence->mutable_instructions()->SwapElements(i, i - 1);
  }
  Renumber(moved, sequence);
}

// After instructions changed their streams: inside one nobody waits.
inline void DropWaitsInsideStreams(v1::Sequence* sequence) {
  for (v1::Instruction& instruction : *sequence->mutable_instructions()) {
    std::vector<uint32_t> waits;
    for (uint32_t wait : instruction.waits()) {
      if (sequence->instructions(wait).stream() != instruction.stream()) waits.push_back(wait);
    }
    instruction.mutable_waits()->Assign(waits.begin(), waits.end());
  }
}

// The first instruction of this op ("matmul"), or -1.
inline int FindOp(const v1::Sequence& sequence, const std::string& op, int from = 0) {
  for (int i = from; i < sequence.instructions_size(); ++i) {
    if (sequence.instructions(i).compute().op() == op) return i;
  }
  return -1;
}

inline int FindCollective(const v1::Sequence& sequence, int from = 0) {
  for (int i = from; i < sequence.instructions_size(); ++i) {
    if (sequence.instructions(i).has_collective()) return i;
  }
  return -1;
}

// Sets one of the scalar fields that reflection finds below `message` to an extreme value.
inline void CorruptOneField(std::mt19937* random, google::protobuf::Message* message) {
  using google::protobuf::FieldDescriptor;
  const auto* reflection = message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  if (fields.empty()) return;
  const FieldDescriptor* field = fields[(*random)() % fields.size()];
  const int64_t values[] = {0,
                            1,
                            -1,
                            255,
                            1 << 20,
                            int64_t{1} << 40,
                            std::numeric_limits<int64_t>::max(),
                            std::numeric_limits<int64_t>::min()};
  const int64_t value = values[(*random)() % std::size(values)];
  const int count = field->is_repeated() ? reflection->FieldSize(*message, field) : 0;
  const int index = count > 0 ? static_cast<int>((*random)() % count) : 0;
  if (field->is_map()) return;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (field->is_repeated()) {
        if ((*random)() % 50 == 0) {
          reflection->SwapElements(message, field, index, static_cast<int>((*random)() % count));
        } else {
          CorruptOneField(random, reflection->MutableRepeatedMessage(message, field, index));
        }
      } else {
        CorruptOneField(random, reflection->MutableMessage(message, field));
      }
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      if (!field->is_repeated()) reflection->SetInt32(message, field, static_cast<int32_t>(value));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      if (field->is_repeated()) {
        reflection->SetRepeatedUInt32(message, field, index, static_cast<uint32_t>(value));
      } else {
        reflection->SetUInt32(message, field, static_cast<uint32_t>(value));
      }
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      if (field->is_repeated()) {
        reflection->SetRepeatedInt64(message, field, index, value);
      } else {
        reflection->SetInt64(message, field, value);
      }
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      if (!field->is_repeated()) reflection->SetEnumValue(message, field, static_cast<int>(value));
      break;
    default:
      reflection->ClearField(message, field);
  }
}

}  // namespace terrace
