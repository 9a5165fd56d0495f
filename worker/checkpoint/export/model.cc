// SPDX-License-Identifier: Apache-2.0
// ExportCheckpoint: the weights of a checkpoint as a folder for `transformers`.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/export/adapter_checkpoint.h"
#include "worker/checkpoint/export/export.h"
#include "worker/checkpoint/export/exported_folder.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

using kernels::DType;

absl::Status WriteModel(const SafetensorsReader& reader, std::string_view checkpoint, DType dtype,
                        const std::string& path) {
  std::vector<StoredWeight> tensors;
  std::vector<TensorToWrite> to_write;
  for (const std::string& name : reader.Names()) {
    if (AreScalesOfCodes(reader, name)) continue;
    ASSIGN_OR_RETURN(const StoredTensor stored, reader.Get(name));
    ASSIGN_OR_RETURN(StoredWeight tensor, StoredWeight::Of(reader, checkpoint, stored));
    to_write.push_back({name, dtype, tensor.shape()});
    tensors.push_back(std::move(tensor));
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(path, to_write, {{"format", "pt"}}));
  for (const StoredWeight& tensor : tensors) {
    RETURN_IF_ERROR(AppendConverted(tensor, dtype, &writer));
  }
  return writer.Finish();
}

}  // namespace

absl::Status ExportCheckpoint(std::string_view checkpoint, std::string_view output,
                              std::string_view dtype_name, const SpecialTokens& special) {
  ASSIGN_OR_RETURN(const DType dtype, ParseExportDtype(dtype_name));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader, OpenVerified(checkpoint));
  if (HasAdapter(*reader)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Absl(checkpoint),
        " holds an adapter beside its model, which transformers would leave out; write "
        "it alone with --adapter, or merge the two with `terrace ckpt merge`"));
  }
  ASSIGN_OR_RETURN(PendingFolder folder, CreateExportFolder(output));
  RETURN_IF_ERROR(WriteModel(*reader, checkpoint, dtype, PathIn(folder.path(), kModelFile)));
  RETURN_IF_ERROR(WriteModelFiles(checkpoint, dtype, special, folder.path()));
  return folder.Commit();
}

}  // namespace terrace
