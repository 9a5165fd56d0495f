// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/plan_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/compiler/liveness.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/offload_report.h"
#include "kernels/tensor_view.h"
#include "proto/program_hash.h"
#include "proto/program_text.h"
#include "proto/state_layout.h"

namespace terrace {
namespace {

using BytesByClass = std::map<v1::BufferClass, int64_t>;

int64_t Total(const BytesByClass& bytes) {
  int64_t total = 0;
  for (const auto& [cls, amount] : bytes) total += amount;
  return total;
}

// STEP bytes of one sequence in `arena` at the moment when most are alive.
BytesByClass PeakOfSequence(const v1::Program& program, const v1::Sequence& sequence,
                            uint32_t arena) {
  struct Change {
    int64_t time = 0;
    int64_t bytes = 0;  // negative at a death; deaths come before births of the same time
    v1::BufferClass cls = v1::ACTIVATION;
  };
  const std::vector<Life> lives = Liveness(program, sequence);
  std::vector<Change> changes;
  for (int i = 0; i < program.buffers_size(); ++i) {
    const v1::Buffer& buffer = program.buffers(i);
    if (buffer.lifetime() != v1::STEP || buffer.arena() != arena || lives[i].begin == lives[i].end)
      continue;
    changes.push_back({lives[i].begin, buffer.bytes(), buffer.class_()});
    changes.push_back({lives[i].end, -buffer.bytes(), buffer.class_()});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tuple(a.time, a.bytes, a.cls) < std::tuple(b.time, b.bytes, b.cls);
  });
  BytesByClass alive, peak;
  int64_t alive_bytes = 0, peak_bytes = 0;
  for (const Change& change : changes) {
    alive[change.cls] += change.bytes;
    alive_bytes += change.bytes;
    if (alive_bytes <= peak_bytes) continue;
    peak = alive;
    peak_bytes = alive_bytes;
  }
  return peak;
}

void AddLine(v1::Tier tier, v1::BufferClass cls, int64_t bytes, v1::StageMemory* memory) {
  if (bytes == 0) return;
  v1::MemoryLine* line = memory->add_lines();
  line->set_tier(tier);
  line->set_class_(cls);
  line->set_bytes(bytes);
}

void ReportArena(const v1::Program& program, const v1::Arena& arena, v1::StageMemory* memory) {
  BytesByClass bytes;
  for (const v1::Sequence& sequence : program.sequences()) {
    BytesByClass peak = PeakOfSequence(program, sequence, arena.id());
    if (Total(peak) > Total(bytes)) bytes = std::move(peak);
  }
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() == v1::PERSISTENT && buffer.arena() == arena.id())
      bytes[buffer.class_()] += buffer.bytes();
  }
  for (const auto& [cls, amount] : bytes) AddLine(arena.tier(), cls, amount, memory);
  AddLine(arena.tier(), v1::BUFFER_CLASS_UNSPECIFIED, arena.bytes() - Total(bytes), memory);
}

int64_t LimitOf(const v1::Program& program, v1::Tier tier) {
  if (tier == v1::HOST) return program.host_limit_bytes();
  return tier == v1::NVME ? program.nvme_limit_bytes() : program.device_limit_bytes();
}

v1::ModelSummary ReportModel(const v1::JobSpec& spec, const Model& model) {
  const ModelConfig& config = model.config;
  v1::ModelSummary summary;
  summary.set_family(config.family);
  summary.set_parameters(model.Parameters());
  int64_t embedding = 0;
  for (const TensorRole role : {TensorRole::kTokenEmbedding, TensorRole::kPositionEmbedding}) {
    if (const Tensor* tensor = model.Find(role)) embedding += tensor->elements();
  }
  summary.set_embedding_parameters(embedding);
  summary.set_layers(static_cast<uint32_t>(config.layers));
  summary.set_hidden(static_cast<uint32_t>(config.hidden));
  summary.set_heads(static_cast<uint32_t>(config.heads));
  summary.set_kv_heads(static_cast<uint32_t>(config.kv_heads));
  summary.set_head_dim(static_cast<uint32_t>(config.head_dim));
  summary.set_vocabulary(config.vocabulary);
  summary.set_sequence_length(spec.data().sequence_length());
  summary.set_flops_per_token(FlopsPerToken(model, spec.data().sequence_length()));
  return summary;
}

// Model FLOPs of a step that a rank does, averaged over the stages.
double RankFlops(const Evaluated& chosen) {
  double flops = 0;
  for (const v1::Program& program : chosen.programs) flops += program.rules().flops_per_step();
  return flops / static_cast<double>(chosen.programs.size());
}

