// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/tensor_files.h"

#include <map>
#include <utility>

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

std::array<TensorFile, kTensorFiles> TensorFilesOf(const v1::Program& program) {
  TensorFile model = {.name = kModelFile}, optimizer = {.name = kOptimizerFile};
  for (const v1::Initializer& initializer : program.initializers()) {
    model.tensors.push_back(Announced(initializer, v1::WEIGHT));
    optimizer.tensors.push_back(Announced(initializer, v1::ADAM_M));
    optimizer.tensors.push_back(Announced(initializer, v1::ADAM_V));
  }
  return {std::move(model), std::move(optimizer)};
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

}  // namespace terrace
