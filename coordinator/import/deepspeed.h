// From a DeepSpeed configuration (ds_config.json) to a job spec: every key that DeepSpeed documents
// (deepspeed.ai, "DeepSpeed Configuration JSON") is mapped, automatic or absent here; other keys
// are unknown, with the nearest that exists.
//
// In: the text of ds_config.json, and what it does not say: model, data, devices. Out: the draft.
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/import/draft.h"

namespace terrace {

// What neither configuration format holds. Empty or 0: a placeholder or one, with a remark.
struct ImportContext {
  std::string name;
  std::string model;  // preset or path
  std::string train;  // path of the training data
  int64_t sequence_length = 0;
  int64_t steps = 0;
  uint32_t nodes = 0;
  uint32_t devices_per_node = 0;
};

// INVALID_ARGUMENT when the text is no JSON object, or batch sizes contradict each other.
absl::StatusOr<SpecDraft> ImportDeepSpeed(std::string_view json, const ImportContext& context);

// Whether the job's gradients may be bf16: those of fp32 training are f32. An undecided precision
// is the spec's own default.
bool AllowsBf16Gradients(const SpecDraft& draft);

// Fills what `context` says or a job needs, and remarks on placeholders.
void Complete(const ImportContext& context, SpecDraft* draft);

}  // namespace terrace
