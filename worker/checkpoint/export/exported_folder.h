// What the exports share: the number type that is asked for, the folder that appears when it is
// whole, and tensors that are converted on their way into it.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"
#include "worker/checkpoint/folder.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/stored_weight.h"
#include "worker/data/special_tokens.h"

namespace terrace {

// How many elements of a tensor are converted at a time.
inline constexpr int64_t kExportChunkElements = 1 << 20;

absl::StatusOr<kernels::DType> ParseExportDtype(std::string_view name);

// The weights of a checkpoint whose every byte is as it was written.
absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenVerified(std::string_view checkpoint);

// ALREADY_EXISTS when there is something at `output`.
absl::StatusOr<PendingFolder> CreateExportFolder(std::string_view output);

// INVALID_ARGUMENT when the numbers of `tensor` are none that can become `dtype`.
absl::Status CheckIsConvertible(const StoredTensor& tensor, kernels::DType dtype);
// INVALID_ARGUMENT when f16 was too narrow for one of `converted`, which are of `dtype`.
absl::Status CheckRange(std::string_view tensor, kernels::DType dtype,
                        std::span<const std::byte> converted);
// What rests as codes is decoded.
absl::Status AppendConverted(const StoredWeight& tensor, kernels::DType dtype,
                             SafetensorsWriter* writer);

// The checkpoint's config.json, tokenizer and generation files, for weights of `dtype`.
absl::Status WriteModelFiles(std::string_view checkpoint, kernels::DType dtype,
                             const SpecialTokens& special, std::string_view folder);

}  // namespace terrace
