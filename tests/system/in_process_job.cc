// SPDX-License-Identifier: Apache-2.0
#include "tests/system/in_process_job.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "proto/allocation_events.h"
#include "proto/grid.h"
#include "proto/program_check.h"
#include "proto/state_layout.h"
#include "worker/comm/file_rendezvous.h"
#include "worker/rank/groups.h"
#include "worker/rank/initial_state.h"
#include "worker/rank/memory_classes.h"
#include "worker/rank/program_memory.h"
#include "worker/rank/trace.h"
#include "worker/rank/train_io.h"
#include "worker/rank/vm.h"

namespace terrace {
namespace {

// Of one message. A rank that fails closes its connections, so this is only for a machine that is
// so busy, or a process that is stopped for so long, that nothing arrives.
constexpr int64_t kTimeoutMs = 600'000;

class FixedDataset final : public TokenDataset {
 public:
  explicit FixedDataset(const JobData& data) : data_(data) {}
  int64_t tokens(Split) const override { return data_.rows * data_.length; }
  int64_t TrainLength(int64_t, int64_t) const override { return data_.length; }
  int64_t TrainTokens(int64_t begin, int64_t end, int64_t) const override {
    return (end - begin) * data_.rows * data_.length;
  }
  void TrainRow(int64_t, int64_t row, int64_t, std::span<int32_t> tokens,
                std::span<int32_t> targets) const override {
    const int64_t begin = row % data_.rows * data_.length;
    std::copy_n(data_.tokens.begin() + begin, data_.length, tokens.begin());
    std::copy_n(data_.targets.begin() + begin, data_.length, targets.begin());
  }
  void ValidationRow(int64_t index, std::span<int32_t> tokens,
                     std::span<int32_t> targets) const override {
    TrainRow(0, index, data_.rows, tokens, targets);
  }

 private:
  const JobData& data_;
};

// One rank's memory and place.
struct Rank {
  const v1::Program& program;
  Coordinates coordinates;
  std::span<Region* const> regions;

  // From so many bytes into a buffer on.
  std::vector<float> Read(uint32_t buffer, int64_t offset, int64_t elements) const {
    const v1::Buffer& b = program.buffers(buffer);
    std::vector<float> values(elements);
    const absl::Status read =
        regions[b.arena()]->Read(b.offset() + offset, std::as_writable_bytes(std::span(values)));
    if (!read.ok()) values.assign(elements, std::nanf(""));  // equal to nothing
    return values;
  }
};

absl::Status LoadWeights(const Rank& rank, const Tensors& weights) {
  for (const v1::StateRange& range : rank.program.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    const std::vector<float>& tensor = weights.at(range.tensor());
    for (const StateRun& run : RunsOf(range, rank.program.grid(), rank.coordinates)) {
      const v1::Buffer& buffer = rank.program.buffers(range.buffer());
      const auto values = std::span(tensor).subspan(run.begin, run.elements);
      RETURN_IF_ERROR(
          rank.regions[buffer.arena()]->Write(buffer.offset() + run.offset, std::as_bytes(values)));
    }
  }
  return absl::OkStatus();
}

struct Piece {
  std::string tensor;
  int64_t begin = 0;
  std::vector<float> values;
  bool owned = false;
};

Piece PieceOf(const Rank& rank, const v1::StateRange& range, const StateRun& run,
              std::vector<float> values) {
  return {.tensor = range.tensor(),
          .begin = run.begin,
          .values = std::move(values),
          .owned = OwnsState(range, rank.program.grid(), rank.coordinates)};
}

std::vector<Piece> StateOf(const Rank& rank, v1::StateKind kind) {
  std::vector<Piece> pieces;
  for (const v1::StateRange& range : rank.program.state()) {
    if (range.kind() != kind) continue;
    for (const StateRun& run : RunsOf(range, rank.program.grid(), rank.coordinates)) {
      pieces.push_back(
          PieceOf(rank, range, run, rank.Read(range.buffer(), run.offset, run.elements)));
    }
  }
  return pieces;
}

// The gradients that the optimizer ops read, by what they update.
std::vector<Piece> Gradients(const Rank& rank) {
  std::vector<Piece> pieces;
  for (const v1::Sequence& sequence : rank.program.sequences()) {
    for (const v1::Instruction& instruction : sequence.instructions()) {
      if (instruction.compute().op() != "adamw") continue;
      const v1::Operand& gradient = instruction.operands(0);
      const v1::Operand& weight = instruction.operands(1);
      const int64_t bytes = weight.shape(0) * 4;
      for (const v1::StateRange& range : rank.program.state()) {
        if (range.kind() != v1::WEIGHT || range.buffer() != weight.buffer()) continue;
        for (const StateRun& run : RunsOf(range, rank.program.grid(), rank.coordinates)) {
          const int64_t within = run.offset - weight.offset();
          if (within < 0 || within >= bytes) continue;
          pieces.push_back(
              PieceOf(rank, range, run,
                      rank.Read(gradient.buffer(), gradient.offset() + within, run.elements)));
        }
      }
    }
  }
  return pieces;
}

// Gradients that stream through the host in chunks are never there all at once, and those that the
// caching allocator places have no offset.
bool KeepsGradients(const v1::Program& program) {
  return program.arenas_size() == 1 && !UsesCaching(program);
}

// At the first write of state all gradients of the step are final: keeps those of the first step.
class GradientKeeper final : public StateFence {
 public:
  explicit GradientKeeper(const Rank& rank) : rank_(rank), kept_(!KeepsGradients(rank.program)) {}
  void WaitUntilUnread() override {
    if (std::exchange(kept_, true)) return;
    pieces = Gradients(rank_);
  }
  std::vector<Piece> pieces;

