// Jobs and budgets for tests of Prepare.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "coordinator/hardware/profiles.h"
#include "coordinator/model/presets.h"
#include "coordinator/prepare/prepare.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {

inline v1::JobSpec Spec(const std::string& family = "gpt2", const std::string& precision = "fp32") {
  v1::JobSpec spec = TinySpec();
  spec.mutable_model()->set_config_json(TinyConfig(family));
  spec.mutable_model()->set_attention("config");
  spec.mutable_train()->set_precision(precision);
  spec.mutable_train()->set_global_batch(8);
  return spec;
}

// A model large enough that what is in the arenas matters beside what is not.
inline v1::JobSpec Gpt2(const std::string& precision, uint32_t micro_batch) {
  v1::JobSpec spec = Spec();
  spec.mutable_model()->set_config_json(std::string(FindPreset("gpt2")->config_json));
  spec.mutable_data()->set_sequence_length(256);
  spec.mutable_train()->set_precision(precision);
  spec.mutable_layout()->set_micro_batch(micro_batch);
  spec.mutable_layout()->set_recompute("none");
  return spec;
}

// The host has no memory to offer.
inline v1::JobSpec Alone(v1::JobSpec spec) {
  spec.mutable_resources()->set_host_memory(int64_t{1} << 20);
  return spec;
}

// Nothing pinned.
inline v1::JobSpec Open(v1::JobSpec spec) {
  spec.clear_layout();
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_sequence_parallel(-1);
  return spec;
}

inline Budget MakeBudget(int64_t device_memory_bytes = 0, uint32_t ranks = 1) {
  return {.ranks = ranks,
          .threads_per_rank = 2,
          .device_memory_bytes = device_memory_bytes,
          .profile = CpuProfile(2)};
}

inline int64_t DeviceBytes(const v1::Program& program) {
  return program.arenas(0).bytes() + program.external_bytes();
}

// Of the largest stage.
inline int64_t DeviceBytes(const Prepared& prepared) {
  int64_t bytes = 0;
  for (const v1::Program& program : prepared.programs) {
    bytes = std::max(bytes, DeviceBytes(program));
  }
  return bytes;
}

// Of the smallest layout on one rank that keeps precision and sequence length.
inline int64_t LeastBytes(const std::string& precision) {
  int64_t least = INT64_MAX;
  for (const char* schedule : {"1f1b", "breadth_first"}) {
    for (const char* recompute : {"none", "selective", "block", "sqrt"}) {
      v1::JobSpec spec = Gpt2(precision, 1);
      spec.mutable_layout()->set_schedule(schedule);
      spec.mutable_layout()->set_recompute(recompute);
      const auto prepared = Prepare(spec, MakeBudget());
      EXPECT_TRUE(prepared.ok()) << prepared.status();
      if (prepared.ok()) least = std::min(least, DeviceBytes(*prepared));
    }
  }
  return least;
}

inline std::string Refusal(const v1::JobSpec& spec, const Budget& budget, absl::StatusCode code) {
  const auto prepared = Prepare(spec, budget);
  EXPECT_EQ(prepared.status().code(), code) << prepared.status();
  return std::string(prepared.status().message());
}

}  // namespace terrace
