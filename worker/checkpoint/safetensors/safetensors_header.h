// The JSON header of a safetensors file, parsed with suspicion: a hostile header is an error, never
// a wild read.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"

namespace terrace {

inline constexpr int64_t kSafetensorsHeaderLimitBytes =
    100'000'000;  // as the reference implementation

struct SafetensorsEntry {
  std::string name;
  std::string stored_dtype;  // as written: "F32", "BOOL"
  std::optional<kernels::DType>
      dtype;  // what it is to us; absent: a type that no tensor of ours has
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the data section
  int64_t end = 0;
};

struct SafetensorsHeader {
  int64_t data_offset = 0;                // of the data section in the file
  std::vector<SafetensorsEntry> entries;  // by begin
  std::map<std::string, std::string> metadata;
};

// The bytes at the beginning of a file that say how long its header is.
inline constexpr int64_t kSafetensorsPrefixBytes = 8;
// How many bytes of the file the header takes, prefix included. `beginning`: the first
// kSafetensorsPrefixBytes or all there are; `path` is for messages. DATA_LOSS when the file is cut
// off, INVALID_ARGUMENT when it lies.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(std::span<const std::byte> beginning,
                                               int64_t file_bytes, std::string_view path);
// `beginning`: as many bytes as SafetensorsHeaderBytes says, or more; else the same.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> beginning,
                                                         int64_t file_bytes, std::string_view path);

// "F32" and so on; what the writer writes.
std::string_view SafetensorsDtypeName(kernels::DType dtype);

}  // namespace terrace
