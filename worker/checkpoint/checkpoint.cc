// SPDX-License-Identifier: Apache-2.0
// Looking at checkpoints; write.cc and read.cc hold the rest.
#include "worker/checkpoint/checkpoint.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/report/manifest_text.h"
#include "worker/checkpoint/folder.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

absl::Status CheckSizes(std::string_view path, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    ASSIGN_OR_RETURN(const OpenFile open, OpenRegularFile(PathIn(path, file.name)));
    if (open.bytes != file.bytes) {
      return absl::DataLossError(absl::StrCat(PathIn(path, file.name), " has ", open.bytes,
                                              " bytes, the manifest says ", file.bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

CheckpointInfo DescribeCheckpoint(const std::string& path) {
  CheckpointInfo info = {.path = path,
                         .step = StepOfFolderName(fs::path(path).filename().string())};
  const absl::StatusOr<Manifest> manifest = ReadManifest(path);
  if (!manifest.ok()) {
    info.problem = std::string(Std(manifest.status().message()));
    return info;
  }
  if (info.step >= 0 && info.step != manifest->step) {
    info.problem = absl::StrCat(PathIn(path, kManifestName), " is damaged: it is of step ",
                                manifest->step, ", its folder of step ", info.step);
    return info;
  }
  info.step = manifest->step;
  info.tokens = manifest->tokens;
  info.unix_ms = manifest->unix_ms;
  info.job = manifest->job;
  info.validation = manifest->training.validation;
  for (const ManifestFile& file : manifest->files) info.bytes += file.bytes;
  const absl::Status sizes = CheckSizes(path, *manifest);
  info.complete = sizes.ok();
  info.problem = std::string(Std(sizes.message()));
  return info;
}

absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListStepFolders(directory));
  std::vector<CheckpointInfo> list;
  for (const std::string& path : paths) list.push_back(DescribeCheckpoint(path));
  return list;
}

absl::StatusOr<CheckpointInfo> NewestCheckpoint(std::string_view directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListStepFolders(directory));
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    if (CheckpointInfo info = DescribeCheckpoint(*path); info.complete) return info;
  }
  return absl::NotFoundError(absl::StrCat("no complete checkpoint in ", Absl(directory)));
}

absl::StatusOr<CheckpointInfo> BestCheckpoint(std::string_view directory) {
  ASSIGN_OR_RETURN(const CheckpointInfo newest, NewestCheckpoint(directory));
  const int64_t step = newest.validation.best_step;
  if (step == 0) {
    return absl::NotFoundError(absl::StrCat("no evaluation came before ", newest.path,
                                            ": train.eval_every_steps says when there is one"));
  }
  ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> list, ListCheckpoints(directory));
  for (CheckpointInfo info : list) {
    if (!info.complete || info.step != step) continue;
    info.validation = newest.validation;
    return info;
  }
  return absl::NotFoundError(
      absl::StrCat("the best evaluation was after step ", step, ", and ", Absl(directory),
                   " has no complete checkpoint of it: checkpoint.keep_best writes and keeps one"));
}

absl::StatusOr<WholeCheckpoint> NewestWholeCheckpoint(std::string_view directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListStepFolders(directory));
  WholeCheckpoint found;
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    found.info = DescribeCheckpoint(*path);
    if (found.info.complete) {
      const absl::Status verified = VerifyCheckpoint(*path);
      if (verified.ok()) return found;
      if (!absl::IsDataLoss(verified)) return verified;  // a file system that fails, for one
      found.info.problem = std::string(Std(verified.message()));
    }
    found.passed_over.push_back(found.info);
  }
  if (found.passed_over.empty()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint in ", Absl(directory)));
  }
  return absl::DataLossError(
      absl::StrCat("every checkpoint in ", Absl(directory),
                   " is damaged, the newest so: ", found.passed_over.front().problem,
                   "; restore a copy, or move them away to train from the beginning"));
}

absl::Status VerifyCheckpoint(std::string_view path, CheckpointFiles files) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(path));
  std::erase_if(manifest.files, [files](const ManifestFile& file) {
    if (files == CheckpointFiles::kBeside && file.name == kModelFile) return true;
    return files != CheckpointFiles::kAll && file.name == kOptimizerFile;
  });
  RETURN_IF_ERROR(CheckSizes(path, manifest));
  for (const ManifestFile& file : manifest.files) {
    ASSIGN_OR_RETURN(const ManifestFile found, DescribeFile(path, file.name, file.checksum.kind));
    if (found.checksum == file.checksum && found.bytes == file.bytes) continue;
    return absl::DataLossError(absl::StrCat(
        PathIn(path, file.name), " is damaged: its checksum is ", Describe(found.checksum),
        ", the manifest says ", Describe(file.checksum), "; use an older checkpoint (ckpt ls)"));
  }
  return absl::OkStatus();
}

absl::Status VerifyWeights(const std::string& path, CheckpointFiles files) {
  return HoldsForeignWeights(path) ? absl::OkStatus() : VerifyCheckpoint(path, files);
}

}  // namespace terrace
