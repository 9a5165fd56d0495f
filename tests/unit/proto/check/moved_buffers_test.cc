// The checker on shared space, against an oracle.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/proto/check/checked_program.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// What the checker must decide about shared space, in the slowest and plainest way: reachability
// between all pairs of instructions, then all pairs of buffers and all pairs of their accesses.
class Oracle {
 public:
  Oracle(const v1::Program& program, const v1::Sequence& sequence)
      : program_(program), touches_(program.buffers_size()) {
    const int count = sequence.instructions_size();
    before_.assign(count, std::vector<bool>(count, false));
    for (int j = 0; j < count; ++j) {
      std::set<int> direct(sequence.instructions(j).waits().begin(),
                           sequence.instructions(j).waits().end());
      for (int i = j - 1; i >= 0; --i) {
        if (sequence.instructions(i).stream() == sequence.instructions(j).stream()) {
          direct.insert(i);
          break;
        }
      }
      for (int i : direct) {
        before_[i][j] = true;
        for (int k = 0; k < i; ++k) before_[k][j] = before_[k][j] || before_[k][i];
      }
      for (const v1::Operand& operand : sequence.instructions(j).operands()) Touch(operand, j);
      Touch(sequence.instructions(j).compute().workspace(), j);
    }
  }

  bool SpaceIsSafe() const {
    for (int a = 0; a < program_.buffers_size(); ++a) {
      for (int b = a + 1; b < program_.buffers_size(); ++b) {
        if (Meet(program_.buffers(a), program_.buffers(b)) && !AllBefore(a, b) && !AllBefore(b, a))
          return false;
      }
    }
    return true;
  }

 private:
  void Touch(const v1::Operand& operand, int position) {
    if (operand.access() != v1::ACCESS_UNSPECIFIED) touches_[operand.buffer()].push_back(position);
  }
  static bool Meet(const v1::Buffer& a, const v1::Buffer& b) {
    return a.offset() < b.offset() + b.bytes() && b.offset() < a.offset() + a.bytes();
  }
  bool AllBefore(int a, int b) const {
    for (int i : touches_[a]) {
      for (int j : touches_[b]) {
        if (!before_[i][j]) return false;
      }
    }
    return true;
  }

  const v1::Program& program_;
  std::vector<std::vector<bool>> before_;
  std::vector<std::vector<int>> touches_;
};

TEST(ProgramCheckTest, MovedBuffersAreJudgedAsByTheOracle) {
  const v1::Program program = TwoRanks();
  int64_t step_begin = program.arenas(0).bytes();
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() == v1::STEP) step_begin = std::min(step_begin, buffer.offset());
  }
  std::mt19937 random(7);
  int refused = 0, accepted = 0;
  for (int id = 0; id < program.buffers_size(); ++id) {
    const v1::Buffer& buffer = program.buffers(id);
    if (buffer.lifetime() != v1::STEP || buffer.sequence() != "train") continue;
    v1::Program moved = program;
    const int64_t room = program.arenas(0).bytes() - buffer.bytes() - step_begin;
    moved.mutable_buffers(id)->set_offset(step_begin +
                                          static_cast<int64_t>(random() % (room / 256 + 1)) * 256);
    const bool safe = Oracle(moved, moved.sequences(0)).SpaceIsSafe();
    const absl::Status status = CheckProgram(moved);
    EXPECT_EQ(status.ok(), safe) << moved.buffers(id).name() << " at " << moved.buffers(id).offset()
                                 << ": " << status;
    if (!safe) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("shares bytes with"));
    }
    ++(safe ? accepted : refused);
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(accepted, 0);
}

// An instruction that reads one buffer and writes another is not "before" itself.
TEST(ProgramCheckTest, OperandsOfOneInstructionShareNoBytes) {
  v1::Program program = TwoRanks();
  const v1::Instruction& cast = *First("matmul", &program);
  const uint32_t in = cast.operands(0).buffer();
  const uint32_t out = cast.operands(2).buffer();
  program.mutable_buffers(out)->set_offset(program.buffers(in).offset());
  EXPECT_THAT(Message(program), HasSubstr("shares bytes with"));
}

}  // namespace
}  // namespace terrace
