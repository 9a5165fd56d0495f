// A planner in the process of the test: what is given answers, on one thread. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "base/loop.h"
#include "coordinator/planning/planner.h"

namespace terrace {

class FakePlanner final : public Planner {
 public:
  using Answer = std::function<absl::StatusOr<v1::PlannerAnswer>(const v1::PlannerRequest&)>;

  explicit FakePlanner(Answer answer) : answer_(std::move(answer)) {
    loop_.Start(absl::InfiniteDuration(), [] { return absl::InfiniteDuration(); });
  }
  void Start(Work work) override {
    loop_.Post([this, work = std::move(work)] { work.done(answer_(work.request)); });
  }
  void Stop() override { loop_.Stop(); }

 private:
  const Answer answer_;
  Loop loop_;
};

}  // namespace terrace
