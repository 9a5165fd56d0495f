// The safetensors file format: an 8-byte header length, a JSON header, raw little-endian tensors.
// Reader over a memory map, streaming writer. Everything a hostile or truncated file can do is an
// error with the file's name, never a crash.
//
// Reader: thread-safe after Open. Writer: thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "kernels/tensor_view.h"

namespace terrace {

struct StoredTensor {
  std::string name;
  kernels::DType dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // owned by the reader
};

class SafetensorsReader {
 public:
  // `path`: a .safetensors file, a *.index.json (sharded), or a folder with model.safetensors or
  // model.safetensors.index.json.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(std::string_view path);

  // NOT_FOUND names the tensor and the nearest names there are.
  absl::StatusOr<StoredTensor> Get(std::string_view name) const;
  std::vector<std::string> Names() const;  // sorted
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsReader() = default;
  absl::Status AddFile(std::string_view path);
  absl::Status AddIndex(std::string_view path);
  std::vector<MappedFile> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>>
      other_types_;  // tensors of types that nothing of ours has: name -> type
  std::map<std::string, std::string> metadata_;
};

struct TensorToWrite {
  std::string name;
  kernels::DType dtype;
  std::vector<int64_t> shape;
};

// Writes the header first, then the tensors in the given order, then fsyncs. Not atomic: write to a
// temporary folder.
class SafetensorsWriter {
 public:
  static absl::StatusOr<SafetensorsWriter> Create(
      std::string_view path, const std::vector<TensorToWrite>& tensors,
      const std::map<std::string, std::string>& metadata);
  // The next bytes of the file's data section, in tensor order; any split.
  // UNAVAILABLE/RESOURCE_EXHAUSTED (ENOSPC) with the path.
  absl::Status Append(std::span<const std::byte> bytes);
  // Fails when not all bytes were appended. fsyncs.
  absl::Status Finish();
  int64_t file_bytes() const { return file_bytes_; }
  uint64_t xxh3() const;  // of the whole file, after Finish

 private:
  struct State;
  explicit SafetensorsWriter(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
  int64_t file_bytes_ = 0;
};

}  // namespace terrace
