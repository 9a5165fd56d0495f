// SPDX-License-Identifier: Apache-2.0
// WriteCheckpoint: rank 0 makes the folder and the files at their full size, all ranks write what
// they own, rank 0 adds checksums and the manifest and gives the folder its name. The ranks agree
// after each of the three.
#include <google/protobuf/util/json_util.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/folder.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/model_files.h"
#include "worker/checkpoint/owned_state.h"
#include "worker/checkpoint/state_view.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

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

absl::Status WriteModelFiles(std::string_view folder, const CheckpointHeader& header,
                             std::vector<ManifestFile>* files) {
  const v1::JobSpec& spec = *header.spec;
  ASSIGN_OR_RETURN(
      const std::string config,
      CompleteModelConfig(spec.model().config_json(), kernels::DType::kF32, header.special));
  RETURN_IF_ERROR(WriteSyncedFile(PathIn(folder, "config.json"), config));
  RETURN_IF_ERROR(CopyModelFiles(
      {spec.data().tokenizer(), spec.model().init(), spec.data().chat_template()}, folder));
  RETURN_IF_ERROR(NameSpecialTokens(header.special, folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListModelFiles(folder));
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(ManifestFile file, DescribeFile(folder, name, Checksum::kXxh3));
    files->push_back(std::move(file));
  }
  return absl::OkStatus();
}

int64_t DataBytes(const TensorFile& file) {
  int64_t bytes = 0;
  for (const TensorToWrite& tensor : file.tensors) bytes += tensor.bytes();
  return bytes;
}

bool IsComplete(const std::string& path) { return DescribeCheckpoint(path).complete; }

// The part of one rank in one checkpoint.
class CheckpointWrite {
 public:
  CheckpointWrite(std::string_view directory, const CheckpointHeader& header,
                  const RankState& state, const WriteOptions& options)
      : directory_(directory),
        name_(StepFolderName(header.step)),
        header_(header),
        state_(state),
        options_(options),
        leads_(options.peers == nullptr || options.peers->rank() == 0),
        files_(TensorFilesOf(state.program)) {}

  absl::StatusOr<CheckpointInfo> Run() {
    RETURN_IF_ERROR(Begin());
    RETURN_IF_ERROR(WriteParts());
    return Publish();
  }

 private:
  absl::Status Begin();
  absl::Status MakeFiles();
  absl::Status WriteParts();
  absl::Status WriteOwnParts();
  absl::StatusOr<CheckpointInfo> Publish();
  absl::Status CommitFolder();
  absl::StatusOr<Manifest> MakeManifest();
  absl::Status AddParts(const std::vector<AgreedValues>& parts);

  const std::string directory_;
  const std::string name_;
  const CheckpointHeader& header_;
  const RankState& state_;
  const WriteOptions& options_;
  const bool leads_;  // rank 0
  const std::array<TensorFile, kTensorFiles> files_;
  std::vector<StateTensor> tensors_;
  std::array<std::optional<SafetensorsWriter>, kTensorFiles> writers_;
  std::array<int64_t, kTensorFiles> file_bytes_ = {};  // of those that this rank wrote to
  std::vector<ManifestFile> described_;                // once all is written
  std::string temporary_;                              // the folder until it is whole
  std::optional<PendingFolder> folder_;                // rank 0's
};

absl::Status CheckpointWrite::Begin() {
  absl::StatusOr<std::vector<StateTensor>> tensors = ViewState(state_);
  absl::Status own = tensors.status();
  if (own.ok()) tensors_ = *std::move(tensors);
  if (own.ok() && leads_) own = MakeFiles();
  ASSIGN_OR_RETURN(const std::vector<int64_t> attempts,
                   Agree(options_.peers, own, options_.unix_ms));
  temporary_ = PendingFolder::TemporaryPath(directory_, name_, attempts[0]);
  return absl::OkStatus();
}

