// SPDX-License-Identifier: Apache-2.0
#include "coordinator/history/history.h"

#include <algorithm>
#include <set>
#include <vector>

namespace terrace {
namespace {

// Points whose columns are all there: a message may be damaged.
template <typename... Columns>
int Whole(const Columns&... columns) {
  return std::min({columns.size()...});
}

// The mean of two values that stand for `of_a` and `of_b` of them.
float Mean(float a, int64_t of_a, float b, int64_t of_b) {
  const double whole = static_cast<double>(of_a + of_b);
  return static_cast<float>((a * static_cast<double>(of_a) + b * static_cast<double>(of_b)) /
                            whole);
}

}  // namespace

void History::Step::Absorb(const Step& newer) {
  const auto mean = [&](float Step::*value) {
    return Mean(this->*value, weight, newer.*value, newer.weight);
  };
  loss = mean(&Step::loss);
  grad_norm = mean(&Step::grad_norm);
  learning_rate = mean(&Step::learning_rate);
  tokens_per_second = mean(&Step::tokens_per_second);
  step_seconds = mean(&Step::step_seconds);
  loss_min = std::min(loss_min, newer.loss_min);
  loss_max = std::max(loss_max, newer.loss_max);
  step = newer.step;
  unix_ms = newer.unix_ms;
  weight += newer.weight;
}

void History::Value::Absorb(const Value& newer) {
  value = Mean(value, weight, newer.value, newer.weight);
  step = newer.step;
  unix_ms = newer.unix_ms;
  weight += newer.weight;
}

void History::Moment::Absorb(const Moment& newer) {
  for (const auto& [key, held] : newer.bytes) bytes[key] = std::max(bytes[key], held);
  unix_ms = newer.unix_ms;
  weight += newer.weight;
}

void History::Add(const v1::JobEvent& event) {
  if (event.sequence() <= last_sequence_) return;
  last_sequence_ = event.sequence();
  if (event.has_step()) {
    const v1::StepEvent& step = event.step();
    const auto loss = static_cast<float>(step.loss());
    steps_.DropWhile([&](const Step& known) { return known.step >= step.step(); });
    steps_.Add({.step = step.step(),
                .unix_ms = event.unix_ms(),
                .loss = loss,
                .loss_min = loss,
                .loss_max = loss,
                .grad_norm = static_cast<float>(step.grad_norm()),
                .learning_rate = static_cast<float>(step.learning_rate()),
                .tokens_per_second = static_cast<float>(step.tokens_per_second()),
                .step_seconds = static_cast<float>(step.step_seconds())});
  } else if (event.has_eval()) {
    const v1::EvalEvent& eval = event.eval();
    evals_.DropWhile([&](const Value& known) { return known.step >= eval.step(); });
    evals_.Add({.step = eval.step(),
                .unix_ms = event.unix_ms(),
                .value = static_cast<float>(eval.loss())});
  } else if (event.has_checkpoint()) {
    const v1::CheckpointEvent& checkpoint = event.checkpoint();
    checkpoints_.DropWhile([&](const Value& known) { return known.step >= checkpoint.step(); });
    checkpoints_.Add({.step = checkpoint.step(),
                      .unix_ms = event.unix_ms(),
                      .value = static_cast<float>(checkpoint.seconds())});
  }
}

void History::AddMemory(int64_t unix_ms, const v1::GetMemoryResponse& memory) {
  Moment moment{.unix_ms = unix_ms};
  const auto take = [&](v1::Tier tier, v1::BufferClass of, int64_t bytes) {
    int64_t& most = moment.bytes[{tier, of}];
    most = std::max(most, bytes);
  };
  for (const v1::RankMemory& rank : memory.ranks()) {
    for (const v1::TierMemory& tier : rank.tiers()) {
      take(tier.tier(), v1::BUFFER_CLASS_UNSPECIFIED, tier.reserved_bytes());
      for (const v1::LiveClass& live : tier.live()) take(tier.tier(), live.class_(), live.bytes());
    }
  }
  if (!moment.bytes.empty()) memory_.Add(std::move(moment));
}

v1::JobHistory History::Message() const {
  v1::JobHistory message;
  message.set_last_sequence(last_sequence_);
  v1::StepColumns& steps = *message.mutable_steps();
  for (const Step& point : steps_.points()) {
    steps.add_step(point.step);
    steps.add_unix_ms(point.unix_ms);
    steps.add_steps(point.weight);
    steps.add_loss(point.loss);
    steps.add_loss_min(point.loss_min);
    steps.add_loss_max(point.loss_max);
    steps.add_grad_norm(point.grad_norm);
    steps.add_learning_rate(point.learning_rate);
    steps.add_tokens_per_second(point.tokens_per_second);
    steps.add_step_seconds(point.step_seconds);
  }
  for (const Value& point : evals_.points()) {
    message.mutable_evals()->add_step(point.step);
    message.mutable_evals()->add_unix_ms(point.unix_ms);
    message.mutable_evals()->add_evals(point.weight);
    message.mutable_evals()->add_loss(point.value);
  }
  for (const Value& point : checkpoints_.points()) {
    message.mutable_checkpoints()->add_step(point.step);
    message.mutable_checkpoints()->add_unix_ms(point.unix_ms);
    message.mutable_checkpoints()->add_checkpoints(point.weight);
    message.mutable_checkpoints()->add_seconds(point.value);
  }
  std::set<TierAndClass> kinds;
  for (const Moment& moment : memory_.points()) {
    message.mutable_memory()->add_unix_ms(moment.unix_ms);
    message.mutable_memory()->add_moments(moment.weight);
    for (const auto& [kind, bytes] : moment.bytes) kinds.insert(kind);
  }
  for (const TierAndClass& kind : kinds) {
    v1::MemoryColumn& column = *message.mutable_memory()->add_columns();
    column.set_tier(kind.first);
    column.set_class_(kind.second);
    for (const Moment& moment : memory_.points()) {
      const auto found = moment.bytes.find(kind);
      column.add_bytes(found == moment.bytes.end() ? 0 : found->second);
    }
  }
  return message;
}

History::History(const v1::JobHistory& message) : last_sequence_(message.last_sequence()) {
  const v1::StepColumns& steps = message.steps();
  const int step_points =
      Whole(steps.step(), steps.unix_ms(), steps.steps(), steps.loss(), steps.loss_min(),
            steps.loss_max(), steps.grad_norm(), steps.learning_rate(), steps.tokens_per_second(),
            steps.step_seconds());
  std::vector<Step> points;
  for (int i = 0; i < step_points; ++i) {
    points.push_back({.weight = steps.steps(i),
                      .step = steps.step(i),
                      .unix_ms = steps.unix_ms(i),
                      .loss = steps.loss(i),
                      .loss_min = steps.loss_min(i),
                      .loss_max = steps.loss_max(i),
                      .grad_norm = steps.grad_norm(i),
                      .learning_rate = steps.learning_rate(i),
                      .tokens_per_second = steps.tokens_per_second(i),
                      .step_seconds = steps.step_seconds(i)});
  }
  steps_.Restore(std::move(points));
  const auto restore = [](const auto& weights, const auto& step, const auto& unix_ms,
                          const auto& values, Thinned<Value>* series) {
    std::vector<Value> all;
    for (int i = 0; i < Whole(weights, step, unix_ms, values); ++i) {
      all.push_back({weights[i], step[i], unix_ms[i], values[i]});
    }
    series->Restore(std::move(all));
  };
  const v1::EvalColumns& evals = message.evals();
  restore(evals.evals(), evals.step(), evals.unix_ms(), evals.loss(), &evals_);
  const v1::CheckpointColumns& checkpoints = message.checkpoints();
  restore(checkpoints.checkpoints(), checkpoints.step(), checkpoints.unix_ms(),
          checkpoints.seconds(), &checkpoints_);
  std::vector<Moment> moments;
  for (int i = 0; i < Whole(message.memory().unix_ms(), message.memory().moments()); ++i) {
    Moment moment{.weight = message.memory().moments(i), .unix_ms = message.memory().unix_ms(i)};
    for (const v1::MemoryColumn& column : message.memory().columns()) {
      if (i >= column.bytes_size() || column.bytes(i) == 0) continue;
      moment.bytes[{column.tier(), column.class_()}] = column.bytes(i);
    }
    moments.push_back(std::move(moment));
  }
  memory_.Restore(std::move(moments));
}

}  // namespace terrace
