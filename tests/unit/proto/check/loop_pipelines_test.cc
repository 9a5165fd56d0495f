// The checker and the loops of pipelines whose schedules do more than one pass of each kind a
// micro-batch: zb-h1, zbv and interleaved. A mutant is a program that is broken in one place of one
// stage.
//
// Each mutant that the checker accepts is harmless: the same stages written out to their last
// iteration, which needs no rule about loops, pass too.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/check/program_check.h"
#include "proto/program/loops.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using Stages = std::vector<v1::Program>;

constexpr uint32_t kMicroBatches = 257;  // the fewest that these schedules loop from
constexpr size_t kTriedMax = 14;         // of mutants of a kind and stage, spread over all of them

struct Mutant {
  std::string what;
  std::function<void(v1::Sequence* train)> apply;
};

class LoopPipelinesCheckTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    whole_ = CompileStages({.micro_batches = kMicroBatches,
                            .pipeline_parallel = 2,
                            .schedule = GetParam(),
                            .sizes = {.layers = 4}});
    ASSERT_EQ(whole_.size(), 2u);
    for (const v1::Program& stage : whole_) ASSERT_EQ(stage.sequences(0).loops_size(), 1);
    ASSERT_EQ(CheckPrograms(whole_), absl::OkStatus());
  }

  const v1::Sequence& TrainOf(size_t stage) const { return whole_[stage].sequences(0); }

  // One mutant for each instruction of the body of which `changes_of` names a change.
  using Changes = std::vector<std::pair<std::string, std::function<void(v1::Instruction*)>>>;
  std::vector<Mutant> InBody(
      size_t stage, const std::function<Changes(const v1::Instruction&)>& changes_of) const {
    std::vector<Mutant> mutants;
    const v1::Loop& loop = TrainOf(stage).loops(0);
    for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
      const int at = static_cast<int>(i);
      for (auto& [how, change] : changes_of(TrainOf(stage).instructions(at))) {
        mutants.push_back({absl::StrCat("instruction ", i, ", ",
                                        TrainOf(stage).instructions(at).text(), ": ", how),
                           [at, change = std::move(change)](v1::Sequence* train) {
                             change(train->mutable_instructions(at));
                           }});
      }
    }
    return mutants;
  }

  Stages With(size_t stage, const Mutant& mutant) const {
    Stages stages = whole_;
    mutant.apply(stages[stage].mutable_sequences(0));
    return stages;
  }

  // Returns how many were refused.
  int ExpectRefusedWhereItMatters(size_t stage, const std::vector<Mutant>& mutants) const {
    const size_t stride = std::max<size_t>(1, (mutants.size() + kTriedMax - 1) / kTriedMax);
    int refused = 0;
    for (size_t m = 0; m < mutants.size(); m += stride) {
      const Stages stages = With(stage, mutants[m]);
      const absl::Status looped = CheckPrograms(stages);
      if (!looped.ok()) {
        EXPECT_EQ(looped.code(), absl::StatusCode::kInvalidArgument) << looped;
        ++refused;
        continue;
      }
      Stages written;
      for (const v1::Program& one : stages) written.push_back(WriteOut(one, 0).program);
      EXPECT_EQ(CheckPrograms(written), absl::OkStatus())
          << "accepted as a loop: stage " << stage << ", " << mutants[m].what;
    }
    return refused;
  }

  void ExpectRefused(size_t stage, const Mutant& mutant) const {
    EXPECT_EQ(CheckPrograms(With(stage, mutant)).code(), absl::StatusCode::kInvalidArgument)
        << "stage " << stage << ", " << mutant.what;
  }

  Stages whole_;
};

TEST_P(LoopPipelinesCheckTest, AWaitThatIsDroppedIsMissed) {
  for (size_t stage = 0; stage < whole_.size(); ++stage) {
    const auto dropped = InBody(stage, [](const v1::Instruction& instruction) {
      Changes changes;
      for (int w = 0; w < instruction.waits_size(); ++w) {
        changes.emplace_back(absl::StrCat("no wait for ", instruction.waits(w)),
                             [w](v1::Instruction* i) {
                               i->mutable_waits()->erase(i->mutable_waits()->begin() + w);
                             });
      }
      return changes;
    });
    EXPECT_GT(ExpectRefusedWhereItMatters(stage, dropped), 0) << "stage " << stage;
  }
}

TEST_P(LoopPipelinesCheckTest, AWaitForAnEarlierIterationIsMissed) {
  for (size_t stage = 0; stage < whole_.size(); ++stage) {
    const auto changed = InBody(stage, [](const v1::Instruction& instruction) {
      Changes changes;
      for (int w = 0; w < instruction.back_waits_size(); ++w) {
        changes.emplace_back(
            absl::StrCat("no wait for an earlier ", instruction.back_waits(w).instruction()),
            [w](v1::Instruction* i) { i->mutable_back_waits()->DeleteSubrange(w, 1); });
        changes.emplace_back(
            absl::StrCat("waits for a still earlier ", instruction.back_waits(w).instruction()),
            [w](v1::Instruction* i) {
              v1::BackWait* wait = i->mutable_back_waits(w);
              wait->set_iterations(wait->iterations() + 1);
            });
      }
      return changes;
    });
    EXPECT_GT(ExpectRefusedWhereItMatters(stage, changed), 1) << "stage " << stage;
  }
}

