// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/export/exported_folder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/model_files.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

constexpr int64_t kCopyLimitBytes = 256 << 20;

}  // namespace

absl::StatusOr<DType> ParseExportDtype(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == kernels::Name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype is \"", Absl(name), "\", must be f32, bf16 or f16"));
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenVerified(std::string_view checkpoint) {
  RETURN_IF_ERROR(VerifyCheckpoint(checkpoint));
  return SafetensorsReader::Open(PathIn(checkpoint, kModelFile));
}

absl::StatusOr<PendingFolder> CreateExportFolder(std::string_view output) {
  fs::path target = fs::path(output).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "folder/"
  std::error_code ignored;
  if (fs::exists(target, ignored) && !fs::is_empty(target, ignored)) {
    return absl::AlreadyExistsError(
        absl::StrCat(target.string(), " exists; choose another folder or remove it"));
  }
  return PendingFolder::Create(target.parent_path().string(), target.filename().string(),
                               ::getpid());
}

absl::Status CheckIsConvertible(const StoredTensor& tensor, DType dtype) {
  if (CanConvert(tensor.dtype, dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", tensor.name, " is not of a floating-point type"));
}

absl::Status CheckRange(std::string_view tensor, DType dtype,
                        std::span<const std::byte> converted) {
  if (dtype != DType::kF16) return absl::OkStatus();
  for (size_t i = 0; i + 1 < converted.size(); i += 2) {
    const uint16_t bits =
        std::to_integer<uint16_t>(converted[i]) | std::to_integer<uint16_t>(converted[i + 1]) << 8;
    if ((bits & 0x7fff) == 0x7c00) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Absl(tensor),
                       " has values beyond 65504, the largest of f16; use bf16 or f32"));
    }
  }
  return absl::OkStatus();
}

absl::Status AppendConverted(const StoredWeight& tensor, DType dtype, SafetensorsWriter* writer) {
  std::vector<std::byte> converted;
  for (int64_t begin = 0; begin < tensor.elements(); begin += kExportChunkElements) {
    const int64_t count = std::min(kExportChunkElements, tensor.elements() - begin);
    converted.resize(count * kernels::SizeOf(dtype));
    RETURN_IF_ERROR(tensor.Read(begin, dtype, converted));
    if (tensor.dtype() != dtype) RETURN_IF_ERROR(CheckRange(tensor.name(), dtype, converted));
    RETURN_IF_ERROR(writer->Append(converted));
  }
  return absl::OkStatus();
}

absl::Status WriteModelFiles(std::string_view checkpoint, DType dtype, const SpecialTokens& special,
                             std::string_view folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListModelFiles(checkpoint));
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(std::string text, ReadTextFile(PathIn(checkpoint, name), kCopyLimitBytes));
    if (name == "config.json") {
      ASSIGN_OR_RETURN(text, CompleteModelConfig(text, dtype, special));
    }
    RETURN_IF_ERROR(WriteSyncedFile(PathIn(folder, name), text));
  }
  return NameSpecialTokens(special, folder);
}

}  // namespace terrace
