// Execution of a schedule without buffers between stages.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "coordinator/compiler/pipeline/schedule.h"
#include "tests/unit/coordinator/compiler/pipeline/schedule_shapes.h"

namespace terrace::compiler {

inline bool IsForward(const Pass& pass) { return pass.kind == PassKind::kForward; }

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

}  // namespace terrace::compiler
