// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace terrace::compiler {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Schedule = std::vector<std::vector<Pass>>;

constexpr IdealCosts kEqualCosts = {.forward = 1, .backward_input = 1, .backward_weight = 1};

Schedule MakeOrDie(const ScheduleShape& shape) {
  auto schedule = MakeSchedule(shape);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return schedule.value_or(Schedule());
}

std::string Describe(const ScheduleShape& shape) {
  return shape.name + " stages " + std::to_string(shape.stages) + " chunks " +
         std::to_string(shape.chunks) + " micro-batches " + std::to_string(shape.micro_batches);
}

const std::vector<std::string>& Names() {
  static const auto* names =
      new std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"};
  return *names;
}

// 1 to 8 stages, 1 to 17 micro-batches, up to 4 chunks.
std::vector<ScheduleShape> Shapes(const std::string& name) {
  std::vector<ScheduleShape> shapes;
  const bool interleaved = name == "interleaved";
  for (int chunks = interleaved ? 2 : 1; chunks <= (interleaved ? 4 : 1); ++chunks) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int micro_batches = 1; micro_batches <= 17; ++micro_batches) {
        shapes.push_back({name, stages, name == "zbv" ? 2 : chunks, micro_batches});
      }
    }
  }
  return shapes;
}

std::vector<ScheduleShape> AllShapes() {
  std::vector<ScheduleShape> shapes;
  for (const std::string& name : Names()) {
    for (ScheduleShape& shape : Shapes(name)) shapes.push_back(std::move(shape));
  }
  return shapes;
}

bool IsForward(const Pass& pass) { return pass.kind == PassKind::kForward; }

// Activations that a stage holds at most, in chunks: from a forward pass to the end of the last
// backward pass that reads them.
int PeakActivations(const std::vector<Pass>& passes) {
  int live = 0, peak = 0;
  for (const Pass& pass : passes) {
    if (IsForward(pass)) peak = std::max(peak, ++live);
    if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight) --live;
  }
  return peak;
}

// ---- execution without buffers between stages ---------------------------------------------------

// When a send's buffer is waited for.
enum class Retire {
  kTwoPassesLater,
  kByBuffers,  // as SendsRetire says
};

