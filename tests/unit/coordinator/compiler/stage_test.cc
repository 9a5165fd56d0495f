// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/compiler/pack/liveness.h"
#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace {
namespace {

using compiler::ModelChunk;
using compiler::ScheduleShape;

TinyJob Pipeline(const std::string& family, uint32_t stages, const std::string& schedule) {
  return {.family = family,
          .micro_batches = 5,
          .pipeline_parallel = stages,
          .schedule = schedule,
          .sizes = {.layers = 8}};
}

std::vector<TinyJob> Pipelines() {
  std::vector<TinyJob> jobs;
  for (const char* family : {"gpt2", "llama", "qwen3"}) {
    for (uint32_t stages : {2, 4}) {
      for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"}) {
        jobs.push_back(Pipeline(family, stages, schedule));
      }
    }
  }
  return jobs;
}

// Compiled once for all tests of a job.
const std::vector<v1::Program>& ProgramsOf(const TinyJob& job) {
  static auto* programs = new std::map<std::string, std::vector<v1::Program>>;
  const auto [it, is_new] = programs->try_emplace(Describe(job));
  if (is_new) it->second = CompileStages(job);
  return it->second;
}

class PipelineTest : public testing::TestWithParam<TinyJob> {
 protected:
  const std::vector<v1::Program>& programs_ = ProgramsOf(GetParam());
  const v1::Layout layout_ = Completed(TinyLayout(GetParam()));
  const ScheduleShape shape_ = compiler::ShapeOf(layout_);

  std::set<int> LayersOf(int stage) const {
    const auto chunks = compiler::SplitLayers(layout_, 8);
    std::set<int> layers;
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      const compiler::ChunkRange& range = chunks[ModelChunk(shape_, stage, chunk)];
      for (int layer = range.begin; layer < range.end; ++layer) layers.insert(layer);
    }
    return layers;
  }
};

TEST_P(PipelineTest, AStageHoldsItsLayersOnly) {
  const Model model = TinyModel(GetParam().family, GetParam().sizes);
  std::map<std::string, const Tensor*> tensors;
  for (const Tensor& tensor : model.tensors) tensors[tensor.name] = &tensor;
  for (size_t stage = 0; stage < programs_.size(); ++stage) {
    const std::set<int> own = LayersOf(static_cast<int>(stage));
    std::set<int> held, computed;
    for (const v1::StateRange& range : programs_[stage].state()) {
      const int64_t layer = tensors.at(range.tensor())->layer;
      if (layer >= 0) held.insert(static_cast<int>(layer));
    }
    for (const v1::Sequence& sequence : programs_[stage].sequences()) {
      for (const v1::Instruction& instruction : sequence.instructions()) {
        if (instruction.layer() >= 0) computed.insert(instruction.layer());
      }
    }
    EXPECT_EQ(held, own);
    EXPECT_EQ(computed, own);
  }
}

// By its owner; a tied table stands on two stages unless both ends are on one.
TEST_P(PipelineTest, TheStagesHoldEveryTensorOnce) {
  const Model model = TinyModel(GetParam().family, GetParam().sizes);
  std::map<std::string, int> owners, copies;
  for (const v1::Program& program : programs_) {
    for (const v1::StateRange& range : program.state()) {
      if (range.kind() == v1::WEIGHT) ++(range.copy() ? copies : owners)[range.tensor()];
    }
  }
  EXPECT_EQ(owners.size(), model.tensors.size());
  for (const auto& [name, count] : owners) EXPECT_EQ(count, 1) << name;
  const bool tied = model.config.tied_embeddings && GetParam().schedule != "zbv";
  EXPECT_EQ(copies.size(), tied ? 1u : 0u);
}

// Bytes, micro-batches and order of what one stage sends are those of what the other receives.
TEST_P(PipelineTest, TransfersMatchInNumberSizeAndOrder) {
  // By sequence, group, sender and receiver: {micro-batch, bytes}.
  using Message = std::pair<int, int64_t>;
  using Channel = std::tuple<std::string, uint32_t, uint32_t, uint32_t>;
  std::map<Channel, std::vector<Message>> sent, received;
  for (const v1::Program& program : programs_) {
    for (const v1::Sequence& sequence : program.sequences()) {
      for (const v1::Instruction& instruction : sequence.instructions()) {
        if (!instruction.has_transfer()) continue;
        const v1::TransferOp& transfer = instruction.transfer();
        const v1::Operand& operand = instruction.operands(0);
        const Message message = {instruction.micro_batch(), operand.shape(0) * operand.shape(1)};
        if (transfer.kind() == v1::SEND) {
          sent[{sequence.name(), transfer.group(), program.stage(), transfer.peer_stage()}]
              .push_back(message);
        } else {
          received[{sequence.name(), transfer.group(), transfer.peer_stage(), program.stage()}]
              .push_back(message);
        }
      }
    }
  }
  EXPECT_EQ(sent, received);
  // Every chunk boundary between two stages is crossed once each way in each micro-batch of
  // "train" and once in "eval".
  size_t boundaries = 0, messages = 0;
  for (int chunk = 0; chunk + 1 < shape_.stages * shape_.chunks; ++chunk) {
    boundaries += StageChunkOf(shape_, chunk).stage != StageChunkOf(shape_, chunk + 1).stage;
  }
  for (const auto& [channel, list] : sent) messages += list.size();
  EXPECT_EQ(messages, boundaries * (2 * 5 + 1));
}

