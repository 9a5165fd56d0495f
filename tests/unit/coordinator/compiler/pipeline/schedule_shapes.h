// Shapes of schedules that tests go through.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/pipeline/schedule.h"

namespace terrace::compiler {

using Schedule = std::vector<std::vector<Pass>>;

inline constexpr IdealCosts kEqualCosts = {.forward = 1, .backward_input = 1, .backward_weight = 1};

inline Schedule MakeOrDie(const ScheduleShape& shape) {
  auto schedule = MakeSchedule(shape);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return schedule.value_or(Schedule());
}

inline std::string Describe(const ScheduleShape& shape) {
  return shape.name + " stages " + std::to_string(shape.stages) + " chunks " +
         std::to_string(shape.chunks) + " micro-batches " + std::to_string(shape.micro_batches);
}

inline const std::vector<std::string>& Names() {
  static const auto* names =
      new std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "breadth_first"};
  return *names;
}

// 1 to 8 stages, 1 to 17 micro-batches, up to 4 chunks.
inline std::vector<ScheduleShape> Shapes(const std::string& name) {
  std::vector<ScheduleShape> shapes;
  const bool looped = name == "interleaved" || name == "breadth_first";
  for (int chunks = name == "interleaved" ? 2 : 1; chunks <= (looped ? 4 : 1); ++chunks) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int micro_batches = 1; micro_batches <= 17; ++micro_batches) {
        shapes.push_back({name, stages, name == "zbv" ? 2 : chunks, micro_batches});
      }
    }
  }
  return shapes;
}

inline std::vector<ScheduleShape> AllShapes() {
  std::vector<ScheduleShape> shapes;
  for (const std::string& name : Names()) {
    for (ScheduleShape& shape : Shapes(name)) shapes.push_back(std::move(shape));
  }
  return shapes;
}

}  // namespace terrace::compiler