// Executes a schedule as the ranks do: each stage's passes in order on one compute stream; one
// stream for each direction, kind and peer, in the order of the passes. The receive of a pass is
// posted when the pass two before it has ended. A message moves when its send and its receive are
// both at the head of their streams; before that the send blocks.
class Blocking {
 public:
  Blocking(const ScheduleShape& shape, const Schedule& schedule, Retire rule, IdealCosts costs)
      : shape_(shape), schedule_(schedule), costs_(costs), next_(shape.stages) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      const std::vector<Pass>& passes = schedule[stage];
      end_.emplace_back(passes.size(), -1);
      left_.emplace_back(passes.size(), -1);
      arrived_.emplace_back(passes.size(), -1);
      retires_before_.emplace_back(passes.size());
      const std::vector<int> retire = SendsRetire(shape, stage, passes);
      for (int i = 0; i < Size(stage); ++i) {
        const auto to = ConsumerOf(shape, stage, passes[i]);
        if (to && to->stage != stage) {
          sends_[{IsForward(passes[i]), stage, to->stage}].push_back({stage, i});
          const int before = rule == Retire::kByBuffers ? retire[i] : i + 2;
          if (before < Size(stage)) retires_before_[stage][before].push_back(i);
        }
        const auto from = ProducerOf(shape, stage, passes[i]);
        if (from && from->stage != stage) {
          receives_[{IsForward(passes[i]), from->stage, stage}].push_back({stage, i});
        }
      }
    }
  }

  // The time of the step; -1 when it blocks forever.
  double Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [channel, sends] : sends_) {
        while (Move(sends, receives_[channel], &moved_[channel], &free_[channel])) moved = true;
      }
      for (int stage = 0; stage < shape_.stages; ++stage) {
        while (Advance(stage)) moved = true;
      }
    }
    double step = 0;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (next_[stage] < Size(stage)) return -1;
      step = std::max(step, end_[stage].back());
    }
    return step;
  }

  // The k-th message of each channel is the one that the k-th receive expects.
  bool MessagesMatch() const {
    for (const auto& [channel, sends] : sends_) {
      const auto found = receives_.find(channel);
      if (found == receives_.end() || found->second.size() != sends.size()) return false;
      for (size_t k = 0; k < sends.size(); ++k) {
        const Pass& sent = schedule_[sends[k].stage][sends[k].index];
        const Pass& expected = schedule_[found->second[k].stage][found->second[k].index];
        const auto to = ConsumerOf(shape_, sends[k].stage, sent);
        if (sent.micro_batch != expected.micro_batch || to->chunk != expected.chunk) return false;
      }
    }
    return receives_.size() == sends_.size();
  }

 private:
  struct Position {
    int stage, index;
  };
  using Channel = std::tuple<bool, int, int>;  // forward, sender, receiver

  int Size(int stage) const { return static_cast<int>(schedule_[stage].size()); }

  bool Move(const std::vector<Position>& sends, const std::vector<Position>& receives, size_t* k,
            double* free) {
    if (*k == sends.size()) return false;
    const Position from = sends[*k], to = receives[*k];
    const double made = end_[from.stage][from.index];
    const double posted = to.index < 2 ? 0 : end_[to.stage][to.index - 2];
    if (made < 0 || posted < 0) return false;
    *free = std::max({*free, made, posted}) + costs_.transfer;
    left_[from.stage][from.index] = arrived_[to.stage][to.index] = *free;
    ++*k;
    return true;
  }

  bool Advance(int stage) {
    const int i = next_[stage];
    if (i == Size(stage)) return false;
    double start = i == 0 ? 0 : end_[stage][i - 1];
    const auto wait = [&](double time) {
      start = std::max(start, time);
      return time >= 0;
    };
    for (int sent : retires_before_[stage][i]) {
      if (!wait(left_[stage][sent])) return false;
    }
    const Pass& pass = schedule_[stage][i];
    if (const auto from = ProducerOf(shape_, stage, pass)) {
      const bool local = from->stage == stage;
      if (!wait(local ? OwnEnd(stage, pass.kind, pass.micro_batch, from->chunk)
                      : arrived_[stage][i])) {
        return false;
      }
    }
    const PassKind before =
        pass.kind == PassKind::kBackwardWeight ? PassKind::kBackwardInput : PassKind::kForward;
    if (!IsForward(pass) && !wait(OwnEnd(stage, before, pass.micro_batch, pass.chunk))) {
      return false;
    }
    end_[stage][i] = start + Cost(pass.kind);
    ++next_[stage];
    return true;
  }

  // When an earlier pass of the same stage ended; -1 when it is not earlier.
  double OwnEnd(int stage, PassKind kind, int micro_batch, int chunk) const {
    const Pass pass = {kind, micro_batch, chunk};
    const auto& passes = schedule_[stage];
    return end_[stage][std::find(passes.begin(), passes.end(), pass) - passes.begin()];
  }

  double Cost(PassKind kind) const {
    if (kind == PassKind::kForward) return costs_.forward;
    if (kind == PassKind::kBackwardInput) return costs_.backward_input;
    if (kind == PassKind::kBackwardWeight) return costs_.backward_weight;
    return costs_.backward_input + costs_.backward_weight;
  }

  const ScheduleShape& shape_;
  const Schedule& schedule_;
  const IdealCosts costs_;
  std::vector<int> next_;                            // by stage
  std::vector<std::vector<double>> end_;             // by stage and position; -1: not yet
  std::vector<std::vector<double>> left_, arrived_;  // what the pass sent, what it needs
  std::vector<std::vector<std::vector<int>>> retires_before_;
  std::map<Channel, std::vector<Position>> sends_, receives_;
  std::map<Channel, size_t> moved_;
  std::map<Channel, double> free_;
};

