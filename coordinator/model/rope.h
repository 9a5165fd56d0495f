// The rotary frequencies of a model, with the scaling variants of the Hugging Face configs:
// default, linear, dynamic, yarn, llama3, longrope. Numbers stand where transformers 4 writes them
// (rope_theta, rope_scaling) or where 5 does (rope_parameters), and count as 5 reads them; where
// the two differ, a remark says so. Some families have them for each kind of layers. Problems are
// gathered in the reader's list. Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/model/config.h"
#include "coordinator/model/family.h"
#include "coordinator/model/json_reader.h"

namespace terrace {

struct RopeInput {
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  int64_t sequence_length = 0;  // what the job trains with: "dynamic" and "longrope" depend on it
};

struct Ropes {
  RopeConfig rope;
  RopeConfig local;  // of layers with a window; empty where all layers have the same
};

Ropes ReadRopes(JsonReader& config, const RopeInput& input, const RotaryRule& rule,
                std::vector<std::string>* problems, std::vector<std::string>* remarks);

}  // namespace terrace
