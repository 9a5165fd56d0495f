// SPDX-License-Identifier: Apache-2.0
// ExportCheckpoint: the weights of a checkpoint as a folder for `transformers`.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/folder.h"
#include "worker/checkpoint/model_files.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

constexpr int64_t kChunkElements = 1 << 20;
constexpr int64_t kCopyLimitBytes = 256 << 20;

absl::StatusOr<DType> ParseDtype(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == kernels::Name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype is \"", Absl(name), "\", must be f32, bf16 or f16"));
}

// Only f16 is too narrow for numbers that a model may hold.
absl::Status CheckRange(const StoredTensor& tensor, DType dtype,
                        std::span<const std::byte> converted) {
  if (dtype != DType::kF16) return absl::OkStatus();
  for (size_t i = 0; i + 1 < converted.size(); i += 2) {
    const uint16_t bits =
        std::to_integer<uint16_t>(converted[i]) | std::to_integer<uint16_t>(converted[i + 1]) << 8;
    if ((bits & 0x7fff) == 0x7c00) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensor.name, " has values beyond 65504, the largest of f16; use bf16 or f32"));
    }
  }
  return absl::OkStatus();
}

absl::Status AppendConverted(const StoredTensor& tensor, DType dtype, SafetensorsWriter* writer) {
  const int64_t source_bytes = kernels::SizeOf(tensor.dtype);
  std::vector<std::byte> source, converted;
  for (int64_t begin = 0; begin < tensor.elements(); begin += kChunkElements) {
    const int64_t count = std::min(kChunkElements, tensor.elements() - begin);
    source.resize(count * source_bytes);
    RETURN_IF_ERROR(tensor.Read(begin * source_bytes, source));
    if (tensor.dtype == dtype) {
      RETURN_IF_ERROR(writer->Append(source));
      continue;
    }
    converted.resize(count * kernels::SizeOf(dtype));
    ConvertElements(tensor.dtype, source.data(), dtype, converted.data(), count);
    RETURN_IF_ERROR(CheckRange(tensor, dtype, converted));
    RETURN_IF_ERROR(writer->Append(converted));
  }
  return absl::OkStatus();
}

absl::Status WriteModel(const SafetensorsReader& reader, DType dtype, const std::string& path) {
  std::vector<StoredTensor> tensors;
  std::vector<TensorToWrite> to_write;
  for (const std::string& name : reader.Names()) {
    ASSIGN_OR_RETURN(StoredTensor tensor, reader.Get(name));
    if (!CanConvert(tensor.dtype, dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", name, " is not of a floating-point type"));
    }
    to_write.push_back({name, dtype, tensor.shape});
    tensors.push_back(std::move(tensor));
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(path, to_write, {{"format", "pt"}}));
  for (const StoredTensor& tensor : tensors) {
    RETURN_IF_ERROR(AppendConverted(tensor, dtype, &writer));
  }
  return writer.Finish();
}

absl::Status WriteCompanions(const fs::path& from, DType dtype, const SpecialTokens& special,
                             const fs::path& to) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListModelFiles(from.string()));
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(std::string text, ReadTextFile((from / name).string(), kCopyLimitBytes));
    if (name == "config.json") {
      ASSIGN_OR_RETURN(text, CompleteModelConfig(text, dtype, special));
    }
    RETURN_IF_ERROR(WriteSyncedFile((to / name).string(), text));
  }
  return NameSpecialTokens(special, to.string());
}

}  // namespace

absl::Status ExportCheckpoint(std::string_view checkpoint, std::string_view output,
                              std::string_view dtype_name, const SpecialTokens& special) {
  ASSIGN_OR_RETURN(const DType dtype, ParseDtype(dtype_name));
  RETURN_IF_ERROR(VerifyCheckpoint(checkpoint));
  fs::path target = fs::path(output).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "folder/"
  std::error_code ignored;
  if (fs::exists(target, ignored) && !fs::is_empty(target, ignored)) {
    return absl::AlreadyExistsError(
        absl::StrCat(target.string(), " exists; choose another folder or remove it"));
  }
  ASSIGN_OR_RETURN(
      PendingFolder folder,
      PendingFolder::Create(target.parent_path().string(), target.filename().string(), ::getpid()));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader,
                   SafetensorsReader::Open((fs::path(checkpoint) / "model.safetensors").string()));
  RETURN_IF_ERROR(
      WriteModel(*reader, dtype, (fs::path(folder.path()) / "model.safetensors").string()));
  RETURN_IF_ERROR(WriteCompanions(fs::path(checkpoint), dtype, special, fs::path(folder.path())));
  return folder.Commit();
}

}  // namespace terrace