TEST(ScheduleTest, EveryMicroBatchPassesEveryChunkOnceEachWay) {
  for (const ScheduleShape& shape : AllShapes()) {
    SCOPED_TRACE(Describe(shape));
    const Schedule schedule = MakeOrDie(shape);
    ASSERT_EQ(schedule.size(), static_cast<size_t>(shape.stages));
    const std::set<PassKind> kinds =
        SplitsBackward(shape.name)
            ? std::set{PassKind::kForward, PassKind::kBackwardInput, PassKind::kBackwardWeight}
            : std::set{PassKind::kForward, PassKind::kBackward};
    for (const std::vector<Pass>& passes : schedule) {
      std::set<std::tuple<PassKind, int, int>> seen;
      for (const Pass& pass : passes) {
        ASSERT_TRUE(kinds.contains(pass.kind));
        ASSERT_TRUE(pass.micro_batch >= 0 && pass.micro_batch < shape.micro_batches);
        ASSERT_TRUE(pass.chunk >= 0 && pass.chunk < shape.chunks);
        ASSERT_TRUE(seen.insert({pass.kind, pass.micro_batch, pass.chunk}).second);
      }
      ASSERT_EQ(seen.size(), kinds.size() * shape.micro_batches * shape.chunks);
    }
  }
}

TEST(ScheduleTest, NoOrderBlocksOrIsSlowedWithTwoSendBuffersAPeer) {
  for (const ScheduleShape& shape : AllShapes()) {
    SCOPED_TRACE(Describe(shape));
    const Schedule schedule = MakeOrDie(shape);
    Blocking blocking(shape, schedule, Retire::kByBuffers, kEqualCosts);
    ASSERT_TRUE(blocking.MessagesMatch());
    ASSERT_EQ(blocking.Run(), PlayIdeal(shape, schedule, kEqualCosts).step);
  }
}

TEST(ScheduleTest, AllButZbvMayWaitForEachSendTwoPassesLater) {
  for (const ScheduleShape& shape : AllShapes()) {
    if (shape.name == "zbv") continue;
    SCOPED_TRACE(Describe(shape));
    const Schedule schedule = MakeOrDie(shape);
    ASSERT_EQ(Blocking(shape, schedule, Retire::kTwoPassesLater, kEqualCosts).Run(),
              PlayIdeal(shape, schedule, kEqualCosts).step);
  }
  const ScheduleShape zbv = {"zbv", 2, 2, 4};
  EXPECT_EQ(Blocking(zbv, MakeOrDie(zbv), Retire::kTwoPassesLater, kEqualCosts).Run(), -1);
}

TEST(ScheduleTest, UnevenCostsAndSlowTransfersBlockNothing) {
  const IdealCosts uneven = {
      .forward = 3, .backward_input = 5, .backward_weight = 2, .transfer = 0.5};
  for (const ScheduleShape& shape : AllShapes()) {
    SCOPED_TRACE(Describe(shape));
    ASSERT_GT(Blocking(shape, MakeOrDie(shape), Retire::kByBuffers, uneven).Run(), 0);
  }
}

// ---- published formulas -------------------------------------------------------------------------

// Idle time of each stage in a step, with F = B = W = 1 a chunk.
double Bubble(const ScheduleShape& shape) {
  return PlayIdeal(shape, MakeOrDie(shape), kEqualCosts).step -
         3.0 * shape.chunks * shape.micro_batches;
}

TEST(ScheduleTest, GpipeAnd1f1bIdleForOnePassBothWaysAStage) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (const ScheduleShape& shape : Shapes(name)) {
      SCOPED_TRACE(Describe(shape));
      const int p = shape.stages, m = shape.micro_batches;
      const IdealTimes times = PlayIdeal(shape, MakeOrDie(shape), kEqualCosts);
      ASSERT_DOUBLE_EQ(times.step, 3 * (m + p - 1));
      ASSERT_DOUBLE_EQ(times.bubble_ratio, double(p - 1) / m);
    }
  }
}

