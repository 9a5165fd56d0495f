// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/offline.h"

#include <google/protobuf/util/json_util.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/pipe_text.h"
#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/control/submit.h"
#include "coordinator/hardware/gpu_profile.h"
#include "coordinator/layout/precision.h"
#include "coordinator/model/model.h"
#include "coordinator/planning/inputs.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/program/program_hash.h"
#include "proto/report/manifest_text.h"
#include "proto/v1/tools.pb.h"

namespace terrace {
namespace {

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
  // The shell's place is taken, so that what runs there ends with this process.
  FILE* pipe = popen(absl::StrCat("exec ", command).c_str(), "r");
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

// What terrace-rank, beside this binary, prints; empty without it.
std::string AskRank(const std::string& arguments) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string rank = (self.parent_path() / "terrace-rank").string();
  if (!std::filesystem::exists(rank, error)) return "";
  return RunAndRead(absl::StrCat("'", rank, "' ", arguments, " -o json"));
}

// What a rank computes with: so many threads, or a GPU.
struct RankKind {
  bool cuda = false;
  uint32_t threads = 1;
};

// terrace-rank keeps what it has measured and knows what machine it is on; without it, or without a
// GPU where one is wanted, nothing.
v1::HardwareProfile MachineProfile(const RankKind& kind) {
  v1::HardwareProfile profile;
  const std::string json =
      AskRank(kind.cuda ? "probe --brief --device cuda --if-any"
                        : absl::StrCat("probe --brief --threads ", kind.threads));
  if (ParseProfile(json, &profile)) return profile;
  if (!kind.cuda) {
    std::fprintf(
        stderr, "this machine could not be measured: the plan's times follow from default rates\n");
  }
  return {};
}

// Hash of what profiles of that kind must be of, to say anything of this machine.
std::string HardwareHere(const RankKind& kind) {
  if (!kind.cuda) return MachineHash(ThisMachine(), ProfileVersion(TERRACE_VERSION));
  const auto json = nlohmann::json::parse(AskRank("devices"), nullptr, /*allow_exceptions=*/false);
  const bool there = json.is_object() && json.contains("hardware") && json["hardware"].is_string();
  return there ? json["hardware"].get<std::string>() : "without a GPU";
}

// Of the file that `terrace profile -o json` wrote: one profile, or one for each number of threads
// and one for the GPUs.
absl::StatusOr<v1::HardwareProfile> GivenProfile(const std::string& path, const RankKind& kind) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kProfilesBytesMax));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool several = json.is_object() && json.contains("profiles") && json["profiles"].is_array();
  const std::string here = HardwareHere(kind);
  for (const auto& one : several ? json["profiles"] : nlohmann::json::array({json})) {
    v1::HardwareProfile profile;
    if (!one.is_object() || !ParseProfile(one.dump(), &profile)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": is no profile; `terrace profile -o json` prints one that can be kept"));
    }
    if ((profile.device() == "cuda") != kind.cuda) continue;
    if (profile.hardware() != here) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": was measured on other hardware or by another version (",
                       profile.name(), ", ", profile.hardware(), "; this is ", here,
                       "), and says nothing of this machine; `terrace profile` measures it"));
    }
    if (kind.cuda || profile.threads() == kind.threads) return profile;
  }
  if (kind.cuda) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": has no profile of GPUs, which this job computes with; `terrace "
                     "profile --device cuda -o json` prints it"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": has no profile of a rank with ", kind.threads,
                   " threads, as this job has; `terrace profile --threads ", kind.threads,
                   " -o json` prints it"));
}

// Without a profile.
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
  return budget;
}

