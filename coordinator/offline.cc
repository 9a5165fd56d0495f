// SPDX-License-Identifier: Apache-2.0
#include "coordinator/offline.h"

#include <google/protobuf/util/json_util.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/machine.h"
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
constexpr int64_t kProfilesBytesMax = 16 << 20;
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

bool ParseProfile(const std::string& json, v1::HardwareProfile* profile) {
  return google::protobuf::util::JsonStringToMessage(json, profile).ok() && profile->measured();
}

// terrace-rank keeps what it has measured and knows what machine it is on; without it beside this
// binary, the planner's default rates.
v1::HardwareProfile MachineProfile(uint32_t threads) {
  v1::HardwareProfile profile;
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string rank = (self.parent_path() / "terrace-rank").string();
  if (!std::filesystem::exists(rank, error)) return {};
  const std::string json =
      RunAndRead(absl::StrCat("'", rank, "' probe --brief --threads ", threads, " -o json"));
  return ParseProfile(json, &profile) ? profile : v1::HardwareProfile();
}

// Of the file that `terrace profile -o json` wrote: one profile, or one for each number of threads.
absl::StatusOr<v1::HardwareProfile> GivenProfile(const std::string& path, uint32_t threads) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kProfilesBytesMax));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool several = json.is_object() && json.contains("profiles") && json["profiles"].is_array();
  const std::string here = MachineHash(ThisMachine(), TERRACE_VERSION);
  for (const auto& one : several ? json["profiles"] : nlohmann::json::array({json})) {
    v1::HardwareProfile profile;
    if (!one.is_object() || !ParseProfile(one.dump(), &profile)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": is no profile; `terrace profile -o json` prints one that can be kept"));
    }
    if (profile.hardware() != here) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": was measured on other hardware or by another version (",
                       profile.name(), ", ", profile.hardware(), "; this is ", here,
                       "), and says nothing of this machine; `terrace profile` measures it"));
    }
    if (profile.threads() == threads) return profile;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": has no profile of a rank with ", threads,
      " threads, as this job has; `terrace profile --threads ", threads, " -o json` prints it"));
}

absl::StatusOr<Budget> MachineBudget(const v1::JobSpec& spec, const std::string& profile_path) {
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
  if (profile_path.empty()) {
    budget.profile = MachineProfile(budget.threads_per_rank);
  } else {
    ASSIGN_OR_RETURN(budget.profile, GivenProfile(profile_path, budget.threads_per_rank));
  }
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

absl::StatusOr<Prepared> PrepareFile(const std::string& spec_path, const std::string& profile_path,
                                     const TellTried& tell) {
  ASSIGN_OR_RETURN(const std::string yaml, ReadTextFile(spec_path, kSpecBytesMax));
  std::error_code error;
  const auto absolute = std::filesystem::absolute(spec_path, error);
  ASSIGN_OR_RETURN(const v1::JobSpec spec, ReadJobSpec(yaml, absolute.parent_path().string()));
  ASSIGN_OR_RETURN(const Budget budget, MachineBudget(spec, profile_path));
  return PrepareAnyway(spec, budget, tell);
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
