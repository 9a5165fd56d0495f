// SPDX-License-Identifier: Apache-2.0
#include "coordinator/offline.h"

#include <google/protobuf/util/json_util.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/model/config.h"
#include "coordinator/model/model.h"
#include "coordinator/server/inputs.h"
#include "coordinator/server/submit.h"
#include "proto/program_hash.h"

namespace terrace {
namespace {

constexpr int64_t kManifestBytesMax = 16 << 20;
constexpr int64_t kProfileBytesMax = 64 << 10;
// Of the machine's memory, what ranks may have: the rest is the system's.
constexpr double kRankMemoryShare = 0.9;

uint32_t CoreCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

int64_t MachineMemoryBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
}

std::string RunAndRead(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer;
  while (size_t got = fread(buffer.data(), 1, buffer.size(), pipe))
    output.append(buffer.data(), got);
  pclose(pipe);
  return output;
}

std::string CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return absl::StrCat(cache, "/terrace");
  return absl::StrCat(home == nullptr ? "/tmp" : home, "/.cache/terrace");
}

bool ParseProfile(const std::string& json, v1::HardwareProfile* profile) {
  return google::protobuf::util::JsonStringToMessage(json, profile).ok() && profile->measured();
}

// Measured once and kept; without terrace-rank beside this binary, the planner's default rates.
v1::HardwareProfile MachineProfile(uint32_t threads) {
  v1::HardwareProfile profile;
  const std::string cached = absl::StrCat(CacheFolder(), "/profile-", threads, ".json");
  if (absl::StatusOr<std::string> text = ReadTextFile(cached, kProfileBytesMax);
      text.ok() && ParseProfile(*text, &profile)) {
    return profile;
  }
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string rank = (self.parent_path() / "terrace-rank").string();
  if (!std::filesystem::exists(rank, error)) return {};
  const std::string json =
      RunAndRead(absl::StrCat("'", rank, "' probe --threads ", threads, " -o json 2>/dev/null"));
  if (!ParseProfile(json, &profile)) return {};
  // The cache is a convenience: a plan is made without it too.
  if (MakeDirectories(CacheFolder()).ok()) WriteSyncedFile(cached, json).IgnoreError();
  return profile;
}

Budget MachineBudget(const v1::JobSpec& spec) {
  Budget budget = BudgetOfSpec(spec);
  const uint32_t per_node = std::max<uint32_t>(1, budget.ranks / budget.nodes);
  if (spec.resources().threads_per_device() == 0) {
    budget.threads_per_rank = std::max<uint32_t>(1, CoreCount() / per_node);
  }
  if (budget.device_memory_bytes == 0) {
    budget.device_memory_bytes =
        static_cast<int64_t>(static_cast<double>(MachineMemoryBytes()) * kRankMemoryShare) /
        per_node;
  }
  budget.profile = MachineProfile(budget.threads_per_rank);
  return budget;
}

// The spec that trained a checkpoint, from its manifest.
absl::StatusOr<v1::JobSpec> SpecOfCheckpoint(const std::string& checkpoint) {
  const std::string path = checkpoint + "/manifest.json";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kManifestBytesMax));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  v1::JobSpec spec;
  google::protobuf::util::JsonParseOptions parse;
  parse.ignore_unknown_fields = true;
  if (!json.is_object() || !json.contains("spec") ||
      !google::protobuf::util::JsonStringToMessage(json["spec"].dump(), &spec, parse).ok()) {
    return absl::DataLossError(
        absl::StrCat(path, ": is no manifest of a Terrace checkpoint; `terrace ckpt verify ",
                     checkpoint, "` says what is wrong"));
  }
  return spec;
}

}  // namespace

absl::StatusOr<Prepared> PrepareFile(const std::string& spec_path) {
  ASSIGN_OR_RETURN(const std::string yaml, ReadTextFile(spec_path, kSpecBytesMax));
  std::error_code error;
  const auto absolute = std::filesystem::absolute(spec_path, error);
  ASSIGN_OR_RETURN(const v1::JobSpec spec, ReadJobSpec(yaml, absolute.parent_path().string()));
  return Prepare(spec, MachineBudget(spec));
}

absl::Status WriteInferProgram(const std::string& checkpoint, const std::string& output) {
  ASSIGN_OR_RETURN(const v1::JobSpec spec, SpecOfCheckpoint(checkpoint));
  ASSIGN_OR_RETURN(const std::string config_json,
                   ReadTextFile(checkpoint + "/config.json", kModelConfigBytesMax));
  const int64_t length = spec.data().sequence_length();
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json, length));
  const Model model = BuildModel(config);
  InferInput input;
  input.model = &model;
  input.job = spec.name();
  input.sequence_length = length;
  input.precision = spec.train().precision();
  input.threads = static_cast<int>(CoreCount());
  ASSIGN_OR_RETURN(const v1::Program program, CompileInfer(input));
  return WriteSyncedFile(output, SerializeProgram(program));
}

}  // namespace terrace
