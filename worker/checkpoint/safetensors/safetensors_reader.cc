// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/safetensors/safetensors_header.h"

namespace terrace {
namespace {

constexpr int64_t kIndexLimitBytes = 64 << 20;

absl::StatusOr<std::string> FileInFolder(const std::filesystem::path& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / name, ignored)) return (folder / name).string();
  }
  return absl::NotFoundError(absl::StrCat(
      folder.string(), " has neither model.safetensors nor model.safetensors.index.json"));
}

// The shards that an index names, relative to its folder.
absl::StatusOr<std::set<std::string>> ShardsOf(std::string_view index_path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kIndexLimitBytes));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(index_path), " has no \"weight_map\" object"));
  }
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    // Only files beside the index: a name such as "../../x" is no shard.
    if (!shard.is_string() || shard.get_ref<const std::string&>().find('/') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(Absl(index_path), ": the file of tensor ",
                                                     tensor, " must be a plain file name"));
    }
    shards.insert(shard.get<std::string>());
  }
  return shards;
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const FileReader& file) {
  std::vector<std::byte> beginning(std::min<int64_t>(file.bytes(), kSafetensorsPrefixBytes));
  RETURN_IF_ERROR(file.Read(0, beginning));
  ASSIGN_OR_RETURN(const int64_t bytes,
                   SafetensorsHeaderBytes(beginning, file.bytes(), file.path()));
  beginning.resize(bytes);
  RETURN_IF_ERROR(file.Read(0, beginning));
  return ParseSafetensorsHeader(beginning, file.bytes(), file.path());
}

}  // namespace

absl::Status StoredTensor::Read(int64_t from, std::span<std::byte> to) const {
  return file->Read(offset + from, to);
}

absl::StatusOr<std::vector<std::byte>> StoredTensor::ReadAll() const {
  std::vector<std::byte> data(bytes);
  RETURN_IF_ERROR(Read(0, data));
  return data;
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    std::string_view path_view) {
  std::string path(path_view);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    ASSIGN_OR_RETURN(path, FileInFolder(path));
  }
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader);
  RETURN_IF_ERROR(absl::EndsWith(path, ".json") ? reader->AddIndex(path) : reader->AddFile(path));
  return reader;
}

absl::Status SafetensorsReader::AddIndex(std::string_view path) {
  ASSIGN_OR_RETURN(const std::set<std::string> shards, ShardsOf(path));
  for (const std::string& shard : shards) {
    RETURN_IF_ERROR(AddFile((std::filesystem::path(path).parent_path() / shard).string()));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::AddFile(std::string_view path) {
  ASSIGN_OR_RETURN(FileReader file, FileReader::Open(path));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(file));
  files_.push_back(std::make_unique<FileReader>(std::move(file)));
  metadata_.merge(header.metadata);
  for (SafetensorsEntry& entry : header.entries) {
    if (tensors_.contains(entry.name) || other_types_.contains(entry.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Absl(path), ": tensor ", entry.name, " is in another shard too"));
    }
    if (!entry.dtype.has_value()) {
      other_types_.emplace(entry.name, entry.stored_dtype);
      continue;
    }
    StoredTensor tensor = {.name = entry.name,
                           .dtype = *entry.dtype,
                           .shape = std::move(entry.shape),
                           .bytes = entry.end - entry.begin,
                           .file = files_.back().get(),
                           .offset = header.data_offset + entry.begin};
    tensors_.emplace(std::move(entry.name), std::move(tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredTensor> SafetensorsReader::Get(std::string_view name) const {
  if (const auto found = tensors_.find(name); found != tensors_.end()) return found->second;
  if (const auto other = other_types_.find(name); other != other_types_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Absl(name), " is stored as ",
                                                   other->second, ", must be F32, BF16 or F16"));
  }
  return absl::NotFoundError(absl::StrCat("there is no tensor ", Absl(name), "; the nearest of ",
                                          tensors_.size(),
                                          " names: ", NearestNames(name, Names())));
}

std::vector<std::string> SafetensorsReader::Names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace terrace
