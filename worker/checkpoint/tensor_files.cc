// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/tensor_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "proto/program/grid.h"
#include "proto/program/moments.h"
#include "proto/program/state_layout.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/stored_moment.h"
#include "worker/checkpoint/stored_weight.h"

namespace terrace {
namespace {

std::map<std::string, std::string> Metadata(const TensorFile& file) {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!file.optimizer.empty()) metadata[kOptimizerKey] = file.optimizer;
  if (file.moment_block > 0) metadata[kMomentBlockKey] = std::to_string(file.moment_block);
  if (file.frozen.row != nullptr) {
    metadata[kFrozenFormatKey] = file.frozen.row->name;
    metadata[kFrozenBlockKey] = std::to_string(file.frozen.block);
  }
  return metadata;
}

kernels::DType F32Where0(v1::DType type) {
  return type == v1::DTYPE_UNSPECIFIED ? kernels::DType::kF32 : static_cast<kernels::DType>(type);
}

TensorToWrite Announced(const v1::Initializer& initializer, std::string name,
                        kernels::DType dtype) {
  return {std::move(name), dtype, {initializer.shape().begin(), initializer.shape().end()}};
}

void AddMoments(const v1::Initializer& initializer, const TensorRules& rules, int64_t block,
                TensorFile* file) {
  if (initializer.frozen()) return;
  const kernels::DType dtype = F32Where0(initializer.moments());
  const kernels::OptimizerRow& optimizer = rules.Of(initializer.tensor());
  const auto announced = [&](v1::StateKind kind, kernels::DType type) {
    return Announced(initializer, StoredName(initializer.tensor(), kind, optimizer), type);
  };
  for (const v1::StateKind kind :
       rules.Moments(initializer.tensor(), initializer.shape_size() >= 2)) {
    TensorToWrite moment = announced(kind, IsFactor(kind) ? kernels::DType::kF32 : dtype);
    moment.shape = MomentShape(kind, moment.shape);
    file->tensors.push_back(std::move(moment));
  }
  if (dtype != kernels::DType::kU8) return;
  file->moment_block = block;
  for (int moment = 0; moment < optimizer.moments; ++moment) {
    TensorToWrite scales = announced(kScalesKinds[moment], kernels::DType::kF32);
    scales.shape = ScalesShape(scales.shape, block);
    file->tensors.push_back(std::move(scales));
  }
}

// Of each of so many ranks one, below each other.
void AddResiduals(const v1::Initializer& initializer, const kernels::OptimizerRow& optimizer,
                  int64_t ranks, TensorFile* file) {
  if (initializer.residual() == v1::DTYPE_UNSPECIFIED) return;
  TensorToWrite residuals =
      Announced(initializer, StoredName(initializer.tensor(), v1::RESIDUAL, optimizer),
                static_cast<kernels::DType>(initializer.residual()));
  residuals.shape[0] *= ranks;
  file->tensors.push_back(std::move(residuals));
}

}  // namespace

std::array<TensorFile, kTensorFiles> TensorFilesOf(const v1::Program& program) {
  TensorFile model = {.name = kModelFile}, optimizer = {.name = kOptimizerFile};
  optimizer.optimizer = OptimizerOf(program).name;
  const TensorRules rules(program);
  for (const AnnouncedWeight& weight : AnnouncedWeights(program)) {
    model.tensors.push_back({weight.name, weight.dtype, weight.shape});
    if (weight.part == AnnouncedWeight::Part::kCodes) model.frozen = CodesOf(*weight.initializer);
  }
  for (const v1::Initializer& initializer : program.initializers()) {
    const kernels::OptimizerRow& rule = rules.Of(initializer.tensor());
    AddMoments(initializer, rules, program.rules().moment_block(), &optimizer);
    AddResiduals(initializer, rule, ShardCount(program.grid()), &optimizer);
  }
  // The widest first: then every tensor begins at a multiple of its elements' size.
  for (TensorFile* file : {&model, &optimizer}) {
    std::stable_partition(
        file->tensors.begin(), file->tensors.end(),
        [](const TensorToWrite& tensor) { return tensor.dtype == kernels::DType::kF32; });
  }
  return {std::move(model), std::move(optimizer)};
}

std::string_view FileOfKind(v1::StateKind kind) {
  return kind == v1::WEIGHT ? kModelFile : kOptimizerFile;
}

absl::StatusOr<SafetensorsWriter> CreateTensorFile(std::string_view folder,
                                                   const TensorFile& file) {
  return SafetensorsWriter::Create(PathIn(folder, file.name), file.tensors, Metadata(file));
}

absl::StatusOr<SafetensorsWriter> JoinTensorFile(std::string_view folder, const TensorFile& file) {
  return SafetensorsWriter::Join(PathIn(folder, file.name), file.tensors, Metadata(file));
}

}  // namespace terrace
