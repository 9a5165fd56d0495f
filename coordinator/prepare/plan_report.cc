// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/plan_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/side_by_side.h"
#include "base/text/number_format.h"
#include "coordinator/layout/parameter_groups.h"
#include "coordinator/layout/precision.h"
#include "coordinator/model/lora.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/offload_report.h"
#include "coordinator/prepare/plan_report_alternatives.h"
#include "kernels/tensor_view.h"
#include "proto/peak_flops.h"
#include "proto/program/program_hash.h"
#include "proto/program/state_layout.h"

namespace terrace {
namespace {

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
  summary.set_frozen_parameters(FrozenParameters(spec.train().optimizer(), model));
  summary.set_adapter_parameters(AdapterParameters(model));
  summary.set_layers(static_cast<uint32_t>(config.layers));
  summary.set_hidden(static_cast<uint32_t>(config.hidden));
  summary.set_heads(static_cast<uint32_t>(config.heads));
  summary.set_kv_heads(static_cast<uint32_t>(config.kv_heads));
  summary.set_head_dim(static_cast<uint32_t>(config.head_dim));
  summary.set_vocabulary(config.vocabulary);
  summary.set_sequence_length(spec.data().sequence_length());
  summary.set_flops_per_token(
      StepFlopsPerToken(spec.train(), model, spec.data().sequence_length()));
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
  time.set_bubble_ratio(simulation.bubble_ratio);
  time.set_total_seconds(simulation.step_seconds * static_cast<double>(spec.train().steps()));
  const double peak = PeakFlops(budget.profile, chosen.layout.precision());
  if (simulation.step_seconds > 0) {
    time.set_tokens_per_second(static_cast<double>(rules.tokens_per_step()) /
                               simulation.step_seconds);
    time.set_tokens_per_second_per_device(time.tokens_per_second() /
                                          std::max<uint32_t>(1, chosen.layout.ranks()));
    time.set_tflops_per_device(RankFlops(chosen) / simulation.step_seconds * 1e-12);
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

int64_t LimitOf(const v1::JobSpec& spec, const Budget& budget, v1::Tier tier) {
  const TierLimits limits = LimitsOf(spec);
  if (tier == v1::HOST) return limits.host_bytes;
  return tier == v1::NVME ? limits.nvme_bytes : budget.device_memory_bytes;
}

v1::Alternative ReportAlternative(const WhyNot& why_not, const Evaluated& other) {
  v1::Alternative alternative;
  *alternative.mutable_layout() = other.layout;
  alternative.set_arena_bytes(other.device_bytes - other.programs[0].external_bytes());
  alternative.set_step_seconds(other.simulation.step_seconds);
  alternative.set_note(why_not.Of(other));
  alternative.set_device_bytes(other.device_bytes);
  alternative.set_host_bytes(other.host_bytes);
  alternative.set_nvme_bytes(other.nvme_bytes);
  alternative.set_fits(other.fits);
  alternative.set_compiled(true);
  return alternative;
}

struct GatheredElements {
  double as_codes = 0, as_they_are = 0;
};

void AddGathered(const v1::Program& program, const v1::Sequence& train,
                 GatheredElements* gathered) {
  std::set<uint32_t> scales;  // buffers
  for (const v1::Instruction& instruction : train.instructions()) {
    if (instruction.compute().op() == "decode_blocks")
      scales.insert(instruction.operands(1).buffer());
  }
  for (const v1::Instruction& instruction : train.instructions()) {
    if (instruction.collective().kind() != v1::ALL_GATHER) continue;
    const v1::Operand& whole = instruction.operands(1);
    const v1::Buffer& buffer = program.buffers(static_cast<int>(whole.buffer()));
    if (buffer.class_() != v1::PARAMETER || buffer.lifetime() != v1::STEP) continue;
    if (scales.contains(whole.buffer())) continue;
    double elements = 1;
    for (const int64_t size : whole.shape()) elements *= static_cast<double>(size);
    (whole.dtype() == v1::U8 ? gathered->as_codes : gathered->as_they_are) += elements;
  }
}

// Of matrices that a step gathers for a use.
GatheredElements ElementsGathered(const std::vector<v1::Program>& programs) {
  GatheredElements gathered;
  for (const v1::Program& program : programs) {
    for (const v1::Sequence& sequence : program.sequences()) {
      if (sequence.name() == "train") AddGathered(program, sequence, &gathered);
    }
  }
  return gathered;
}

// Where layout.frozen_format has no effect.
void ReportFrozen(const Evaluated& chosen, v1::Plan* plan) {
  const std::string& format = chosen.layout.frozen_format();
  const auto& initializers = chosen.programs[0].initializers();
  const bool some = std::any_of(
      initializers.begin(), initializers.end(),
      [](const v1::Initializer& init) { return init.blocks() != v1::BLOCK_FORMAT_UNSPECIFIED; });
  if (format.empty() || some) return;
  plan->mutable_layout()->clear_frozen_format();
  plan->add_remarks(absl::StrCat("formats.frozen: ", format,
                                 " has no effect: train.optimizer.groups freezes no matrix of a "
                                 "layer"));
}

// Where layout.gather_format has an effect on some matrices alone, or on none.
void ReportGathers(const Evaluated& chosen, v1::Plan* plan) {
  const std::string& format = chosen.layout.gather_format();
  if (format.empty()) return;
  const GatheredElements gathered = ElementsGathered(chosen.programs);
  if (gathered.as_codes == 0) {
    plan->mutable_layout()->clear_gather_format();
    plan->add_remarks(absl::StrCat(
        "formats.gather: ", format,
        " has no effect: no matrix is gathered for a use, as all have "
        "fewer elements than layout.persistent_parameters or come in tiles (layout.tile_bytes)"));
  } else if (gathered.as_they_are > 0) {
    plan->add_remarks(absl::StrFormat(
        "formats.gather: %.0f %% of the elements that a step gathers travel in %s; matrices that "
        "come in tiles (layout.tile_bytes) travel as they are",
        100 * gathered.as_codes / (gathered.as_codes + gathered.as_they_are), format));
  }
  for (const char* exact : {"fp32", "tf32"}) {
    if (gathered.as_codes == 0 || !ComputesIn(chosen.layout, exact)) continue;
    plan->add_remarks(absl::StrCat("formats.gather: matrices of products in ", exact,
                                   " (train.precision.layers) travel in ", format, " too"));
  }
}

// Says what a training step drops at random; a plan's time has it in the layers' passes.
void ReportDropout(const DropoutConfig& dropout, v1::Plan* plan) {
  std::vector<std::string> parts;
  const auto add = [&parts](double rate, const char* of) {
    if (rate > 0) parts.push_back(absl::StrCat(rate, " of ", of));
  };
  add(dropout.embedding, "the embeddings");
  add(dropout.residual, "what blocks add to the residual stream");
  add(dropout.attention, "attention weights");
  add(dropout.adapter, "what adapters read");
  if (parts.empty()) return;
  plan->add_remarks(absl::StrCat("dropout: steps of training drop ", absl::StrJoin(parts, ", "),
                                 "; evaluations drop nothing"));
}

// The lengths of documents are in the data, which a plan does not read.
void ReportPackedRows(const v1::DataSpec& data, v1::Plan* plan) {
  if (data.samples() != "packed") return;
  plan->add_remarks(
      absl::StrCat("data.samples: packed: the time and the FLOPs of attention are upper bounds, "
                   "those of rows of "
                   "one document of ",
                   data.sequence_length(), " tokens; a row of shorter documents attends to less"));
}

void ReportPrograms(const Evaluated& chosen, v1::Plan* plan) {
  uint32_t instructions = 0;
  for (const v1::Program& program : chosen.programs) {
    plan->add_program_sha256(Sha256Hex(SerializeProgram(program)));
    for (const v1::Sequence& sequence : program.sequences()) {
      if (sequence.name() == "train") instructions += sequence.instructions_size();
    }
  }
  plan->set_instructions(instructions);
}

}  // namespace

v1::Plan ReportPlan(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                    const Evaluated& chosen, const std::vector<Evaluated>& others) {
  v1::Plan plan;
  plan.set_job(spec.name());
  *plan.mutable_layout() = chosen.layout;
  *plan.mutable_model() = ReportModel(spec, model);
  *plan.mutable_time() = ReportTime(spec, budget, chosen);
  *plan.mutable_profile() = budget.profile;
  plan.mutable_profile()->clear_kernels();  // hundreds of shapes: `terrace profile` prints them
  for (const v1::KernelRate& rate : budget.profile.kernels()) {
    if (rate.kernel() == kPeakKernel) *plan.mutable_profile()->add_kernels() = rate;
  }
  std::vector<std::vector<v1::StageMemory>> memory(chosen.programs.size());
  SideBySide(memory.size(), [&](size_t s) { memory[s] = ReportMemory(chosen.programs[s]); });
  for (std::vector<v1::StageMemory>& of_stage : memory) {
    for (v1::StageMemory& of_arena : of_stage) {
      const v1::Tier tier = of_arena.tier();
      // A program that does not fit has no limits.
      if (of_arena.limit_bytes() == 0) of_arena.set_limit_bytes(LimitOf(spec, budget, tier));
      *plan.add_memory() = std::move(of_arena);
    }
  }
  ReportPrograms(chosen, &plan);
  plan.set_checkpoint_bytes(CheckpointBytes(chosen));
  if (auto nvme = ReportNvme(spec, chosen)) *plan.mutable_nvme() = *std::move(nvme);
  for (const std::string& remark : model.config.remarks) plan.add_remarks(remark);
  if (const std::string& older = spec.layout().communication_dtype(); !older.empty()) {
    plan.add_remarks(absl::StrCat("layout.communication_dtype: ", older,
                                  " is now formats.reduce: ", older == "fp32" ? "f32" : older));
  }
  ReportDropout(model.config.dropout, &plan);
  ReportPackedRows(spec.data(), &plan);
  ReportGathers(chosen, &plan);
  ReportFrozen(chosen, &plan);
  for (v1::ParameterGroupLine& line : ParameterGroupLines(spec.train().optimizer(), model))
    *plan.add_parameter_groups() = std::move(line);
  plan.set_break_even_tokens(BreakEvenTokens(budget.profile, chosen));
  plan.set_binding_constraint(BindingConstraint(budget, chosen, others));
  plan.set_fits(chosen.fits);
  *plan.mutable_binding() = ReportBinding(chosen, LimitsOf(spec), budget.device_memory_bytes);
  const WhyNot why_not(spec, budget, chosen);
  for (const Evaluated& other : others)
    *plan.add_alternatives() = ReportAlternative(why_not, other);
  MarkFront(&plan);
  return plan;
}

void ReportSearch(const Searched& searched, size_t compiled, v1::Plan* plan) {
  int64_t external_bytes = 0, largest = 0;
  for (const v1::StageMemory& memory : plan->memory()) {
    external_bytes = std::max(external_bytes, memory.external_bytes());
    if (memory.tier() == v1::DEVICE) {
      largest = std::max(largest, memory.arena_bytes() + memory.external_bytes());
    }
  }
  plan->mutable_search()->set_candidates(searched.candidates);
  plan->mutable_search()->set_compiled(static_cast<int64_t>(compiled));
  for (const Proposal& other : searched.others) {
    v1::Alternative* alternative = plan->add_alternatives();
    *alternative->mutable_layout() = other.layout;
    alternative->set_arena_bytes(other.memory.total());
    alternative->set_device_bytes(other.memory.total() + external_bytes);
    alternative->set_host_bytes(other.memory.host_bytes);
    alternative->set_nvme_bytes(other.memory.nvme_bytes);
    alternative->set_step_seconds(other.seconds);
    alternative->set_fits(true);
    alternative->set_note(SmallerByClosedForm(plan->time().step_seconds(), other.seconds, largest,
                                              alternative->device_bytes()));
  }
  MarkFront(plan);
}

}  // namespace terrace