 private:
  const Rank& rank_;
  bool kept_;
};

struct RankResult {
  std::vector<double> losses, grad_norms;
  std::vector<Piece> gradients, weights, adam_m, adam_v;
  std::map<std::string, int64_t> sent_per_step;
  std::vector<SequenceTimes> times;
  v1::AllocatorStats allocator;
};

// What all ranks of a run share.
struct Run {
  const JobData& data;
  int64_t steps;
  const RunOptions& options;
  std::string folder;  // of the rendezvous
};

absl::StatusOr<RankResult> TrainRank(const Run& run, const v1::Program& program, uint32_t index) {
  std::filesystem::create_directories(run.folder);
  MemoryOptions memory_options = {.threads = 1, .name = absl::StrCat("rank", index)};
  memory_options.nvme.add_paths(run.folder);
  ASSIGN_OR_RETURN(const ProgramMemory memory,
                   ProgramMemory::Reserve(program, std::move(memory_options)));
  FileRendezvous store(run.folder);
  ASSIGN_OR_RETURN(const auto groups, ConnectGroups(program, index,
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
  TrainIo io(program.rules(), dataset, DataIndex(program.grid(), rank.coordinates),
             {.ranks = AxisSize(program.grid(), v1::CONTEXT),
              .index = rank.coordinates.context,
              .zigzag = program.rules().context_zigzag()});
  RankResult result;
  Trace trace(program, index);
  for (int64_t step = 0; step < run.steps; ++step) {
    io.SetStep(step);
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g] == nullptr) continue;
      int64_t& sent = result.sent_per_step[program.groups(static_cast<int>(g)).name()];
      sent = groups[g]->bytes_sent();
    }
    RETURN_IF_ERROR(vm->Run("train", &io));
    result.losses.push_back(io.stats().loss);
    result.grad_norms.push_back(io.stats().grad_norm);
    result.times.push_back(Times(*vm->Find("train")));
    if (step > 0 && !run.options.trace_folder.empty()) trace.Add(*vm->Find("train"), step);
  }
  if (!run.options.trace_folder.empty()) {
    RETURN_IF_ERROR(trace.Write(absl::StrCat(run.options.trace_folder, "/", index, ".json")));
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g] == nullptr) continue;
    int64_t& sent = result.sent_per_step[program.groups(static_cast<int>(g)).name()];
    sent = groups[g]->bytes_sent() - sent;
  }
  result.gradients = std::move(keeper.pieces);
  result.weights = StateOf(rank, v1::WEIGHT);
  result.adam_m = StateOf(rank, v1::ADAM_M);
  result.adam_v = StateOf(rank, v1::ADAM_V);
  result.allocator =
      memory.dynamic() != nullptr ? memory.dynamic()->stats() : PlannedStats(program);
  return result;
}