// Two rows of passes, as the schedule says: forward and backward (input) passes of each chunk.
TEST_P(PipelineTest, PassesStandInTheOrderOfTheSchedule) {
  const auto schedule = *compiler::MakeSchedule(shape_);
  for (size_t stage = 0; stage < programs_.size(); ++stage) {
    std::vector<int> expected;
    for (const compiler::Pass& pass : schedule[stage]) {
      if (pass.kind == compiler::PassKind::kForward) expected.push_back(pass.micro_batch);
    }
    // Every forward pass of a chunk attends once in its first layer.
    const auto chunks = compiler::SplitLayers(layout_, 8);
    std::set<int> first_layers;
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      first_layers.insert(chunks[ModelChunk(shape_, static_cast<int>(stage), chunk)].begin);
    }
    std::vector<int> found;
    for (const v1::Instruction& instruction :
         SequenceOf(programs_[stage], "train").instructions()) {
      if (instruction.compute().op() == "attention" && first_layers.contains(instruction.layer())) {
        found.push_back(instruction.micro_batch());
      }
    }
    EXPECT_EQ(found, expected) << "stage " << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineTest, testing::ValuesIn(Pipelines()));

// The buffers that hold what a stage sends.
std::vector<Life> LivesOfSent(const v1::Program& program) {
  const v1::Sequence& train = SequenceOf(program, "train");
  const std::vector<Life> lives = Liveness(program, train);
  std::vector<Life> sent;
  for (const v1::Instruction& instruction : train.instructions()) {
    if (instruction.transfer().kind() == v1::SEND) {
      sent.push_back(lives[instruction.operands(0).buffer()]);
    }
  }
  return sent;
}

int MostAlive(const std::vector<Life>& lives) {
  std::map<int64_t, int> changes;
  for (const Life& life : lives) {
    ++changes[life.begin];
    --changes[life.end];
  }
  int alive = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, alive += change);
  return most;
}

class ManyMicroBatchesTest : public testing::TestWithParam<std::pair<const char*, uint32_t>> {
 protected:
  static std::vector<v1::Program> Compiled(uint32_t micro_batches) {
    const auto& [schedule, zero] = GetParam();
    TinyJob job = Pipeline("llama", zero > 0 ? 2 : 4, schedule);
    job.micro_batches = micro_batches;
    job.straight = true;
    job.data_parallel = zero > 0 ? 2 : 1;
    job.zero_stage = zero;
    return CompileStages(job);
  }
};

// What is sent is freed while the step goes on, and what micro-batches keep is bounded by those
// that are on their way: twice as many need no more memory.
TEST_P(ManyMicroBatchesTest, NeedNoMoreMemoryThanThoseOnTheirWay) {
  const std::vector<v1::Program> few = Compiled(9), many = Compiled(18);
  for (size_t stage = 0; stage < few.size(); ++stage) {
    const int most_sent = MostAlive(LivesOfSent(many[stage]));
    EXPECT_LE(most_sent, MostAlive(LivesOfSent(few[stage]))) << "stage " << stage;
    EXPECT_LE(most_sent, 8) << "stage " << stage;
    // Tokens, targets and losses of each are there from the start.
    EXPECT_LE(many[stage].arenas(0).lower_bound_bytes(),
              few[stage].arenas(0).lower_bound_bytes() + 9 * 1024)
        << "stage " << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, ManyMicroBatchesTest,
                         testing::Values(std::pair("1f1b", 0), std::pair("1f1b", 2),
                                         std::pair("zb-h1", 0), std::pair("zbv", 0)));

// In V shape the last chunk but one hands over on the last stage itself.
TEST(StageTest, ChunksOfOneStageHandOverWithoutATransfer) {
  const auto programs = CompileStages(Pipeline("llama", 4, "zbv"));
  std::set<uint32_t> peers;
  for (const v1::Instruction& instruction : SequenceOf(programs[3], "train").instructions()) {
    if (instruction.has_transfer()) peers.insert(instruction.transfer().peer_stage());
  }
  EXPECT_EQ(peers, std::set<uint32_t>{2});
}

TEST(StageTest, EvaluationKeepsNothing) {
  const auto programs = CompileStages({.family = "llama", .sizes = {.layers = 8, .sequence = 64}});
  const v1::Sequence& eval = SequenceOf(programs[0], "eval");
  const std::vector<Life> lives = Liveness(programs[0], eval);
  std::vector<Life> residuals;
  for (int i = 0; i < programs[0].buffers_size(); ++i) {
    const v1::Buffer& buffer = programs[0].buffers(i);
    if (buffer.sequence() == "eval" && buffer.name().ends_with("mlp_down")) {
      residuals.push_back(lives[i]);
    }
  }
  ASSERT_EQ(residuals.size(), 8u);
  EXPECT_LE(MostAlive(residuals), 2);
}

}  // namespace
}  // namespace terrace
