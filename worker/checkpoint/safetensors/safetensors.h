// The safetensors file format: an 8-byte header length, a JSON header, raw little-endian tensors.
// Reader by range, writer by one or several processes; neither holds more of a file in memory than
// its header. Everything a hostile or truncated file can do is an error with the file's name, never
// a crash.
//
// Reader: thread-safe after Open. Writer: WriteAt is thread-safe, the rest thread-compatible.
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
#include "kernels/tensor_view.h"
#include "worker/checkpoint/safetensors/file_reader.h"

namespace terrace {

struct StoredTensor {
  std::string name;
  kernels::DType dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  const FileReader* file = nullptr;  // owned by the reader
  int64_t offset = 0;                // of its first byte in the file

  int64_t elements() const { return bytes / kernels::SizeOf(dtype); }
  // Bytes [from, from + to.size()) of the tensor. DATA_LOSS when the file has become shorter.
  absl::Status Read(int64_t from, std::span<std::byte> to) const;
  // All of it: for small ones and for tests.
  absl::StatusOr<std::vector<std::byte>> ReadAll() const;
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
  std::vector<std::unique_ptr<FileReader>> files_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>>
      other_types_;  // tensors of types that nothing of ours has: name -> type
  std::map<std::string, std::string> metadata_;
};

struct TensorToWrite {
  std::string name;
  kernels::DType dtype;
  std::vector<int64_t> shape;
  int64_t bytes() const;
};

// Writes a file of tensors in the given order, alone or together with writers in other processes,
// each a part of it. Not atomic: write to a temporary folder.
class SafetensorsWriter {
 public:
  // Makes the file, of its final size, and writes the header.
  // RESOURCE_EXHAUSTED (ENOSPC) with the path when the disk is too small.
  static absl::StatusOr<SafetensorsWriter> Create(
      std::string_view path, const std::vector<TensorToWrite>& tensors,
      const std::map<std::string, std::string>& metadata);
  // Opens what another process has made with the same tensors and metadata. FAILED_PRECONDITION
  // when the file is another.
  static absl::StatusOr<SafetensorsWriter> Join(std::string_view path,
                                                const std::vector<TensorToWrite>& tensors,
                                                const std::map<std::string, std::string>& metadata);

  // Where in the file the tensor begins. NOT_FOUND when the header does not announce it just so.
  absl::StatusOr<int64_t> OffsetOf(const TensorToWrite& tensor) const;
  absl::Status WriteAt(int64_t offset, std::span<const std::byte> bytes);
  // Behind what was appended last; at first behind the header.
  absl::Status Append(std::span<const std::byte> bytes);
  // fsyncs.
  absl::Status Sync();
  // The same, and fails when this writer has not written every tensor.
  absl::Status Finish();

  int64_t file_bytes() const;
  int64_t data_bytes() const;     // of all tensors
  int64_t written_bytes() const;  // of tensors, by this writer
  // What this writer wrote, header included, adds to the sum of the file (file_sum.h).
  uint64_t sum() const;

 private:
  struct State;
  explicit SafetensorsWriter(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace terrace