v1::TimeEstimate ReportTime(const v1::JobSpec& spec, const Budget& budget,
                            const Evaluated& chosen) {
  const Simulation& simulation = chosen.simulation;
  const v1::StepRules& rules = chosen.programs[0].rules();
  v1::TimeEstimate time;
  time.set_step_seconds(simulation.step_seconds);
  time.set_compute_seconds(simulation.compute_seconds);
  time.set_exposed_communication_seconds(simulation.exposed_communication_seconds);
  time.set_exposed_offload_seconds(simulation.exposed_offload_seconds);
  time.set_optimizer_seconds(simulation.optimizer_seconds);
  time.set_total_seconds(simulation.step_seconds * static_cast<double>(spec.train().steps()));
  const bool bf16 = chosen.layout.precision() == "bf16";
  const double peak =
      bf16 ? budget.profile.bf16_flops_per_second() : budget.profile.f32_flops_per_second();
  if (simulation.step_seconds > 0) {
    time.set_tokens_per_second(static_cast<double>(rules.tokens_per_step()) /
                               simulation.step_seconds);
    if (peak > 0) time.set_mfu(RankFlops(chosen) / simulation.step_seconds / peak);
  }
  return time;
}

// A checkpoint holds each tensor whole and once, however many ranks share it.
int64_t CheckpointBytes(const Evaluated& chosen) {
  std::set<std::pair<std::string_view, v1::StateKind>> counted;
  int64_t bytes = 0;
  for (const v1::Program& program : chosen.programs) {
    for (const v1::StateRange& range : program.state()) {
      if (range.copy() || !counted.emplace(range.tensor(), range.kind()).second) continue;
      bytes += RowsOf(range) * ColumnsOf(range) *
               kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
    }
  }
  return bytes;
}

// Of a stage, on average.
double BubbleSeconds(const Simulation& simulation) {
  double seconds = 0;
  for (const SimulatedStage& stage : simulation.stages) seconds += stage.bubble_seconds;
  return seconds / static_cast<double>(std::max<size_t>(1, simulation.stages.size()));
}

// The stream that works longest of those between the tiers and on the host.
std::string SlowestTier(const Evaluated& chosen) {
  std::string slowest;
  double most = 0;
  for (size_t i = 0; i < chosen.programs.size(); ++i) {
    const std::vector<SimulatedStream>& streams = chosen.simulation.stages[i].streams;
    for (size_t k = 0; k < streams.size(); ++k) {
      const v1::StreamKind kind = chosen.programs[i].streams(static_cast<int>(k)).kind();
      const bool between = kind == v1::HOST_TO_DEVICE || kind == v1::DEVICE_TO_HOST ||
                           kind == v1::NVME_READ || kind == v1::NVME_WRITE ||
                           kind == v1::HOST_COMPUTE;
      if (!between || streams[k].busy_seconds <= most) continue;
      most = streams[k].busy_seconds;
      if (kind == v1::HOST_TO_DEVICE) slowest = "copies to the device";
      if (kind == v1::DEVICE_TO_HOST) slowest = "copies from the device";
      if (kind == v1::NVME_READ) slowest = "NVMe reads";
      if (kind == v1::NVME_WRITE) slowest = "NVMe writes";
      if (kind == v1::HOST_COMPUTE) slowest = "the host's optimizer";
    }
  }
  return slowest;
}

std::string OffloadConstraint(const Evaluated& chosen, double exposed) {
  return absl::StrFormat(
      "offload: %.0f %% of the step waits for it, longest for %s; steps of more tokens than the "
      "break-even hide it",
      100 * exposed, SlowestTier(chosen));
}

