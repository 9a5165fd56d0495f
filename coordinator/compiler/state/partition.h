// Which part of each tensor a tensor-parallel rank holds: by outputs, by inputs, by vocabulary, or
// all of it (Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv
// 2205.05198, for what sequence parallelism changes).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/compiler/state/parameters.h"

namespace terrace::compiler {

// Tensors that share the input of their product, in the order in which they are stored: those after
// the one of `role`.
std::vector<TensorRole> StoredWith(TensorRole role, const Parallel& parallel);

// Fills parts, shape, split_block and sums. `tensors` are stored one after the other.
void Partition(const ModelConfig& config, const std::vector<const Tensor*>& tensors,
               const Parallel& parallel, Parameter* parameter);

// Whether tensor parallelism splits the product's inputs rather than its outputs.
bool SplitByInputs(TensorRole role);

// Rows of a vocabulary table on each rank, padding included.
int64_t VocabularyRows(const ModelConfig& config, const Parallel& parallel);
// Heads of queries and of keys and values on each rank.
int64_t LocalHeads(const ModelConfig& config, const Parallel& parallel);
int64_t LocalKeyHeads(const ModelConfig& config, const Parallel& parallel);

}  // namespace terrace::compiler
