// Keeps the whole life of one job as series for pictures, made of its events and of what its ranks
// held. Series are thinned with age and so bounded (thinned.h): about 200 KiB for a million steps.
//
// A restarted job tells steps again from its checkpoint on; the newer ones take the place of the
// older ones.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "coordinator/history/thinned.h"
#include "proto/v1/history.pb.h"
#include "proto/v1/job.pb.h"

namespace terrace {

class History {
 public:
  History() = default;
  // From what Message() gave.
  explicit History(const v1::JobHistory& message);

  // Events in order of their sequence; those that are known already are ignored.
  void Add(const v1::JobEvent& event);
  // Adds what the ranks hold now. Of each tier and class the rank that holds the most counts.
  void AddMemory(int64_t unix_ms, const v1::GetMemoryResponse& memory);

  v1::JobHistory Message() const;
  int64_t last_sequence() const { return last_sequence_; }

 private:
  struct Step {
    int64_t weight = 1;
    int64_t step = 0, unix_ms = 0;
    float loss = 0, loss_min = 0, loss_max = 0;
    float grad_norm = 0, learning_rate = 0, tokens_per_second = 0, step_seconds = 0;
    void Absorb(const Step& newer);
  };
  // An evaluation's loss, a checkpoint's seconds.
  struct Value {
    int64_t weight = 1;
    int64_t step = 0, unix_ms = 0;
    float value = 0;
    void Absorb(const Value& newer);
  };
  using TierAndClass = std::pair<v1::Tier, v1::BufferClass>;
  struct Moment {
    int64_t weight = 1;
    int64_t unix_ms = 0;
    std::map<TierAndClass, int64_t> bytes;
    void Absorb(const Moment& newer);
  };

  int64_t last_sequence_ = 0;
  Thinned<Step> steps_;
  Thinned<Value> evals_;
  Thinned<Value> checkpoints_;
  Thinned<Moment> memory_;
};

}  // namespace terrace