std::string BindingConstraint(const Budget& budget, const Evaluated& chosen,
                              const std::vector<Evaluated>& others) {
  // Faster by less is not worth a word.
  constexpr double kFaster = 1.02;
  for (const Evaluated& other : others) {
    const bool device_short = !other.fits && other.device_bytes > budget.device_memory_bytes;
    if (!device_short ||
        other.simulation.step_seconds * kFaster >= chosen.simulation.step_seconds) {
      continue;
    }
    return absl::StrFormat(
        "device memory: %s would be %.1f %% faster and needs %s of %s",
        absl::StrJoin(Differences(chosen.layout, other.layout), ", "),
        100 * (chosen.simulation.step_seconds / other.simulation.step_seconds - 1),
        FormatBytes(other.device_bytes), FormatBytes(budget.device_memory_bytes));
  }
  const double step = std::max(chosen.simulation.step_seconds, 1e-12);
  const double exposed = chosen.simulation.exposed_communication_seconds / step;
  const double bubble = BubbleSeconds(chosen.simulation) / step;
  if (bubble > std::max(0.1, exposed)) {
    return absl::StrFormat(
        "pipeline: a stage idles for %.0f %% of the step while others compute; more micro-batches "
        "or another schedule shorten it",
        100 * bubble);
  }
  if (exposed > 0.1) {
    const bool only_data = chosen.layout.data_parallel() == chosen.layout.ranks();
    return absl::StrFormat("link: %.0f %% of the step waits for %s", 100 * exposed,
                           only_data ? "gradients to be reduced" : "communication");
  }
  if (const double offload = chosen.simulation.exposed_offload_seconds / step; offload > 0.1) {
    return OffloadConstraint(chosen, offload);
  }
  const double optimizer = chosen.simulation.optimizer_seconds / step;
  if (optimizer > 0.3) {
    return absl::StrFormat(
        "memory bandwidth: %.0f %% of the step is the optimizer; a larger global_batch shares it",
        100 * optimizer);
  }
  return absl::StrFormat("compute: the device computes during %.0f %% of the step",
                         100 * chosen.simulation.compute_seconds / step);
}

std::string AlternativeNote(const Budget& budget, const Evaluated& chosen, const Evaluated& other) {
  if (!other.fits && other.device_bytes > budget.device_memory_bytes) {
    return absl::StrCat("does not fit: needs ", FormatBytes(other.device_bytes), " of ",
                        FormatBytes(budget.device_memory_bytes));
  }
  if (!other.fits) {
    return absl::StrCat("does not fit: needs ", FormatBytes(other.host_bytes), " host memory, ",
                        FormatBytes(other.nvme_bytes), " NVMe");
  }
  const double slower_percent =
      100 * (other.simulation.step_seconds / std::max(chosen.simulation.step_seconds, 1e-12) - 1);
  if (std::abs(slower_percent) < 0.05) return "as fast";
  return absl::StrFormat("%.1f %% %s", std::abs(slower_percent),
                         slower_percent > 0 ? "slower" : "faster");
}

v1::Alternative ReportAlternative(const Budget& budget, const Evaluated& chosen,
                                  const Evaluated& other) {
  v1::Alternative alternative;
  *alternative.mutable_layout() = other.layout;
  alternative.set_arena_bytes(other.device_bytes - other.programs[0].external_bytes());
  alternative.set_step_seconds(other.simulation.step_seconds);
  alternative.set_note(AlternativeNote(budget, chosen, other));
  return alternative;
}

}  // namespace

v1::StageMemory ReportMemory(const v1::Program& program, const v1::Arena& arena) {
  v1::StageMemory memory;
  memory.set_stage(program.stage());
  memory.set_tier(arena.tier());
  memory.set_limit_bytes(LimitOf(program, arena.tier()));
  ReportArena(program, arena, &memory);
  memory.set_arena_bytes(arena.bytes());
  memory.set_lower_bound_bytes(arena.lower_bound_bytes());
  if (arena.tier() == v1::DEVICE) {
    memory.set_external_bytes(program.external_bytes());
    AddLine(v1::DEVICE, v1::EXTERNAL, program.external_bytes(), &memory);
  }
  return memory;
}

v1::Plan ReportPlan(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                    const Evaluated& chosen, const std::vector<Evaluated>& others) {
  v1::Plan plan;
  plan.set_job(spec.name());
  *plan.mutable_layout() = chosen.layout;
  *plan.mutable_model() = ReportModel(spec, model);
  *plan.mutable_time() = ReportTime(spec, budget, chosen);
  *plan.mutable_profile() = budget.profile;
  plan.mutable_profile()->clear_kernels();  // hundreds of shapes: `terrace profile` prints them
  uint32_t instructions = 0;
  for (const v1::Program& program : chosen.programs) {
    for (const v1::Arena& arena : program.arenas()) {
      *plan.add_memory() = ReportMemory(program, arena);
    }
    plan.add_program_sha256(Sha256Hex(SerializeProgram(program)));
    for (const v1::Sequence& sequence : program.sequences()) {
      if (sequence.name() == "train") instructions += sequence.instructions_size();
    }
  }
  plan.set_instructions(instructions);
  plan.set_checkpoint_bytes(CheckpointBytes(chosen));
  if (auto nvme = ReportNvme(spec, chosen)) *plan.mutable_nvme() = *std::move(nvme);
  plan.set_break_even_tokens(BreakEvenTokens(chosen));
  plan.set_binding_constraint(BindingConstraint(budget, chosen, others));
  for (const Evaluated& other : others)
    *plan.add_alternatives() = ReportAlternative(budget, chosen, other);
  return plan;
}

}  // namespace terrace