// What is measured here, or the file's. GPUs bring their memory and what a process holds of it;
// where there are none those of the catalogue stand for them.
absl::Status AddProfile(const v1::JobSpec& spec, const std::string& path, Budget* budget) {
  const RankKind kind = {.cuda = budget->device == "cuda", .threads = budget->threads_per_rank};
  if (path.empty()) {
    budget->profile = MachineProfile(kind);
  } else {
    ASSIGN_OR_RETURN(budget->profile, GivenProfile(path, kind));
  }
  if (!kind.cuda) return absl::OkStatus();
  const GpuKind gpu = {.name = budget->profile.name(),
                       .memory_bytes = budget->profile.device_memory_bytes(),
                       .per_node = std::max<uint32_t>(1, budget->ranks / budget->nodes)};
  budget->profile = RatesOf(gpu, budget->profile);
  budget->external_bytes = WhatIfOverheadBytes(gpu);
  if (spec.resources().device_memory() == 0)
    budget->device_memory_bytes = budget->profile.device_memory_bytes();
  return absl::OkStatus();
}

// Why a folder without manifest.json is no checkpoint, and which one may be meant.
absl::Status NoCheckpoint(const std::string& folder) {
  const std::filesystem::path path(folder);
  std::error_code error;
  std::string newest;
  for (const std::filesystem::path& below : {path, path / "checkpoints"}) {
    for (const auto& entry : std::filesystem::directory_iterator(below, error)) {
      if (entry.path().filename().string().starts_with("step-"))
        newest = std::max(newest, entry.path().string());
    }
  }
  if (!newest.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder, ": is no checkpoint, but holds some; name one of them: ", newest));
  }
  return absl::NotFoundError(absl::StrCat(
      folder, ": is no checkpoint: it has no manifest.json; `terrace ckpt ls` lists a job's"));
}

// The spec that trained a checkpoint, from its manifest.
absl::StatusOr<v1::JobSpec> SpecOfCheckpoint(const std::string& checkpoint) {
  if (HoldsForeignWeights(checkpoint)) return SpecOfForeignWeights();
  const std::string path = checkpoint + "/manifest.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return NoCheckpoint(checkpoint);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kManifestBytesMax));
  std::optional<v1::JobSpec> spec = SpecOfManifest(text);
  if (!spec || !CheckManifestSeal(text).ok()) {
    return absl::DataLossError(
        absl::StrCat(path, ": is no manifest of a Terrace checkpoint; `terrace ckpt verify ",
                     checkpoint, "` says what is wrong"));
  }
  return *std::move(spec);
}

}  // namespace

absl::StatusOr<JobHere> ReadJobHere(const std::string& spec_path, const std::string& profile_path) {
  JobHere job;
  ASSIGN_OR_RETURN(const std::string yaml, ReadTextOrPipe(spec_path, kSpecBytesMax));
  ASSIGN_OR_RETURN(job.spec, ReadJobSpec(yaml, FolderOf(spec_path)));
  job.budget = MachineBudget(job.spec);
  // The first measurement takes most of a minute, for nothing if no layout can respect the spec.
  RETURN_IF_ERROR(CheckSpec(job.spec, job.budget));
  RETURN_IF_ERROR(AddProfile(job.spec, profile_path, &job.budget));
  return job;
}

absl::StatusOr<Prepared> PrepareFile(const std::string& spec_path, const std::string& profile_path,
                                     const TellSearch& tell) {
  ASSIGN_OR_RETURN(const JobHere job, ReadJobHere(spec_path, profile_path));
  return PrepareAnyway(job.spec, job.budget, tell);
}

absl::Status WriteDataRequest(const std::string& spec_path, const std::string& output) {
  ASSIGN_OR_RETURN(const std::string yaml, ReadTextOrPipe(spec_path, kSpecBytesMax));
  v1::DataRequest request;
  ASSIGN_OR_RETURN(*request.mutable_spec(), ReadJobSpec(yaml, FolderOf(spec_path)));
  ASSIGN_OR_RETURN(const Model model, ReadModel(request.spec()));
  request.set_vocabulary(model.config.vocabulary);
  return WriteSyncedFile(output, request.SerializeAsString());
}