TEST(ScheduleTest, InterleavingDividesTheBubbleByTheChunks) {
  for (const ScheduleShape& shape : Shapes("interleaved")) {
    SCOPED_TRACE(Describe(shape));
    const int p = shape.stages, m = shape.micro_batches;
    const double bubble = Bubble(shape);
    if (m % p == 0) {
      ASSERT_DOUBLE_EQ(bubble, 3 * (p - 1));  // a chunk is 1 / chunks of a stage
    } else {
      // Not slower than with the micro-batches that are missing to the next multiple of p.
      ASSERT_LE(bubble, 3 * (p - 1) + 3.0 * shape.chunks * (p - m % p));
    }
  }
}

TEST(ScheduleTest, ZbH1IdlesAThirdOf1f1b) {
  for (const ScheduleShape& shape : Shapes("zb-h1")) {
    SCOPED_TRACE(Describe(shape));
    const int p = shape.stages, m = shape.micro_batches;
    // (p - 1) (F + B - W); the first p - m of the stages' weight gradients are not there to fill.
    ASSERT_DOUBLE_EQ(Bubble(shape), p - 1 + std::max(0, p - m));
  }
  for (int p = 1; p <= 8; ++p) {  // unequal: a forward pass of 2, input 3, weight 2
    const ScheduleShape shape = {"zb-h1", p, 1, 2 * p};
    const IdealTimes times = PlayIdeal(shape, MakeOrDie(shape),
                                       {.forward = 2, .backward_input = 3, .backward_weight = 2});
    EXPECT_DOUBLE_EQ(times.step, 7 * 2 * p + (p - 1) * 3);
  }
}

// The paper's zero bubble: with F = B = W and at least 2 p - 1 micro-batches no stage idles between
// its first and its last pass. Stages start and end one after another, so that a step that all end
// together still takes (p - 1) passes of half a stage longer: a sixth of 1f1b's bubble.
TEST(ScheduleTest, ZbvHasNoGaps) {
  for (const ScheduleShape& shape : Shapes("zbv")) {
    if (shape.micro_batches < 2 * shape.stages - 1) continue;
    SCOPED_TRACE(Describe(shape));
    const IdealTimes times = PlayIdeal(shape, MakeOrDie(shape), kEqualCosts);
    for (int stage = 0; stage < shape.stages; ++stage) {
      ASSERT_DOUBLE_EQ(times.start[stage][0], stage);
      ASSERT_DOUBLE_EQ(times.end[stage].back() - stage, 6 * shape.micro_batches);
    }
    ASSERT_DOUBLE_EQ(Bubble(shape), shape.stages - 1);
  }
}

// In chunks: with zbv, p stages' worth are 2 p halves.
int ExpectedActivations(const ScheduleShape& shape, int stage) {
  const int p = shape.stages, m = shape.micro_batches, v = shape.chunks;
  if (shape.name == "gpipe") return m;
  if (shape.name == "1f1b") return std::min(m, p - stage);
  if (shape.name == "zb-h1") return std::min(m, p);
  if (shape.name == "zbv") return std::min(2 * m, 2 * p);
  return std::min(v * m, 2 * (p - stage - 1) + (v - 1) * p + 1);
}

TEST(ScheduleTest, ActivationsHeldAtMost) {
  for (const ScheduleShape& shape : AllShapes()) {
    SCOPED_TRACE(Describe(shape));
    const Schedule schedule = MakeOrDie(shape);
    for (int stage = 0; stage < shape.stages; ++stage) {
      const int peak = PeakActivations(schedule[stage]);
      ASSERT_LE(peak, ExpectedActivations(shape, stage));
      // Orders that were made for more micro-batches may hold fewer.
      if (shape.name == "interleaved" && shape.micro_batches % shape.stages != 0) continue;
      if (shape.name == "zbv" && shape.micro_batches < 2 * shape.stages - 1) continue;
      ASSERT_EQ(peak, ExpectedActivations(shape, stage));
    }
  }
}

// ---- places, table, refusals --------------------------------------------------------------------

