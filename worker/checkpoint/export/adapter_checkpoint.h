// The matrices of a checkpoint that have an adapter beside them.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "worker/checkpoint/export/low_rank.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/stored_weight.h"

namespace terrace {

bool HasAdapter(const SafetensorsReader& weights);

struct Adapted {
  StoredWeight weight;
  StoredTensor a;  // [rank, in]
  StoredTensor b;  // [out, rank]
};

// A checkpoint of a job that trained an adapter.
struct AdapterCheckpoint {
  v1::JobSpec spec;                        // of that job
  bool transposed = false;                 // matrices are stored [in, out], as gpt2's
  std::map<std::string, Adapted> modules;  // "model.layers.0.mlp.up_proj" -> its tensors

  const v1::LoraSpec& lora() const { return spec.model().lora(); }  // rank > 0
};
// INVALID_ARGUMENT when it holds no adapter, DATA_LOSS when its tensors do not fit together.
// Borrows `weights`.
absl::StatusOr<AdapterCheckpoint> ReadAdapterCheckpoint(std::string_view checkpoint,
                                                        const SafetensorsReader& weights);

// The tensors of the model itself that the job trained besides: none, unless its groups say so.
std::vector<std::string> TrainedBeside(const AdapterCheckpoint& checkpoint,
                                       const SafetensorsReader& weights);

// alpha / rank or alpha / sqrt(rank).
float ScaleOf(const v1::LoraSpec& lora);

// The two thin matrices, in f32 and turned so that their product lies as the weight does.
absl::StatusOr<LowRank> ReadLowRank(const AdapterCheckpoint& checkpoint, const Adapted& adapted);

}  // namespace terrace
