// Jobs for measuring the search: a well-known model on a cluster of the catalogue, with nothing of
// its layout pinned unless the case says so.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/model/presets.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct SearchCase {
  std::string_view preset;
  std::string_view cluster;
  int64_t sequence = 0;
  int64_t global_batch = 0;
  int64_t host_gib = 0;  // of a rank; 0: the cluster's
  std::string_view pinned = "";
};

// "zero 3", "tp 8 pp 16", "pp 16 zbv".
inline void Pin(std::string_view words, v1::LayoutSpec* layout) {
  std::istringstream in{std::string(words)};
  for (std::string key; in >> key;) {
    uint32_t value = 0;
    if (key == "zbv") {
      layout->set_schedule(key);
    } else if (in >> value; key == "zero") {
      layout->set_zero(static_cast<int32_t>(value));
    } else if (key == "tp") {
      layout->set_tp(value);
    } else if (key == "pp") {
      layout->set_pp(value);
    }
  }
}

inline v1::JobSpec SpecOf(const SearchCase& c) {
  v1::JobSpec spec;
  spec.set_name("bench");
  spec.mutable_model()->set_config_json(std::string(FindPreset(c.preset)->config_json));
  spec.mutable_model()->set_attention("config");
  spec.mutable_data()->set_sequence_length(c.sequence);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(1000);
  train->set_global_batch(c.global_batch);
  train->set_precision("bf16");
  train->set_clip_grad_norm(1);
  train->mutable_optimizer()->set_lr(1e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_optimizer()->set_weight_decay(0.1);
  train->mutable_schedule()->set_name("cosine");
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_sequence_parallel(-1);
  spec.mutable_layout()->set_persistent_parameters(-1);
  spec.mutable_layout()->set_tile_bytes(-1);
  Pin(c.pinned, spec.mutable_layout());
  spec.mutable_resources()->set_nodes_min(1);
  spec.mutable_resources()->set_nodes_max(1);
  spec.mutable_resources()->set_devices_per_node(1);
  return spec;
}

// Whether the case is asked for: each of `parts` is in its name.
inline bool NamesAll(const std::string& name, const std::vector<std::string_view>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

inline double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace terrace