TEST(ScheduleTest, PlacesAndModelChunksAreInverse) {
  for (const ScheduleShape& shape : AllShapes()) {
    for (int chunk = 0; chunk < shape.stages * shape.chunks; ++chunk) {
      const Place place = PlaceOf(shape, chunk);
      ASSERT_EQ(ModelChunk(shape, place.stage, place.chunk), chunk) << Describe(shape);
    }
  }
  EXPECT_EQ(PlaceOf({"zbv", 4, 2, 1}, 4), (Place{3, 1}));
  EXPECT_EQ(PlaceOf({"interleaved", 4, 2, 1}, 4), (Place{0, 1}));
}

TEST(ScheduleTest, PassesKnowWhoComesBeforeAndAfter) {
  const ScheduleShape shape = {"interleaved", 2, 2, 1};
  EXPECT_EQ(ConsumerOf(shape, 1, {PassKind::kForward, 0, 0}), (Place{0, 1}));
  EXPECT_EQ(ProducerOf(shape, 0, {PassKind::kForward, 0, 1}), (Place{1, 0}));
  EXPECT_EQ(ConsumerOf(shape, 0, {PassKind::kBackward, 0, 1}), (Place{1, 0}));
  EXPECT_EQ(ConsumerOf(shape, 1, {PassKind::kForward, 0, 1}), std::nullopt);
  EXPECT_EQ(ProducerOf(shape, 1, {PassKind::kBackward, 0, 1}), std::nullopt);
  EXPECT_EQ(ConsumerOf({"zbv", 2, 2, 1}, 1, {PassKind::kForward, 0, 0}), (Place{1, 1}));
  EXPECT_EQ(ConsumerOf({"zbv", 2, 2, 1}, 0, {PassKind::kBackwardWeight, 0, 1}), std::nullopt);
}

TEST(ScheduleTest, TheTableShowsClockAndStages) {
  const ScheduleShape shape = {"1f1b", 2, 1, 2};
  EXPECT_EQ(ScheduleTable(shape, MakeOrDie(shape), 100),
            "clock      0  1  2  3  4  5  6  7  8\n"
            "stage 0    0  1  .  . 0' 0'  . 1' 1'\n"
            "stage 1    .  0 0' 0'  1 1' 1'  .  .\n");
}

TEST(ScheduleTest, WideTablesAreCut) {
  const ScheduleShape shape = {"zbv", 4, 2, 16};
  const std::string table = ScheduleTable(shape, MakeOrDie(shape), 60);
  size_t begin = 0;
  for (size_t end; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = table.substr(begin, end - begin);
    EXPECT_LE(line.size(), 60u);
    EXPECT_THAT(line, testing::EndsWith(" ..."));
  }
}

TEST(ScheduleTest, AnOrderThatBlocksNeverEnds) {
  const ScheduleShape shape = {"1f1b", 2, 1, 1};
  Schedule schedule = MakeOrDie(shape);
  std::swap(schedule[0][0], schedule[0][1]);
  EXPECT_EQ(PlayIdeal(shape, schedule, kEqualCosts).step, std::numeric_limits<double>::infinity());
}

TEST(ScheduleTest, WhatNoScheduleCanBeIsRefusedByField) {
  const auto refusal = [](const ScheduleShape& shape) {
    const auto status = MakeSchedule(shape).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({"2f2b", 2, 1, 4}),
              AllOf(HasSubstr("layout.schedule: got '2f2b'"), HasSubstr("zb-h1")));
  EXPECT_THAT(refusal({"1f1b", 0, 1, 4}), HasSubstr("layout.pp: got 0"));
  EXPECT_THAT(refusal({"1f1b", 2, 1, 0}), HasSubstr("got 0"));
  EXPECT_THAT(refusal({"1f1b", 2, 2, 4}), HasSubstr("try schedule 'interleaved'"));
  EXPECT_THAT(refusal({"interleaved", 2, 1, 4}), HasSubstr("layout.interleave: got 1"));
  EXPECT_THAT(refusal({"zbv", 2, 1, 4}), HasSubstr("must be 2"));
}

}  // namespace
}  // namespace terrace::compiler