TEST_P(LoopPipelinesCheckTest, AValueOfAnotherIterationIsRefused) {
  for (size_t stage = 0; stage < whole_.size(); ++stage) {
    for (const int by : {-1, 1}) {
      const auto moved = InBody(stage, [by](const v1::Instruction& instruction) {
        Changes changes;
        for (int o = 0; o < instruction.operands_size(); ++o) {
          if (instruction.operands(o).slots() == 0) continue;
          changes.emplace_back(absl::StrCat("operand ", o, " moved by ", by),
                               [o, by](v1::Instruction* i) {
                                 v1::Operand* operand = i->mutable_operands(o);
                                 operand->set_slot(operand->slot() + by);
                               });
        }
        return changes;
      });
      EXPECT_GT(ExpectRefusedWhereItMatters(stage, moved), 5) << "stage " << stage;
    }
  }
}

TEST_P(LoopPipelinesCheckTest, ASlotTooFewIsRefused) {
  for (size_t stage = 0; stage < whole_.size(); ++stage) {
    std::set<uint32_t> turns;
    for (const v1::Instruction& instruction : TrainOf(stage).instructions()) {
      for (const v1::Operand& operand : instruction.operands()) {
        if (operand.slots() > 1) turns.insert(operand.buffer());
      }
    }
    std::vector<Mutant> mutants;
    for (const uint32_t first : turns) {
      mutants.push_back(
          {absl::StrCat("a slot less in turn from buffer ", first), [first](v1::Sequence* train) {
             for (v1::Instruction& instruction : *train->mutable_instructions()) {
               for (v1::Operand& operand : *instruction.mutable_operands()) {
                 if (operand.slots() > 1 && operand.buffer() == first)
                   operand.set_slots(operand.slots() - 1);
               }
             }
           }});
    }
    EXPECT_GT(ExpectRefusedWhereItMatters(stage, mutants), 0) << "stage " << stage;
  }
}

TEST_P(LoopPipelinesCheckTest, AMessageOfAnotherMicroBatchIsRefused) {
  for (size_t stage = 0; stage < whole_.size(); ++stage) {
    for (const int by : {-1, 1}) {
      const auto relabelled = InBody(stage, [by](const v1::Instruction& instruction) -> Changes {
        if (!instruction.has_transfer() && !instruction.has_input()) return {};
        return {{absl::StrCat("micro-batch moved by ", by),
                 [by](v1::Instruction* i) { i->set_micro_batch(i->micro_batch() + by); }}};
      });
      ASSERT_FALSE(relabelled.empty());
      for (const Mutant& mutant : relabelled) ExpectRefused(stage, mutant);
    }
  }
}

TEST_P(LoopPipelinesCheckTest, StagesWhoseLoopsDoNotGoTogetherAreRefused) {
  const auto on_loop = [](std::string what, std::function<void(v1::Loop*)> change) {
    return Mutant{std::move(what), [change = std::move(change)](v1::Sequence* train) {
                    change(train->mutable_loops(0));
                  }};
  };
  const std::vector<Mutant> mutants = {
      on_loop("a trip less", [](v1::Loop* loop) { loop->set_trips(loop->trips() - 1); }),
      on_loop("a trip more", [](v1::Loop* loop) { loop->set_trips(loop->trips() + 1); }),
      on_loop("half of the trips", [](v1::Loop* loop) { loop->set_trips(loop->trips() / 2); }),
      on_loop("a micro-batch more an iteration",
              [](v1::Loop* loop) { loop->set_micro_batches(loop->micro_batches() + 1); }),
      on_loop("an instruction less", [](v1::Loop* loop) { loop->set_count(loop->count() - 1); }),
      on_loop("begins later", [](v1::Loop* loop) { loop->set_first(loop->first() + 1); }),
      {"no loop", [](v1::Sequence* train) { train->clear_loops(); }}};
  for (const Mutant& mutant : mutants) {
    for (size_t stage = 0; stage < whole_.size(); ++stage) ExpectRefused(stage, mutant);
    Stages stages = With(0, mutant);  // of all stages alike
    mutant.apply(stages[1].mutable_sequences(0));
    EXPECT_EQ(CheckPrograms(stages).code(), absl::StatusCode::kInvalidArgument) << mutant.what;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, LoopPipelinesCheckTest,
                         testing::Values("zb-h1", "zbv", "interleaved"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return info.param == std::string("zb-h1") ? "zb_h1" : info.param;
                         });

}  // namespace
}  // namespace terrace
