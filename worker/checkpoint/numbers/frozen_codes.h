// Weights as codes in blocks (kernels/block_codes.h), made of numbers wherever these come from.
// Blocks are of the tensor's elements in order, so what a rank holds of them does not matter.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "proto/program/announced_weights.h"

namespace terrace {

// Elements from `begin` on of a tensor.
using NumberSource = std::function<absl::Status(int64_t begin, std::span<float> to)>;

// Bytes of codes from byte `begin` on, or scales from block `begin` on.
absl::Status EncodeCodes(const CodeFormat& format, const NumberSource& source, int64_t begin,
                         std::span<std::byte> to);
absl::Status EncodeScales(const CodeFormat& format, const NumberSource& source, int64_t begin,
                          std::span<std::byte> to);

}  // namespace terrace
