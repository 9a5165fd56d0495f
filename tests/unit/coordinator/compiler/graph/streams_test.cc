// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/graph/streams.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

// before[j][i]: instruction i has finished when j starts.
std::vector<std::vector<bool>> HappensBefore(const v1::Sequence& sequence) {
  const int n = sequence.instructions_size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  for (int j = 0; j < n; ++j) {
    const auto order = [&](int i) {
      if (before[j][i]) return;
      before[j][i] = true;
      for (int k = 0; k < i; ++k) {
        if (before[i][k]) before[j][k] = true;
      }
    };
    for (int i = j - 1; i >= 0; --i) {
      if (sequence.instructions(i).stream() != sequence.instructions(j).stream()) continue;
      order(i);
      break;
    }
    for (uint32_t wait : sequence.instructions(j).waits()) order(static_cast<int>(wait));
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

// True when instruction j follows what wait number w of it names without that wait.
bool ReachedWithout(const v1::Sequence& sequence, int j, int w) {
  const int target = static_cast<int>(sequence.instructions(j).waits(w));
  std::vector<bool> seen(j + 1, false);
  std::vector<int> open = {j};
  while (!open.empty()) {
    const int at = open.back();
    open.pop_back();
    if (at == target) return true;
    if (at < target || seen[at]) continue;
    seen[at] = true;
    const v1::Instruction& instruction = sequence.instructions(at);
    for (int i = at - 1; i >= 0; --i) {
      if (sequence.instructions(i).stream() != instruction.stream()) continue;
      open.push_back(i);
      break;
    }
    for (int k = 0; k < instruction.waits_size(); ++k) {
      if (at != j || k != w) open.push_back(static_cast<int>(instruction.waits(k)));
    }
  }
  return false;
}

class StreamsTest : public testing::TestWithParam<TinyJob> {
 protected:
  const std::vector<v1::Program> programs_ = CompileStages(GetParam());
};

TEST_P(StreamsTest, ConflictingAccessesAreOrdered) {
  for (const v1::Program& program : programs_) {
    for (const v1::Sequence& sequence : program.sequences()) {
      const auto before = HappensBefore(sequence);
      for (const auto& [i, j] : Conflicts(sequence)) {
        EXPECT_TRUE(before[j][i]) << sequence.instructions(i).text() << " and "
                                  << sequence.instructions(j).text();
      }
      EXPECT_EQ(sequence.name() == "restore", Conflicts(sequence).empty());
    }
  }
}

TEST_P(StreamsTest, NoWaitIsImpliedByTheOthers) {
  int waits = 0;
  for (const v1::Program& program : programs_) {
    for (const v1::Sequence& sequence : program.sequences()) {
      for (int j = 0; j < sequence.instructions_size(); ++j) {
        for (int w = 0; w < sequence.instructions(j).waits_size(); ++w) {
          const int i = static_cast<int>(sequence.instructions(j).waits(w));
          EXPECT_FALSE(ReachedWithout(sequence, j, w))
              << sequence.instructions(i).text() << " before " << sequence.instructions(j).text();
          ++waits;
        }
      }
    }
  }
  EXPECT_GT(waits, 4);
}

// Instructions of a group, or of one direction to one stage, run one after the other; those of
// different ones beside each other.
TEST_P(StreamsTest, EveryGroupAndEveryDirectionHasItsStream) {
  for (const v1::Program& program : programs_) {
    std::map<std::string, std::set<uint32_t>> streams;  // by what runs on them
    for (const v1::Sequence& sequence : program.sequences()) {
      for (const v1::Instruction& instruction : sequence.instructions()) {
        std::string what = instruction.has_input() ? "input" : "compute";
        if (instruction.has_collective()) {
          what = absl::StrCat("group ", instruction.collective().group());
        } else if (instruction.has_transfer()) {
          const v1::TransferOp& transfer = instruction.transfer();
          what = absl::StrCat("transfer ", transfer.group(), " ", transfer.kind(), " ",
                              transfer.peer_stage());
        }
        streams[what].insert(instruction.stream());
      }
    }
    std::set<uint32_t> all;
    for (const auto& [what, ids] : streams) {
      EXPECT_EQ(ids.size(), 1u) << what;
      all.insert(ids.begin(), ids.end());
    }
    EXPECT_EQ(all.size(), streams.size());
  }
}

TEST_P(StreamsTest, ReductionsOfGradientsRunBesideTheBackwardPass) {
  const v1::Program& program = programs_[0];
  const v1::Sequence& train = SequenceOf(program, "train");
  const auto before = HappensBefore(train);
  bool reduces = false, overlaps = false;
  for (int i = 0; i < train.instructions_size(); ++i) {
    const v1::Instruction& reduction = train.instructions(i);
    if (!reduction.has_collective() || reduction.phase() != v1::BACKWARD ||
        program.buffers(reduction.operands(0).buffer()).class_() != v1::GRADIENT) {
      continue;
    }
    reduces = true;
    for (int j = i + 1; j < train.instructions_size(); ++j) {
      const v1::Instruction& other = train.instructions(j);
      if (other.phase() == v1::BACKWARD && other.has_compute()) {
        overlaps = overlaps || !before[j][i];
      }
    }
  }
  EXPECT_EQ(overlaps, reduces);
}

std::vector<TinyJob> StreamJobs() {
  std::vector<TinyJob> jobs;
  for (const std::string& family : Families()) {
    jobs.push_back({.family = family, .data_parallel = 2, .micro_batches = 2});
  }
  const TinySizes deep = {.layers = 4};
  jobs.push_back({.data_parallel = 2, .tensor_parallel = 2, .sequence_parallel = true});
  jobs.push_back({.family = "qwen2", .tensor_parallel = 4, .context_parallel = 2});
  jobs.push_back({.family = "llama", .context_parallel = 2, .context_type = "ulysses"});
  for (uint32_t zero : {1, 2, 3}) {
    jobs.push_back({.family = "llama",
                    .data_parallel = 4,
                    .micro_batches = 2,
                    .zero_stage = zero,
                    .shard_size = 2,
                    .recompute = zero == 3 ? "block" : "none"});
  }
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"}) {
    jobs.push_back({.family = "qwen3",
                    .data_parallel = 2,
                    .micro_batches = 3,
                    .pipeline_parallel = 2,
                    .schedule = schedule,
                    .zero_stage = 1,
                    .sizes = deep});
  }
  return jobs;
}

INSTANTIATE_TEST_SUITE_P(Layouts, StreamsTest, testing::ValuesIn(StreamJobs()));

}  // namespace
}  // namespace terrace
