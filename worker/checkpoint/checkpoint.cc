// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpoint.h"

#include <google/protobuf/util/json_util.h>
#include <xxhash.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/fill.h"
#include "worker/checkpoint/folder.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/model_files.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr char kModelName[] = "model.safetensors";
constexpr char kOptimizerName[] = "optimizer.safetensors";

std::string In(std::string_view folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

bool IsWeight(const StateTensor& tensor) { return tensor.kind == v1::WEIGHT; }

// ---- looking
// -------------------------------------------------------------------------------------------------

absl::Status CheckSizes(std::string_view path, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(In(path, file.name), error);
    if (error) return FileError(error.value(), "read", In(path, file.name));
    if (bytes != static_cast<uintmax_t>(file.bytes)) {
      return absl::DataLossError(absl::StrCat(In(path, file.name), " has ", bytes,
                                              " bytes, the manifest says ", file.bytes));
    }
  }
  return absl::OkStatus();
}

CheckpointInfo Describe(const std::string& path) {
  CheckpointInfo info = {.path = path,
                         .step = StepOfFolderName(fs::path(path).filename().string())};
  const absl::StatusOr<Manifest> manifest = ReadManifest(path);
  if (!manifest.ok()) {
    info.problem = std::string(Std(manifest.status().message()));
    return info;
  }
  info.step = manifest->step;
  info.tokens = manifest->tokens;
  info.unix_ms = manifest->unix_ms;
  info.job = manifest->job;
  for (const ManifestFile& file : manifest->files) info.bytes += file.bytes;
  const absl::Status sizes = CheckSizes(path, *manifest);
  info.complete = sizes.ok();
  info.problem = std::string(Std(sizes.message()));
  return info;
}

absl::StatusOr<ManifestFile> HashFile(std::string_view folder, const std::string& name) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(In(folder, name)));
  return ManifestFile{.name = name,
                      .bytes = static_cast<int64_t>(file.bytes().size()),
                      .xxh3 = XXH3_64bits(file.bytes().data(), file.bytes().size())};
}

// ---- writing
// -------------------------------------------------------------------------------------------------

absl::StatusOr<ManifestFile> WriteTensors(std::string_view folder, const std::string& name,
                                          const std::vector<const StateTensor*>& tensors) {
  std::vector<TensorToWrite> to_write;
  for (const StateTensor* tensor : tensors) {
    to_write.push_back({tensor->stored_name, tensor->dtype, tensor->shape});
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(In(folder, name), to_write, {{"format", "pt"}}));
  for (const StateTensor* tensor : tensors) {
    for (const StateSlice& slice : tensor->slices) {
      const size_t bytes = slice.elements * kernels::SizeOf(tensor->dtype);
      RETURN_IF_ERROR(writer.Append(std::span<const std::byte>(slice.data, bytes)));
    }
  }
  RETURN_IF_ERROR(writer.Finish());
  return ManifestFile{.name = name, .bytes = writer.file_bytes(), .xxh3 = writer.xxh3()};
}

absl::Status WriteModelFiles(std::string_view folder, const v1::JobSpec& spec,
                             std::vector<ManifestFile>* files) {
  ASSIGN_OR_RETURN(const std::string config,
                   CompleteModelConfig(spec.model().config_json(), kernels::DType::kF32));
  RETURN_IF_ERROR(WriteSyncedFile(In(folder, "config.json"), config));
  ASSIGN_OR_RETURN(std::vector<std::string> names,
                   CopyTokenizerFiles(spec.data().tokenizer(), folder));
  names.push_back("config.json");
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(ManifestFile file, HashFile(folder, name));
    files->push_back(std::move(file));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SpecJson(const v1::JobSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(spec, &json, options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("the job spec does not print as JSON: ", status.ToString()));
  }
  return json;
}

