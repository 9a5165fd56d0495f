// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/safetensors_header.h"

namespace terrace {
namespace {

// What is hashed is written while it is still in the cache.
constexpr size_t kChunkBytes = size_t{1} << 20;

int64_t BytesOf(const TensorToWrite& tensor) {
  int64_t bytes = kernels::SizeOf(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

// The length prefix and the JSON, padded with spaces so that the data is aligned to 8 bytes.
std::string HeaderBytes(const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t begin = 0;
  for (const TensorToWrite& tensor : tensors) {
    const int64_t end = begin + BytesOf(tensor);
    json[tensor.name] = {{"dtype", SafetensorsDtypeName(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string prefix(sizeof(length), '\0');
  std::memcpy(prefix.data(), &length, sizeof(length));
  return prefix + text;
}

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

struct SafetensorsWriter::State {
  std::string path;
  UniqueFd fd;
  int64_t file_bytes = 0;
  int64_t written = 0;
  std::unique_ptr<XXH3_state_t, FreeHash> hash{XXH3_createState()};

  absl::Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto chunk = bytes.first(std::min(bytes.size(), kChunkBytes));
      XXH3_64bits_update(hash.get(), chunk.data(), chunk.size());
      RETURN_IF_ERROR(WriteAll(fd, chunk, path));
      written += chunk.size();
      bytes = bytes.subspan(chunk.size());
    }
    return absl::OkStatus();
  }

  // A disk that is too small is known before gigabytes are written. File systems that cannot
  // reserve say so; then the writes themselves tell.
  absl::Status Reserve() const {
    if (::fallocate(fd.get(), 0, 0, file_bytes) == 0 ||
        (errno != ENOSPC && errno != EDQUOT && errno != EFBIG)) {
      return absl::OkStatus();
    }
    return FileError(errno, absl::StrCat("reserve ", file_bytes, " bytes for"), path);
  }
};

SafetensorsWriter::SafetensorsWriter(std::shared_ptr<State> state)
    : state_(std::move(state)), file_bytes_(state_->file_bytes) {}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    std::string_view path, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata) {
  auto state = std::make_shared<State>();
  state->path = std::string(path);
  const std::string header = HeaderBytes(tensors, metadata);
  state->file_bytes = header.size();
  for (const TensorToWrite& tensor : tensors) state->file_bytes += BytesOf(tensor);
  XXH3_64bits_reset(state->hash.get());
  ASSIGN_OR_RETURN(state->fd, CreateFile(path));
  RETURN_IF_ERROR(state->Reserve());
  RETURN_IF_ERROR(state->Write(std::as_bytes(std::span(header))));
  return SafetensorsWriter(std::move(state));
}

absl::Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > file_bytes_ - state_->written) {
    return absl::InternalError(
        absl::StrCat(state_->path, ": more tensor bytes than the header announced"));
  }
  return state_->Write(bytes);
}

absl::Status SafetensorsWriter::Finish() {
  if (state_->written != file_bytes_) {
    return absl::InternalError(absl::StrCat(state_->path, ": ", file_bytes_ - state_->written,
                                            " of the announced tensor bytes were not appended"));
  }
  return SyncFile(state_->fd, state_->path);
}

uint64_t SafetensorsWriter::xxh3() const { return XXH3_64bits_digest(state_->hash.get()); }

}  // namespace terrace
