// SPDX-License-Identifier: Apache-2.0
// MergeCheckpoint: the model of a checkpoint with its adapter in it, for `transformers`.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "worker/checkpoint/export/adapter_checkpoint.h"
#include "worker/checkpoint/export/export.h"
#include "worker/checkpoint/export/exported_folder.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/peft/names.h"
#include "worker/checkpoint/stored_weight.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

using kernels::DType;

// How many elements of a matrix are merged at a time; there are six numbers for each.
constexpr int64_t kMergedElements = 1 << 18;

// Some rows at a time.
absl::Status AppendMerged(const StoredWeight& weight, const LowRank& product, DType dtype,
                          SafetensorsWriter* writer, Rounding* rounding) {
  const int64_t step = std::max<int64_t>(1, kMergedElements / product.columns);
  std::vector<std::byte> stored;
  std::vector<float> before, merged;
  for (int64_t row = 0; row < product.rows; row += step) {
    const int64_t rows = std::min(step, product.rows - row);
    before.resize(rows * product.columns);
    RETURN_IF_ERROR(
        weight.Read(row * product.columns, DType::kF32, std::as_writable_bytes(std::span(before))));
    merged = before;
    AddRows(product, row, merged);
    stored.resize(rows * product.columns * kernels::SizeOf(dtype));
    RoundMerged(before, merged, dtype, stored, rounding);
    RETURN_IF_ERROR(CheckRange(weight.name(), dtype, stored));
    RETURN_IF_ERROR(writer->Append(stored));
  }
  return absl::OkStatus();
}

// Everything but the adapter's own tensors.
absl::StatusOr<std::vector<StoredWeight>> ModelTensors(const SafetensorsReader& reader,
                                                       std::string_view checkpoint) {
  std::vector<StoredWeight> tensors;
  for (const std::string& name : reader.Names()) {
    if (IsAdapterTensor(name) || AreScalesOfCodes(reader, name)) continue;
    ASSIGN_OR_RETURN(const StoredTensor stored, reader.Get(name));
    ASSIGN_OR_RETURN(StoredWeight tensor, StoredWeight::Of(reader, checkpoint, stored));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<MergeResult> WriteMerged(const AdapterCheckpoint& checkpoint,
                                        const std::vector<StoredWeight>& tensors, DType dtype,
                                        const std::string& path,
                                        const std::function<void(double)>& progress) {
  std::vector<TensorToWrite> to_write;
  double total = 0, done = 0;
  for (const StoredWeight& tensor : tensors) {
    to_write.push_back({tensor.name(), dtype, tensor.shape()});
    total += static_cast<double>(tensor.elements());
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(path, to_write, {{"format", "pt"}}));
  MergeResult result;
  for (const StoredWeight& tensor : tensors) {
    progress(done / total);
    done += static_cast<double>(tensor.elements());
    const auto module = checkpoint.modules.find(ModuleOf(tensor.name()).value_or(""));
    if (module == checkpoint.modules.end()) {
      RETURN_IF_ERROR(AppendConverted(tensor, dtype, &writer));
      continue;
    }
    ASSIGN_OR_RETURN(const LowRank product, ReadLowRank(checkpoint, module->second));
    RETURN_IF_ERROR(AppendMerged(tensor, product, dtype, &writer, &result.rounding));
    ++result.matrices;
  }
  RETURN_IF_ERROR(writer.Finish());
  return result;
}

}  // namespace

absl::StatusOr<MergeResult> MergeCheckpoint(std::string_view checkpoint, std::string_view output,
                                            std::string_view dtype_name,
                                            const SpecialTokens& special,
                                            const std::function<void(double)>& progress) {
  ASSIGN_OR_RETURN(const DType dtype, ParseExportDtype(dtype_name));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader, OpenVerified(checkpoint));
  ASSIGN_OR_RETURN(const AdapterCheckpoint adapter, ReadAdapterCheckpoint(checkpoint, *reader));
  ASSIGN_OR_RETURN(const std::vector<StoredWeight> tensors, ModelTensors(*reader, checkpoint));
  ASSIGN_OR_RETURN(PendingFolder folder, CreateExportFolder(output));
  ASSIGN_OR_RETURN(
      const MergeResult result,
      WriteMerged(adapter, tensors, dtype, PathIn(folder.path(), kModelFile), progress));
  RETURN_IF_ERROR(WriteModelFiles(checkpoint, dtype, special, folder.path()));
  RETURN_IF_ERROR(folder.Commit());
  return result;
}

}  // namespace terrace
