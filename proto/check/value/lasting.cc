// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/lasting.h"

#include <string>

#include "proto/check/instruction/refuse.h"
#include "proto/program/sequences.h"

namespace terrace::check {
namespace {

// What "restore" may make: persistent, but neither state nor a table that nobody writes.
std::vector<bool> MadeOfState(const v1::Program& program) {
  std::vector<bool> made(program.buffers_size(), false);
  for (const v1::Buffer& buffer : program.buffers()) {
    made[buffer.id()] = buffer.lifetime() == v1::PERSISTENT;
  }
  for (const v1::StateRange& range : program.state()) made[range.buffer()] = false;
  for (const v1::RopeTable& table : program.rope_tables()) made[table.buffer()] = false;
  return made;
}

// A read of columns counts as a read of everything between its first byte and its last, as in
// flow.h. A write of columns does not count as a write of the bytes between them.
void Find(const std::vector<bool>& made, const CheckedSequence& train,
          std::vector<ByteMap>* found) {
  std::vector<ByteMap> written(made.size());
  for (const CheckedInstruction& instruction : train.instructions) {
    for (const Access& access : instruction.accesses) {
      if (!access.reads || !made[access.buffer]) continue;
      written[access.buffer].ForEach({access.offset, access.end()},
                                     [&](const ByteRange& bytes, int known) {
                                       if (known == ByteMap::kNone) {
                                         (*found)[access.buffer].Set(bytes, 1);
                                       }
                                     });
    }
    for (const Access& access : instruction.accesses) {
      if (!access.writes || !made[access.buffer] || access.rows > 1) continue;
      written[access.buffer].Set({access.offset, access.end()}, 1);
    }
  }
}

}  // namespace

std::vector<ByteMap> FoundByTraining(const v1::Program& program,
                                     const std::vector<CheckedSequence>& sequences) {
  const std::vector<bool> made = MadeOfState(program);
  std::vector<ByteMap> found(made.size());
  for (const CheckedSequence& sequence : sequences) {
    if (IsTrain(sequence.sequence->name())) Find(made, sequence, &found);
  }
  return found;
}

absl::Status CheckRenewed(const v1::Program& program, const CheckedSequence& train,
                          const std::vector<ByteMap>& found, const Flow& restored,
                          const Flow& flow) {
  absl::Status status;
  const auto compare = [&](uint32_t buffer, const ByteRange& bytes, int before) {
    Value expected;
    if (before != ByteMap::kNone) {
      expected = restored.values()[before];
      expected.updated = expected.role == Value::kState;
    }
    flow.content(buffer).ForEach(bytes, [&](const ByteRange& piece, int after) {
      const bool same = before == ByteMap::kNone
                            ? after == ByteMap::kNone
                            : after != ByteMap::kNone && flow.values()[after] == expected;
      if (same || !status.ok()) return;
      status = Refuse("'", train.sequence->name(), "' finds byte ", piece.begin, " of ",
                      BufferText(program, buffer),
                      " as 'restore' makes it of the state, and must leave there the same of the "
                      "updated state");
    });
  };
  for (uint32_t buffer = 0; buffer < found.size() && status.ok(); ++buffer) {
    if (found[buffer].empty()) continue;
    found[buffer].ForEach(
        {0, program.buffers(static_cast<int>(buffer)).bytes()},
        [&](const ByteRange& bytes, int is_found) {
          if (is_found == ByteMap::kNone) return;
          restored.content(buffer).ForEach(
              bytes, [&](const ByteRange& piece, int before) { compare(buffer, piece, before); });
        });
  }
  return status;
}

}  // namespace terrace::check
