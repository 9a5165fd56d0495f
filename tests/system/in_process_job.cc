// SPDX-License-Identifier: Apache-2.0
#include "tests/system/in_process_job.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "proto/check/program_check.h"
#include "proto/program/allocation_events.h"
#include "tests/system/in_process_turns.h"
#include "tests/system/rank_state.h"
#include "worker/comm/file_rendezvous.h"
#include "worker/device/groups.h"
#include "worker/rank/memory_classes.h"
#include "worker/rank/program_memory.h"
#include "worker/train/initial_state.h"
#include "worker/train/trace.h"

namespace terrace {
namespace {

// Of one message. A rank that fails closes its connections, so this is only for a machine that is
// so busy, or a process that is stopped for so long, that nothing arrives.
constexpr int64_t kTimeoutMs = 600'000;

// What all ranks of a run share.
struct Run {
  const JobData& data;
  int64_t steps;
  const RunOptions& options;
  std::string folder;  // of the rendezvous
};

using Groups = std::vector<std::unique_ptr<Communicator>>;

// Before the last step: all that was sent so far; after it: what that step has sent.
void CountSent(const v1::Program& program, const Groups& groups, bool last, RankResult* result) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g] == nullptr) continue;
    int64_t& sent = result->sent_per_step[program.groups(static_cast<int>(g)).name()];
    sent = groups[g]->bytes_sent() - (last ? sent : 0);
  }
}

absl::StatusOr<RankResult> TrainRank(const Run& run, const v1::Program& program, uint32_t index) {
  std::filesystem::create_directories(run.folder);
  MemoryOptions memory_options = {.threads = 1, .name = absl::StrCat("rank", index)};
  memory_options.nvme.add_paths(run.folder);
  ASSIGN_OR_RETURN(const ProgramMemory memory,
                   ProgramMemory::Reserve(program, std::move(memory_options)));
  FileRendezvous store(run.folder);
  ASSIGN_OR_RETURN(const Groups groups, ConnectGroups(program, index,
                                                      {.interface_address = "127.0.0.1",
                                                       .timeout_ms = kTimeoutMs,
                                                       .link = run.options.link},
                                                      &store));
  const Rank rank = {program, CoordinatesOf(program.grid(), index), memory.regions()};
  const SystemClock clock;
  GradientKeeper keeper(rank);
  ASSIGN_OR_RETURN(const auto vm, Vm::Create(program,
                                             {.threads = static_cast<int>(program.threads()),
                                              .arenas = memory.arenas(),
                                              .groups = groups,
                                              .rank = index,
                                              .nvme = memory.nvme(),
                                              .dynamic = memory.dynamic()},
                                             &clock, &keeper));
  RETURN_IF_ERROR(vm->Warm());
  RETURN_IF_ERROR(FillInitialState(program, memory.regions(), 1));
  RETURN_IF_ERROR(LoadWeights(rank, run.data.weights));
  const FixedDataset dataset(run.data);
  TrainIo io = TrainIoOf(rank, dataset);
  RankResult result;
  Trace trace(program, index);
  if (vm->Has("restore")) {
    NoIo nothing;
    RETURN_IF_ERROR(vm->Run("restore", &nothing));
  }
  for (int64_t step = 0; step < run.steps; ++step) {
    io.SetStep(step);
    CountSent(program, groups, /*last=*/false, &result);
    RETURN_IF_ERROR(vm->Run("train", &io));
    AddStats(io.stats(), &result);
    result.times.push_back(Times(*vm->Find("train")));
    if (step > 0 && !run.options.trace_folder.empty()) trace.Add(*vm->Find("train"), step);
  }
  if (!run.options.trace_folder.empty()) {
    RETURN_IF_ERROR(trace.Write(absl::StrCat(run.options.trace_folder, "/", index, ".json")));
  }
  CountSent(program, groups, /*last=*/true, &result);
  AddStates(rank, &keeper, &result);
  result.allocator =
      memory.dynamic() != nullptr ? memory.dynamic()->stats() : PlannedStats(program);
  return result;
}

absl::StatusOr<std::vector<RankResult>> TrainOnThreads(const JobData& data,
                                                       const std::vector<v1::Program>& programs,
                                                       int64_t steps, const RunOptions& options) {
  static std::atomic<int> runs = 0;
  const Run run = {.data = data,
                   .steps = steps,
                   .options = options,
                   .folder = std::filesystem::temp_directory_path() /
                             absl::StrCat("terrace-in-process-", ::getpid(), "-", ++runs)};
  const uint32_t ranks = programs[0].ranks();
  std::vector<absl::StatusOr<RankResult>> results(ranks);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const uint32_t stage = CoordinatesOf(programs[0].grid(), rank).stage;
        results[rank] = TrainRank(run, programs[stage], rank);
      });
    }
  }
  std::filesystem::remove_all(run.folder);
  std::vector<RankResult> values;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (!results[rank].ok()) {
      return absl::Status(results[rank].status().code(),
                          absl::StrCat("rank ", rank, ": ", results[rank].status().message()));
    }
    values.push_back(*std::move(results[rank]));
  }
  return values;
}

}  // namespace

absl::StatusOr<std::vector<v1::Program>> CompileJob(const JobData& data, const v1::Layout& layout,
                                                    const std::string& packing, bool straight) {
  v1::JobSpec spec;
  spec.set_name("in-process");
  *spec.mutable_train() = data.train;
  spec.mutable_train()->set_precision(layout.precision());
  if (!spec.train().has_loss_scale()) {
    v1::LossScaleSpec* scale = spec.mutable_train()->mutable_loss_scale();
    scale->set_initial(65536);
    scale->set_window(1000);
    scale->set_hysteresis(2);
    scale->set_min(1);
  }
  spec.mutable_layout()->set_packing(packing);
  spec.mutable_data()->set_sequence_length(data.length);
  if (!data.starts.empty()) spec.mutable_data()->set_samples("packed");
  ASSIGN_OR_RETURN(
      std::vector<v1::Program> programs,
      Compile({.spec = &spec, .model = &data.model, .layout = layout, .straight = straight}));
  RETURN_IF_ERROR(CheckPrograms(programs));
  return programs;
}

absl::StatusOr<JobResult> TrainPrograms(const JobData& data, std::vector<v1::Program> programs,
                                        int64_t steps, const RunOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<RankResult> ranks,
                   options.turns ? TrainInTurns(data, programs, steps, *options.turns)
                                 : TrainOnThreads(data, programs, steps, options));
  return Merge(data, std::move(programs), ranks);
}

absl::StatusOr<JobResult> TrainInProcess(const JobData& data, const v1::Layout& layout,
                                         int64_t steps, const RunOptions& options) {
  ASSIGN_OR_RETURN(std::vector<v1::Program> programs,
                   CompileJob(data, layout, /*packing=*/"", options.straight));
  return TrainPrograms(data, std::move(programs), steps, options);
}

}  // namespace terrace
