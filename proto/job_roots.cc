// SPDX-License-Identifier: Apache-2.0
#include "proto/job_roots.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/paths/beneath.h"
#include "base/paths/compression.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr RootOption kOptions[] = {
    {"--data-root", &JobRoots::data,
     "folders below which texts, tokens, tokenizers and weights of jobs must lie; several"},
    {"--checkpoint-root", &JobRoots::checkpoint,
     "folders below which checkpoint.directory must lie; weights may, too"},
    {"--cache-root", &JobRoots::cache, "folders below which data.cache must lie"},
    {"--offload-root", &JobRoots::offload, "folders below which resources.nvme.paths must lie"},
};
constexpr const RootOption* kData = &kOptions[0];
constexpr const RootOption* kCheckpoint = &kOptions[1];
constexpr const RootOption* kCache = &kOptions[2];
constexpr const RootOption* kOffload = &kOptions[3];

// Only text is tokenised, and its tokens kept.
bool HasText(const v1::DataSpec& data) {
  const auto is_text = [](std::string_view path) {
    path = WithoutCompression(path);
    return path.ends_with(".txt") || path.ends_with(".jsonl");
  };
  return std::any_of(data.train().begin(), data.train().end(), is_text) ||
         std::any_of(data.validation().begin(), data.validation().end(), is_text);
}

absl::Status CheckPath(const SpecPath& path, const JobRoots& roots) {
  std::vector<std::string> allowed, flags;
  for (const RootOption* option : path.below) {
    const std::vector<std::string>& given = roots.*option->roots;
    allowed.insert(allowed.end(), given.begin(), given.end());
    flags.push_back(option->flag);
  }
  const std::string options = absl::StrJoin(flags, " or ");
  const std::string got = absl::StrCat(path.field, ": got ", path.path);
  if (allowed.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(got, ", but the operator allows no such paths here (there is no ", options,
                     "); name none, or ask the operator for a root"));
  }
  const absl::Status beneath = CheckBeneath(path.path, allowed);
  if (beneath.ok()) return beneath;
  return absl::InvalidArgumentError(absl::StrCat(
      got, ", which ", beneath.message(), "; must be a file or folder below ", options,
      ": move it to ", absl::StrJoin(allowed, " or "), ", or ask the operator for another root"));
}

}  // namespace

std::span<const RootOption> RootOptions() { return kOptions; }

std::vector<std::string> ArgumentsOf(const JobRoots& roots) {
  std::vector<std::string> arguments;
  for (const RootOption& option : kOptions) {
    for (const std::string& root : roots.*option.roots) {
      arguments.push_back(option.flag);
      arguments.push_back(root);
    }
  }
  return arguments;
}

absl::Status CheckReadPath(const std::string& field, const std::string& path,
                           const JobRoots& roots) {
  if (!roots.any()) return absl::OkStatus();
  return CheckPath({field, path, {kData, kCheckpoint}}, roots);
}

absl::Status CheckRoots(const JobRoots& roots) {
  for (const RootOption& option : kOptions) {
    for (const std::string& root : roots.*option.roots) {
      std::error_code error;
      if (root.starts_with('/') && std::filesystem::is_directory(root, error)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(option.flag, ": got ", root,
                       ", must be the absolute path of a folder that exists; create it first"));
    }
  }
  return absl::OkStatus();
}

std::vector<SpecPath> PathsOf(const v1::JobSpec& spec) {
  std::vector<SpecPath> paths;
  const auto add = [&paths](const char* field, const std::string& path,
                            std::vector<const RootOption*> below, bool is_written = false,
                            bool is_made = false) {
    // Words such as "random" and "bytes" are none.
    if (path.find('/') != std::string::npos)
      paths.push_back({field, path, std::move(below), is_written, is_made});
  };
  for (const std::string& path : spec.data().train()) add("data.train", path, {kData});
  for (const std::string& path : spec.data().validation()) add("data.validation", path, {kData});
  add("data.tokenizer", spec.data().tokenizer(), {kData, kCheckpoint});
  add("data.chat_template", spec.data().chat_template(), {kData, kCheckpoint});
  add("model.init", spec.model().init(), {kData, kCheckpoint});
  add("model.lora.init", spec.model().lora().init(), {kData, kCheckpoint});
  if (HasText(spec.data())) add("data.cache", spec.data().cache(), {kCache}, true, true);
  add("checkpoint.directory", spec.checkpoint().directory(), {kCheckpoint}, true, true);
  for (const std::string& path : spec.resources().nvme().paths())
    add("resources.nvme.paths", path, {kOffload}, true);
  return paths;
}

absl::Status CheckPathsOf(const v1::JobSpec& spec, const JobRoots& roots) {
  if (!roots.any()) return absl::OkStatus();
  for (const SpecPath& path : PathsOf(spec)) RETURN_IF_ERROR(CheckPath(path, roots));
  return absl::OkStatus();
}

}  // namespace terrace