namespace {

// A checkpoint's model and what its job says of it.
struct CheckpointModel {
  v1::JobSpec spec;
  Model model;

  InferInput Input() const {
    InferInput input;
    input.model = &model;
    input.job = spec.name();
    input.sequence_length = spec.data().sequence_length();
    SetPrecisions(spec.train(), model.config.layers, &input.precisions);
    input.threads = static_cast<int>(CoreCount());
    return input;
  }
};

// New tokens that a pass over prompts takes of each text: enough for products at full speed, and
// few enough for activations that are small beside the weights.
int64_t PrefillTokens(int64_t texts) {
  constexpr int64_t kRows = 2048, kLeast = 16, kMost = 512;
  return std::clamp(kRows / texts, kLeast, kMost);
}

// Tokens of each text that are scored at a time: their logits take as much memory as those of 64
// tokens of a text that is alone.
int64_t ScoreTokens(const GenerateProgramOptions& options) {
  constexpr int64_t kRows = 64;
  return options.scores ? std::max<int64_t>(1, kRows / options.texts) : 0;
}

// Rows are this long where no job says it, or as long as the model has positions if that is less.
constexpr int64_t kForeignRowTokens = 1024;

// `sequence_length`: what the option says; 0 is the job's.
absl::StatusOr<CheckpointModel> ReadCheckpointModel(const std::string& checkpoint,
                                                    const char* option, int64_t sequence_length) {
  CheckpointModel read;
  ASSIGN_OR_RETURN(read.spec, SpecOfCheckpoint(checkpoint));
  ASSIGN_OR_RETURN(*read.spec.mutable_model()->mutable_config_json(),
                   ReadTextFile(checkpoint + "/config.json", kModelConfigBytesMax));
  v1::DataSpec& data = *read.spec.mutable_data();
  const bool has_length = data.sequence_length() > 0;
  if (!has_length) data.set_sequence_length(1);
  absl::StatusOr<Model> model = ReadModel(read.spec);
  if (!model.ok()) {
    return absl::Status(model.status().code(),
                        absl::StrCat(checkpoint, "/config.json: ", model.status().message()));
  }
  read.model = *std::move(model);
  const int64_t positions = read.model.config.max_positions;
  if (sequence_length > positions) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": got ", sequence_length,
                                                   ", must be at most ", positions,
                                                   ", the positions of the model"));
  }
  if (sequence_length == 0 && has_length) return read;
  data.set_sequence_length(sequence_length > 0 ? sequence_length
                                               : std::min(positions, kForeignRowTokens));
  ASSIGN_OR_RETURN(read.model, ReadModel(read.spec));  // some angles depend on the length
  return read;
}

}  // namespace

absl::Status WriteGenerateProgram(const std::string& checkpoint,
                                  const GenerateProgramOptions& options,
                                  const std::string& output) {
  ASSIGN_OR_RETURN(const CheckpointModel read,
                   ReadCheckpointModel(checkpoint, "--context", options.context));
  InferInput input = read.Input();
  input.batch = options.texts;
  ASSIGN_OR_RETURN(const v1::Program program,
                   CompileGenerate(input, {.max_length = input.sequence_length,
                                           .prefill_tokens = PrefillTokens(options.texts),
                                           .score_tokens = ScoreTokens(options)}));
  return WriteSyncedFile(output, SerializeProgram(program));
}

absl::Status WriteEvalProgram(const std::string& checkpoint, const EvalProgramOptions& options,
                              const std::string& output) {
  ASSIGN_OR_RETURN(const CheckpointModel read,
                   ReadCheckpointModel(checkpoint, "--length", options.sequence_length));
  InferInput input = read.Input();
  input.batch = options.batch;
  ASSIGN_OR_RETURN(const v1::Program program, CompileEval(input));
  return WriteSyncedFile(output, SerializeProgram(program));
}

}  // namespace terrace