absl::Status CheckpointWrite::MakeFiles() {
  ASSIGN_OR_RETURN(folder_, PendingFolder::Create(directory_, name_, options_.unix_ms));
  for (size_t i = 0; i < files_.size(); ++i) {
    ASSIGN_OR_RETURN(writers_[i], CreateTensorFile(folder_->path(), files_[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckpointWrite::WriteParts() {
  const absl::Status own = WriteOwnParts();
  AgreedValues part = {};
  for (size_t i = 0; i < files_.size(); ++i) {
    if (!writers_[i].has_value()) continue;
    file_bytes_[i] = writers_[i]->file_bytes();
    part[0] += writers_[i]->written_bytes();
    part[1 + i] = static_cast<int64_t>(writers_[i]->sum());
    writers_[i].reset();  // closed: rank 0 sees on any file system what the others wrote
  }
  ASSIGN_OR_RETURN(const std::vector<AgreedValues> parts, Agree(options_.peers, own, part));
  return AddParts(parts);
}

absl::Status CheckpointWrite::AddParts(const std::vector<AgreedValues>& parts) {
  int64_t written = 0, expected = 0;
  std::array<uint64_t, kTensorFiles> sums = {};
  for (const AgreedValues& part : parts) {
    written += part[0];
    for (size_t i = 0; i < files_.size(); ++i) sums[i] += static_cast<uint64_t>(part[1 + i]);
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    expected += DataBytes(files_[i]);
    described_.push_back({files_[i].name, file_bytes_[i], {Checksum::kSum64, sums[i]}});
  }
  if (written == expected) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the ranks own ", written, " of the ", expected,
                   " bytes of weights and optimizer state, must be all of them, each once"));
}

absl::Status CheckpointWrite::WriteOwnParts() {
  for (size_t i = 0; i < files_.size(); ++i) {
    std::vector<const StateTensor*> owned;
    for (const StateTensor& tensor : tensors_) {
      if (FileOfKind(tensor.kind) == files_[i].name && OwnsSome(tensor)) owned.push_back(&tensor);
    }
    if (owned.empty()) continue;
    if (!leads_) {
      ASSIGN_OR_RETURN(writers_[i], JoinTensorFile(temporary_, files_[i]));
    }
    RETURN_IF_ERROR(WriteOwned(owned, &*writers_[i]));
  }
  if (options_.on_read) options_.on_read();
  for (std::optional<SafetensorsWriter>& writer : writers_) {
    if (writer.has_value()) RETURN_IF_ERROR(writer->Sync());
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointInfo> CheckpointWrite::Publish() {
  const std::string path = PathIn(directory_, name_);
  CheckpointInfo info = {.path = path,
                         .step = header_.step,
                         .tokens = header_.tokens,
                         .unix_ms = options_.unix_ms,
                         .complete = true};
  absl::Status own;
  if (leads_) {
    own = CommitFolder();
    if (own.ok()) info = DescribeCheckpoint(path);
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, Agree(options_.peers, own, info.bytes));
  info.bytes = bytes[0];
  return info;
}

absl::Status CheckpointWrite::CommitFolder() {
  ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest());
  RETURN_IF_ERROR(WriteManifest(temporary_, manifest));
  RETURN_IF_ERROR(folder_->Commit());
  // The checkpoint is there; one that could not be removed is a nuisance, not a failure of this
  // one.
  if (const absl::Status pruned = folder_->Prune(options_.keep, options_.spared, &IsComplete);
      !pruned.ok()) {
    log::Warn("old checkpoints in ", directory_, " were not removed: ", pruned.message());
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> CheckpointWrite::MakeManifest() {
  const v1::JobSpec no_spec;
  const v1::JobSpec& spec = header_.spec != nullptr ? *header_.spec : no_spec;
  Manifest manifest = {.step = header_.step,
                       .tokens = header_.tokens,
                       .training = header_.training,
                       .seed = spec.train().seed(),
                       .unix_ms = options_.unix_ms,
                       .job = spec.name(),
                       .data = header_.data,
                       .files = described_};
  ASSIGN_OR_RETURN(manifest.spec_json, SpecJson(spec));
  if (!spec.model().config_json().empty()) {
    RETURN_IF_ERROR(WriteModelFiles(temporary_, header_, &manifest.files));
  }
  return manifest;
}

}  // namespace

absl::StatusOr<CheckpointInfo> WriteCheckpoint(std::string_view directory,
                                               const CheckpointHeader& header,
                                               const RankState& state,
                                               const WriteOptions& options) {
  return CheckpointWrite(directory, header, state, options).Run();
}

}  // namespace terrace