// Whole tensors from what the owners hold; everybody else must hold the same.
absl::Status Assemble(const Model& model, const std::vector<const std::vector<Piece>*>& ranks,
                      const char* what, Tensors* tensors) {
  std::map<std::string, std::vector<bool>> known;
  for (const Tensor& tensor : model.tensors) {
    (*tensors)[tensor.name].resize(tensor.elements());
    known[tensor.name].resize(tensor.elements());
  }
  for (const std::vector<Piece>* pieces : ranks) {
    for (const Piece& piece : *pieces) {
      if (!piece.owned) continue;
      std::copy(piece.values.begin(), piece.values.end(),
                tensors->at(piece.tensor).begin() + piece.begin);
      std::fill_n(known.at(piece.tensor).begin() + piece.begin, piece.values.size(), true);
    }
  }
  for (const auto& [name, elements] : known) {
    if (std::find(elements.begin(), elements.end(), false) != elements.end()) {
      return absl::InternalError(absl::StrCat(what, " of ", name, ": not all has an owner"));
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Piece& piece : *ranks[rank]) {
      if (std::memcmp(piece.values.data(), tensors->at(piece.tensor).data() + piece.begin,
                      piece.values.size() * sizeof(float)) != 0) {
        return absl::InternalError(
            absl::StrCat(what, " of ", piece.tensor, ": rank ", rank, " differs from the owner"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::Program>> CompileJob(const JobData& data, const v1::Layout& layout,
                                                    bool search_packings) {
  v1::JobSpec spec;
  spec.set_name("in-process");
  *spec.mutable_train() = data.train;
  spec.mutable_train()->set_precision(layout.precision());
  spec.mutable_data()->set_sequence_length(data.length);
  ASSIGN_OR_RETURN(std::vector<v1::Program> programs,
                   Compile({.spec = &spec,
                            .model = &data.model,
                            .layout = layout,
                            .search_packings = search_packings}));
  RETURN_IF_ERROR(CheckPrograms(programs));
  return programs;
}

int64_t CountedTargets(const JobData& data, const v1::StepRules& rules) {
  int64_t counted = 0;
  for (int64_t row = 0; row < GlobalBatch(rules); ++row) {
    const auto first = data.targets.begin() + row % data.rows * data.length;
    counted += std::count_if(first, first + data.length, [](int32_t id) { return id >= 0; });
  }
  return counted;
}

absl::StatusOr<JobResult> Merge(const JobData& data, std::vector<v1::Program> programs,
                                const std::vector<RankResult>& ranks) {
  JobResult result = {.losses = ranks[0].losses,
                      .grad_norms = ranks[0].grad_norms,
                      .programs = std::move(programs)};
  std::vector<const std::vector<Piece>*> gradients, weights, adam_m, adam_v;
  for (const RankResult& rank : ranks) {
    if (rank.losses != result.losses || rank.grad_norms != result.grad_norms) {
      return absl::InternalError("ranks report different losses or norms");
    }
    gradients.push_back(&rank.gradients);
    weights.push_back(&rank.weights);
    adam_m.push_back(&rank.adam_m);
    adam_v.push_back(&rank.adam_v);
    result.sent_per_step.push_back(rank.sent_per_step);
    result.times.push_back(rank.times);
    result.allocator.push_back(rank.allocator);
  }
  if (KeepsGradients(result.programs[0])) {
    RETURN_IF_ERROR(Assemble(data.model, gradients, "gradient", &result.gradients));
  }
  RETURN_IF_ERROR(Assemble(data.model, weights, "weight", &result.weights));
  RETURN_IF_ERROR(Assemble(data.model, adam_m, "first moment", &result.adam_m));
  RETURN_IF_ERROR(Assemble(data.model, adam_v, "second moment", &result.adam_v));
  // What programs sum is the gradient of the loss of all tokens that count.
  const auto tokens = static_cast<float>(CountedTargets(data, result.programs[0].rules()));
  for (auto& [name, values] : result.gradients) {
    for (float& value : values) value /= tokens;
  }
  return result;
}

}  // namespace

absl::StatusOr<JobResult> TrainInProcess(const JobData& data, const v1::Layout& layout,
                                         int64_t steps, const RunOptions& options) {
  ASSIGN_OR_RETURN(std::vector<v1::Program> programs,
                   CompileJob(data, layout, options.search_packings));
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
  return Merge(data, std::move(programs), values);
}

}  // namespace terrace
