// SPDX-License-Identifier: Apache-2.0
// MergeCheckpoint: the model of a checkpoint with its adapter in it, for `transformers`.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/export/adapter_checkpoint.h"
#include "worker/checkpoint/export/export.h"
#include "worker/checkpoint/export/exported_folder.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/peft/names.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

using kernels::DType;

// How many elements of a matrix are merged at a time; there are six numbers for each.
constexpr int64_t kMergedElements = 1 << 18;

// Some rows at a time.
absl::Status AppendMerged(const StoredTensor& weight, const LowRank& product, DType dtype,
                          SafetensorsWriter* writer, Rounding* rounding) {
  const int64_t step = std::max<int64_t>(1, kMergedElements / product.columns);
  const int64_t row_bytes = product.columns * kernels::SizeOf(weight.dtype);
  std::vector<std::byte> source, stored;
  std::vector<float> before, merged;
  for (int64_t row = 0; row < product.rows; row += step) {
    const int64_t rows = std::min(step, product.rows - row);
    source.resize(rows * row_bytes);
    RETURN_IF_ERROR(weight.Read(row * row_bytes, source));
    before.resize(rows * product.columns);
    ConvertElements(weight.dtype, source.data(), DType::kF32,
                    std::as_writable_bytes(std::span(before)).data(), rows * product.columns);
    merged = before;
    AddRows(product, row, merged);
    stored.resize(rows * product.columns * kernels::SizeOf(dtype));
    RoundMerged(before, merged, dtype, stored, rounding);
    RETURN_IF_ERROR(CheckRange(weight.name, dtype, stored));
    RETURN_IF_ERROR(writer->Append(stored));
  }
  return absl::OkStatus();
}

// Everything but the adapter's own tensors.
absl::StatusOr<std::vector<StoredTensor>> ModelTensors(const SafetensorsReader& reader,
                                                       DType dtype) {
  std::vector<StoredTensor> tensors;
  for (const std::string& name : reader.Names()) {
    if (IsAdapterTensor(name)) continue;
    ASSIGN_OR_RETURN(StoredTensor tensor, reader.Get(name));
    RETURN_IF_ERROR(CheckIsConvertible(tensor, dtype));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<MergeResult> WriteMerged(const AdapterCheckpoint& checkpoint,
                                        const std::vector<StoredTensor>& tensors, DType dtype,
                                        const std::string& path,
                                        const std::function<void(double)>& progress) {
  std::vector<TensorToWrite> to_write;
  double total = 0, done = 0;
  for (const StoredTensor& tensor : tensors) {
    to_write.push_back({tensor.name, dtype, tensor.shape});
    total += static_cast<double>(tensor.bytes);
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(path, to_write, {{"format", "pt"}}));
  MergeResult result;
  for (const StoredTensor& tensor : tensors) {
    progress(done / total);
    done += static_cast<double>(tensor.bytes);
    const auto module = checkpoint.modules.find(ModuleOf(tensor.name).value_or(""));
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
  ASSIGN_OR_RETURN(const std::vector<StoredTensor> tensors, ModelTensors(*reader, dtype));
  ASSIGN_OR_RETURN(PendingFolder folder, CreateExportFolder(output));
  ASSIGN_OR_RETURN(
      const MergeResult result,
      WriteMerged(adapter, tensors, dtype, PathIn(folder.path(), kModelFile), progress));
  RETURN_IF_ERROR(WriteModelFiles(checkpoint, dtype, special, folder.path()));
  RETURN_IF_ERROR(folder.Commit());
  return result;
}

}  // namespace terrace
