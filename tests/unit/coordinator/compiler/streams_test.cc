// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/streams.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

// before[i][j]: instruction i has finished when j starts. `skip_of`, `skip_wait`: one wait to leave
// out.
std::vector<std::vector<bool>> HappensBefore(const v1::Sequence& sequence, int skip_of = -1,
                                             int skip_wait = -1) {
  const int n = sequence.instructions_size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  for (int j = 0; j < n; ++j) {
    const auto order = [&](int i) {
      before[i][j] = true;
      for (int k = 0; k < i; ++k) {
        if (before[k][i]) before[k][j] = true;
      }
    };
    for (int i = j - 1; i >= 0; --i) {
      if (sequence.instructions(i).stream() != sequence.instructions(j).stream()) continue;
      order(i);
      break;
    }
    const auto& waits = sequence.instructions(j).waits();
    for (int w = 0; w < waits.size(); ++w) {
      if (j != skip_of || w != skip_wait) order(static_cast<int>(waits[w]));
    }
  }
  return before;
}

bool Overlap(const v1::Operand& a, const v1::Operand& b) {
  if (a.access() == v1::ACCESS_UNSPECIFIED || b.access() == v1::ACCESS_UNSPECIFIED) return false;
  if (a.buffer() != b.buffer()) return false;
  if (a.access() == v1::READ && b.access() == v1::READ) return false;
  const auto bytes = [](const v1::Operand& operand) {
    int64_t row = 4;  // an upper bound of every element size here
    for (int d = 1; d < operand.shape_size(); ++d) row *= operand.shape(d);
    return operand.shape(0) * std::max(row, operand.row_stride() * 4);
  };
  return a.offset() < b.offset() + bytes(b) && b.offset() < a.offset() + bytes(a);
}

bool Conflict(const v1::Instruction& a, const v1::Instruction& b) {
  for (const v1::Operand& x : a.operands()) {
    for (const v1::Operand& y : b.operands()) {
      if (Overlap(x, y)) return true;
    }
  }
  return false;
}

std::vector<std::pair<int, int>> Conflicts(const v1::Sequence& sequence) {
  std::vector<std::pair<int, int>> conflicts;
  for (int j = 0; j < sequence.instructions_size(); ++j) {
    for (int i = 0; i < j; ++i) {
      const auto& a = sequence.instructions(i);
      const auto& b = sequence.instructions(j);
      if (a.stream() != b.stream() && Conflict(a, b)) conflicts.emplace_back(i, j);
    }
  }
  return conflicts;
}

class StreamsTest : public testing::TestWithParam<std::string> {
 protected:
  const v1::Program program_ =
      CompileTiny({.family = GetParam(), .data_parallel = 2, .micro_batches = 2});
};

TEST_P(StreamsTest, ConflictingAccessesAreOrdered) {
  for (const v1::Sequence& sequence : program_.sequences()) {
    const auto before = HappensBefore(sequence);
    const auto conflicts = Conflicts(sequence);
    EXPECT_FALSE(conflicts.empty());
    for (const auto& [i, j] : conflicts) {
      EXPECT_TRUE(before[i][j]) << sequence.instructions(i).text() << " and "
                                << sequence.instructions(j).text();
    }
  }
}

TEST_P(StreamsTest, NoWaitIsImpliedByTheOthers) {
  int waits = 0;
  for (const v1::Sequence& sequence : program_.sequences()) {
    for (int j = 0; j < sequence.instructions_size(); ++j) {
      for (int w = 0; w < sequence.instructions(j).waits_size(); ++w) {
        const int i = static_cast<int>(sequence.instructions(j).waits(w));
        EXPECT_FALSE(HappensBefore(sequence, j, w)[i][j]) << sequence.instructions(j).text();
        ++waits;
      }
    }
  }
  EXPECT_GT(waits, 4);
}

TEST_P(StreamsTest, ReductionsRunBesideTheBackwardPass) {
  const v1::Sequence& train = SequenceOf(program_, "train");
  const auto before = HappensBefore(train);
  bool overlaps = false;
  for (int i = 0; i < train.instructions_size(); ++i) {
    if (!train.instructions(i).has_collective()) continue;
    for (int j = i + 1; j < train.instructions_size(); ++j) {
      if (train.instructions(j).phase() == v1::BACKWARD && train.instructions(j).has_compute()) {
        overlaps = overlaps || !before[i][j];
      }
    }
  }
  EXPECT_TRUE(overlaps);
}

INSTANTIATE_TEST_SUITE_P(Families, StreamsTest, testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace
