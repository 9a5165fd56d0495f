// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/safetensors/file_sum.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/safetensors/safetensors_header.h"

namespace terrace {
namespace {

// What is summed is written while it is still in the cache.
constexpr size_t kChunkBytes = size_t{1} << 20;

// The length prefix and the JSON, padded with spaces so that the data is aligned to 8 bytes.
std::string HeaderBytes(const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t begin = 0;
  for (const TensorToWrite& tensor : tensors) {
    const int64_t end = begin + tensor.bytes();
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

}  // namespace

int64_t TensorToWrite::bytes() const {
  int64_t bytes = kernels::SizeOf(dtype);
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

struct SafetensorsWriter::State {
  struct Place {
    TensorToWrite tensor;
    int64_t offset = 0;
  };

  State(std::string_view file, const std::vector<TensorToWrite>& tensors,
        const std::map<std::string, std::string>& metadata)
      : path(file), header(HeaderBytes(tensors, metadata)) {
    file_bytes = next = header.size();
    for (const TensorToWrite& tensor : tensors) {
      places.emplace(tensor.name, Place{tensor, file_bytes});
      file_bytes += tensor.bytes();
    }
  }

  // A disk that is too small is known before gigabytes are written. File systems that cannot
  // reserve say so; then the writes themselves tell.
  absl::Status Reserve() const {
    if (::fallocate(fd.get(), 0, 0, file_bytes) == 0) return absl::OkStatus();
    if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG &&
        ::ftruncate(fd.get(), file_bytes) == 0) {
      return absl::OkStatus();
    }
    return FileError(errno, absl::StrCat("reserve ", file_bytes, " bytes for"), path);
  }

  absl::Status WriteAt(int64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto chunk = bytes.first(std::min(bytes.size(), kChunkBytes));
      sum.fetch_add(SumOfPart(offset, chunk));
      RETURN_IF_ERROR(WriteChunk(offset, chunk));
      offset += chunk.size();
      bytes = bytes.subspan(chunk.size());
    }
    return absl::OkStatus();
  }

  absl::Status WriteChunk(int64_t offset, std::span<const std::byte> chunk) const {
    while (!chunk.empty()) {
      const ssize_t done = ::pwrite(fd.get(), chunk.data(), chunk.size(), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return FileError(errno, "write", path);
      offset += done;
      chunk = chunk.subspan(done);
    }
    return absl::OkStatus();
  }

  const std::string path;
  const std::string header;
  std::map<std::string, Place, std::less<>> places;
  int64_t file_bytes = 0;
  UniqueFd fd;
  int64_t next = 0;  // behind what was appended last
  std::atomic<int64_t> written = 0;
  std::atomic<uint64_t> sum = 0;  // of what this writer wrote
};

SafetensorsWriter::SafetensorsWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    std::string_view path, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata) {
  auto state = std::make_shared<State>(path, tensors, metadata);
  ASSIGN_OR_RETURN(state->fd, CreateFile(path));
  RETURN_IF_ERROR(state->Reserve());
  RETURN_IF_ERROR(state->WriteAt(0, std::as_bytes(std::span(state->header))));
  return SafetensorsWriter(std::move(state));
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Join(
    std::string_view path, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata) {
  auto state = std::make_shared<State>(path, tensors, metadata);
  state->fd = UniqueFd(::open(state->path.c_str(), O_RDWR | O_CLOEXEC));
  if (!state->fd.valid()) return FileError(errno, "open", path);
  std::string found(state->header.size(), '\0');
  const ssize_t bytes = ::pread(state->fd.get(), found.data(), found.size(), 0);
  if (bytes < 0) return FileError(errno, "read", path);
  if (found != state->header) {
    return absl::FailedPreconditionError(
        absl::StrCat(state->path, " was begun with other tensors than this rank's program lists"));
  }
  return SafetensorsWriter(std::move(state));
}

absl::StatusOr<int64_t> SafetensorsWriter::OffsetOf(const TensorToWrite& tensor) const {
  const auto found = state_->places.find(tensor.name);
  if (found == state_->places.end()) {
    return absl::NotFoundError(absl::StrCat(state_->path, " has no tensor ", tensor.name));
  }
  const State::Place& place = found->second;
  if (place.tensor.dtype == tensor.dtype && place.tensor.shape == tensor.shape) {
    return place.offset;
  }
  return absl::NotFoundError(absl::StrCat(state_->path, " has the tensor ", tensor.name, " as ",
                                          Absl(SafetensorsDtypeName(place.tensor.dtype)), " [",
                                          absl::StrJoin(place.tensor.shape, ", "), "], not as ",
                                          Absl(SafetensorsDtypeName(tensor.dtype)), " [",
                                          absl::StrJoin(tensor.shape, ", "), "]"));
}

absl::Status SafetensorsWriter::WriteAt(int64_t offset, std::span<const std::byte> bytes) {
  const int64_t size = bytes.size(), first = state_->header.size();
  if (offset < first || offset > state_->file_bytes || size > state_->file_bytes - offset) {
    return absl::InternalError(absl::StrCat(state_->path, ": bytes [", offset, ", +", size,
                                            ") are not of the tensors that the header announced"));
  }
  RETURN_IF_ERROR(state_->WriteAt(offset, bytes));
  state_->written.fetch_add(size);
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  RETURN_IF_ERROR(WriteAt(state_->next, bytes));
  state_->next += bytes.size();
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Sync() { return SyncFile(state_->fd, state_->path); }

absl::Status SafetensorsWriter::Finish() {
  if (written_bytes() != data_bytes()) {
    return absl::InternalError(absl::StrCat(state_->path, ": ", data_bytes() - written_bytes(),
                                            " of the announced tensor bytes were not written"));
  }
  return Sync();
}

int64_t SafetensorsWriter::file_bytes() const { return state_->file_bytes; }

int64_t SafetensorsWriter::data_bytes() const {
  return state_->file_bytes - static_cast<int64_t>(state_->header.size());
}

int64_t SafetensorsWriter::written_bytes() const { return state_->written.load(); }

uint64_t SafetensorsWriter::sum() const { return state_->sum.load(); }

}  // namespace terrace