absl::StatusOr<Manifest> FillFolder(const std::string& folder, const CheckpointHeader& header,
                                    const std::vector<StateTensor>& state, int64_t unix_ms) {
  const v1::JobSpec no_spec;
  const v1::JobSpec& spec = header.spec != nullptr ? *header.spec : no_spec;
  Manifest manifest = {.step = header.step,
                       .tokens = header.tokens,
                       .seed = spec.train().seed(),
                       .unix_ms = unix_ms,
                       .job = spec.name()};
  ASSIGN_OR_RETURN(manifest.spec_json, SpecJson(spec));
  std::vector<const StateTensor*> weights, optimizer;
  for (const StateTensor& tensor : state) {
    (IsWeight(tensor) ? weights : optimizer).push_back(&tensor);
  }
  ASSIGN_OR_RETURN(ManifestFile model_file, WriteTensors(folder, kModelName, weights));
  ASSIGN_OR_RETURN(ManifestFile optimizer_file, WriteTensors(folder, kOptimizerName, optimizer));
  manifest.files = {std::move(model_file), std::move(optimizer_file)};
  if (!spec.model().config_json().empty()) {
    RETURN_IF_ERROR(WriteModelFiles(folder, spec, &manifest.files));
  }
  RETURN_IF_ERROR(WriteManifest(folder, manifest));
  return manifest;
}

bool IsComplete(const std::string& path) { return Describe(path).complete; }

}  // namespace

absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListStepFolders(directory));
  std::vector<CheckpointInfo> list;
  for (const std::string& path : paths) list.push_back(Describe(path));
  return list;
}

absl::StatusOr<CheckpointInfo> NewestCheckpoint(std::string_view directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListStepFolders(directory));
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    if (CheckpointInfo info = Describe(*path); info.complete) return info;
  }
  return absl::NotFoundError(absl::StrCat("no complete checkpoint in ", Absl(directory)));
}

absl::Status VerifyCheckpoint(std::string_view path) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  RETURN_IF_ERROR(CheckSizes(path, manifest));
  for (const ManifestFile& file : manifest.files) {
    ASSIGN_OR_RETURN(const ManifestFile found, HashFile(path, file.name));
    if (found.xxh3 == file.xxh3 && found.bytes == file.bytes) continue;
    return absl::DataLossError(
        absl::StrFormat("%s is damaged: its XXH3 is %016x, the manifest says %016x; use an older "
                        "checkpoint (ckpt ls)",
                        In(path, file.name), found.xxh3, file.xxh3));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointInfo> WriteCheckpoint(std::string_view directory,
                                               const CheckpointHeader& header,
                                               const v1::Program& program,
                                               std::span<std::byte* const> arenas, uint32_t keep,
                                               int64_t unix_ms) {
  ASSIGN_OR_RETURN(const std::vector<StateTensor> state, ViewState(program, arenas));
  ASSIGN_OR_RETURN(PendingFolder folder,
                   PendingFolder::Create(directory, StepFolderName(header.step)));
  ASSIGN_OR_RETURN(const Manifest manifest, FillFolder(folder.path(), header, state, unix_ms));
  RETURN_IF_ERROR(folder.Commit());
  // The checkpoint is there; one that could not be removed is a nuisance, not a failure of this
  // one.
  if (const absl::Status pruned = folder.Prune(keep, &IsComplete); !pruned.ok()) {
    log::Warn("old checkpoints in ", std::string(directory),
              " were not removed: ", pruned.message());
  }
  return Describe(In(directory, StepFolderName(header.step)));
}

absl::StatusOr<CheckpointHeader> ReadCheckpoint(std::string_view path, const v1::Program& program,
                                                std::span<std::byte* const> arenas) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  RETURN_IF_ERROR(VerifyCheckpoint(path));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> model,
                   SafetensorsReader::Open(In(path, kModelName)));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> optimizer,
                   SafetensorsReader::Open(In(path, kOptimizerName)));
  ASSIGN_OR_RETURN(const std::vector<StateTensor> state, ViewState(program, arenas));
  for (const StateTensor& tensor : state) {
    const SafetensorsReader& reader = IsWeight(tensor) ? *model : *optimizer;
    const absl::StatusOr<StoredTensor> stored = reader.Get(tensor.stored_name);
    if (!stored.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          Absl(path), " is not a checkpoint of this model: ", stored.status().message()));
    }
    RETURN_IF_ERROR(FillTensor(*stored, path, tensor));
  }
  return CheckpointHeader{.step = manifest.step, .tokens = manifest.tokens};
}

}  // namespace terrace
