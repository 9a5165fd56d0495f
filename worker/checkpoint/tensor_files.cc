// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/tensor_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "worker/checkpoint/manifest.h"

namespace terrace {
namespace {

std::map<std::string, std::string> Metadata() { return {{"format", "pt"}}; }

TensorToWrite Announced(const v1::Initializer& initializer, v1::StateKind kind) {
  return {StoredName(initializer.tensor(), kind),
          kernels::DType::kF32,
          {initializer.shape().begin(), initializer.shape().end()}};
}

}  // namespace

std::vector<TensorFile> TensorFilesOf(const v1::Program& program) {
  TensorFile model = {.name = kModelFile}, optimizer = {.name = kOptimizerFile};
  for (const v1::Initializer& initializer : program.initializers()) {
    model.tensors.push_back(Announced(initializer, v1::WEIGHT));
    optimizer.tensors.push_back(Announced(initializer, v1::ADAM_M));
    optimizer.tensors.push_back(Announced(initializer, v1::ADAM_V));
  }
  std::vector<TensorFile> files;
  files.push_back(std::move(model));
  files.push_back(std::move(optimizer));
  return files;
}

std::string_view FileOfKind(v1::StateKind kind) {
  return kind == v1::WEIGHT ? kModelFile : kOptimizerFile;
}

absl::StatusOr<SafetensorsWriter> CreateTensorFile(std::string_view folder,
                                                   const TensorFile& file) {
  return SafetensorsWriter::Create(PathIn(folder, file.name), file.tensors, Metadata());
}

absl::StatusOr<SafetensorsWriter> JoinTensorFile(std::string_view folder, const TensorFile& file) {
  return SafetensorsWriter::Join(PathIn(folder, file.name), file.tensors, Metadata());
}

bool OwnsSome(const StateTensor& tensor) {
  return std::any_of(tensor.slices.begin(), tensor.slices.end(),
                     [](const StateSlice& slice) { return slice.owned; });
}

absl::Status WriteOwned(std::vector<const StateTensor*> tensors, SafetensorsWriter* writer) {
  std::vector<std::pair<int64_t, const StateTensor*>> by_offset;
  for (const StateTensor* tensor : tensors) {
    ASSIGN_OR_RETURN(const int64_t offset,
                     writer->OffsetOf({tensor->stored_name, tensor->dtype, tensor->shape}));
    by_offset.emplace_back(offset, tensor);
  }
  std::sort(by_offset.begin(), by_offset.end());
  for (const auto& [offset, tensor] : by_offset) {
    const int64_t size = kernels::SizeOf(tensor->dtype);
    for (const StateSlice& slice : tensor->slices) {
      if (!slice.owned) continue;
      RETURN_IF_ERROR(
          writer->WriteAt(offset + slice.begin * size,
                          std::span<const std::byte>(slice.data, slice.elements * size)));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
