// A job whose layout says nothing, so that the search chooses all of it. For tests of the search.
//
// `config` is a config.json. bf16; the data is that of TinySpec.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {

inline v1::JobSpec OpenSpec(const std::string& config, int64_t sequence, int64_t batch) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_model()->set_config_json(config);
  spec.mutable_model()->set_attention("config");
  spec.mutable_data()->set_sequence_length(sequence);
  spec.mutable_train()->set_global_batch(batch);
  spec.mutable_train()->set_precision("bf16");
  spec.clear_layout();
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_sequence_parallel(-1);
  spec.mutable_layout()->set_persistent_parameters(-1);
  spec.mutable_layout()->set_tile_bytes(-1);
  spec.mutable_layout()->set_allocator("planned");
  return spec;
}

}  // namespace terrace
