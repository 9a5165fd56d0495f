// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/compile.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/side_by_side.h"
#include "base/status_macros.h"
#include "coordinator/compiler/emit.h"
#include "coordinator/compiler/graph/graph.h"
#include "coordinator/compiler/graph/streams.h"
#include "coordinator/compiler/graph/workspace.h"
#include "coordinator/compiler/loops/roll.h"
#include "coordinator/compiler/pack/dynamic.h"
#include "coordinator/compiler/pack/place.h"
#include "coordinator/compiler/state/parameters.h"
#include "coordinator/compiler/step.h"
#include "coordinator/layout/parameter_groups.h"
#include "coordinator/layout/rules.h"
#include "proto/program/grid.h"
#include "proto/program/op_codec.h"
#include "proto/program/sequences.h"

namespace terrace {
namespace {

using compiler::ForwardOptions;
using compiler::Graph;
using compiler::kNone;
using compiler::Parameters;

// "train" is unrolled; beyond this a program is too long to stream and to check (proto/check has
// the same limits). Of layouts that are far beyond their layer passes say it (layout/rules.h).
constexpr int64_t kMaxBuffers = 1'000'000;
constexpr int64_t kMaxInstructions = 2'000'000;

absl::Status CheckCount(int64_t count, int64_t most, const std::string& what) {
  if (count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layout: ", count, " ", what, " in one step of a stage, must be at most ", most,
      "; raise layout.micro_batch, layout.dp or layout.pp, or lower train.global_batch"));
}

absl::Status CheckSize(const Graph& graph) {
  const auto buffers =
      std::count_if(graph.values.begin(), graph.values.end(),
                    [](const compiler::Value& value) { return value.inside == kNone; });
  size_t longest = 0;
  for (const compiler::Sequence& sequence : graph.sequences) {
    longest = std::max(longest, sequence.nodes.size());
  }
  return CheckStepLength(buffers, static_cast<int64_t>(longest));
}

absl::Status CheckComplete(const v1::Layout& layout) {
  if (layout.data_parallel() < 1 || layout.micro_batch() < 1 || layout.micro_batches() < 1 ||
      layout.bucket_bytes() < 1 || layout.threads_per_rank() < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout is incomplete: dp ", layout.data_parallel(), ", micro_batch ", layout.micro_batch(),
        ", micro_batches ", layout.micro_batches(), ", bucket_bytes ", layout.bucket_bytes(),
        ", threads_per_rank ", layout.threads_per_rank(), "; each must be at least 1"));
  }
  return absl::OkStatus();
}

// Values with the cosines and sines of those rotary angles that some layer of `chunks` has.
compiler::RopeTables AddRopeTables(const ModelConfig& config,
                                   const std::vector<compiler::ChunkRange>& chunks,
                                   int64_t positions, Graph* graph) {
  const auto add = [&](const char* name, const RopeConfig& rope) {
    const bool here = std::any_of(chunks.begin(), chunks.end(), [&](const auto& chunk) {
      for (int layer = chunk.begin; layer < chunk.end; ++layer) {
        if (RopeOf(config, layer) == &rope) return true;
      }
      return false;
    });
    if (!here) return kNone;
    return graph->Add({.name = name,
                       .cls = v1::PARAMETER,
                       .shape = {positions, rope.rotated()},
                       .lifetime = v1::PERSISTENT});
  };
  return {.rope = add("rope", config.rope), .local = add("rope.local", config.local_rope)};
}

// Reads a word of train.schedule.name or train.schedule.decay.
v1::StepRules::Schedule ScheduleOf(const std::string& name) {
  v1::StepRules::Schedule schedule = v1::StepRules::CONSTANT;
  v1::StepRules::Schedule_Parse(absl::AsciiStrToUpper(name), &schedule);
  return schedule;
}

void SetSchedule(const v1::TrainSpec& train, v1::StepRules* rules) {
  const v1::ScheduleSpec& schedule = train.schedule();
  rules->set_schedule(ScheduleOf(schedule.name()));
  rules->set_warmup_steps(schedule.warmup_steps());
  rules->set_initial_learning_rate(schedule.initial_lr());
  rules->set_min_learning_rate(schedule.min_lr());
  if (schedule.name() == "wsd") {
    const int64_t tenth = std::max<int64_t>(1, train.steps() / 10);
    rules->set_decay_steps(schedule.decay_steps() > 0 ? schedule.decay_steps() : tenth);
    rules->set_decay(ScheduleOf(schedule.decay()));
  }
  if (schedule.name() == "polynomial") rules->set_power(schedule.power());
  if (schedule.name() == "cosine_restarts") rules->set_cycles(schedule.cycles());
}

v1::LossScaleRules LossScaleRulesOf(const v1::JobSpec& spec) {
  const v1::LossScaleSpec& scale = spec.train().loss_scale();
  v1::LossScaleRules rules;
  rules.set_tokens(spec.data().sequence_length());
  rules.set_initial(scale.fixed() > 0 ? scale.fixed() : scale.initial());
  if (scale.fixed() > 0) return rules;
  rules.set_window(scale.window());
  rules.set_hysteresis(scale.hysteresis());
  rules.set_min(scale.min());
  return rules;
}

void SetRules(const CompileInput& input, const v1::Layout& layout, v1::StepRules* rules) {
  const v1::TrainSpec& train = input.spec->train();
  const int64_t sequence = input.spec->data().sequence_length();
  const int64_t rank_tokens = sequence * layout.micro_batch() * layout.micro_batches();
  rules->set_steps(train.steps());
  rules->set_learning_rate(train.optimizer().lr());
  SetSchedule(train, rules);
  rules->set_beta1(train.optimizer().beta1());
  rules->set_beta2(train.optimizer().beta2());
  rules->set_optimizer(EncodeRule(OptimizerOf(layout).rule));
  if (rules->optimizer() == v1::ADAFACTOR) {
    rules->set_beta2_decay(train.optimizer().beta2_decay());
    rules->set_relative_step(train.optimizer().relative_step());
  }
  rules->set_micro_batches(layout.micro_batches());
  rules->set_micro_batch(layout.micro_batch());
  rules->set_sequence_length(sequence);
  rules->set_data_parallel(layout.data_parallel());
  rules->set_tokens_per_step(rank_tokens * layout.data_parallel());
  rules->set_vocabulary(input.model->config.vocabulary);
  const v1::Grid grid = GridOf(layout);
  const double sharers =
      AxisSize(grid, v1::TENSOR) * AxisSize(grid, v1::CONTEXT) * AxisSize(grid, v1::PIPELINE);
  rules->set_flops_per_step(StepFlopsPerToken(train, *input.model, sequence) *
                            static_cast<double>(rank_tokens) / sharers);
  rules->set_context_zigzag(AxisSize(grid, v1::CONTEXT) > 1 && layout.context_type() != "ulysses");
  if (MomentFormat(layout).block > 0)
    rules->set_moment_block(MomentBlock(layout, input.model->config));
  rules->set_pairs(train.has_preference());
  if (train.early_stop().evaluations() > 0) *rules->mutable_early_stop() = train.early_stop();
  if (layout.precision() == "fp16") *rules->mutable_loss_scale() = LossScaleRulesOf(*input.spec);
}

kernels::UpdateAttrs UpdateBy(const kernels::OptimizerRow& rule,
                              const v1::OptimizerSpec& optimizer) {
  const bool betas = rule.reads_betas || rule.factored;
  kernels::UpdateAttrs update = {
      .rule = rule.rule,
      .beta1 = static_cast<float>(betas ? optimizer.beta1() : optimizer.momentum()),
      .beta2 = static_cast<float>(optimizer.beta2()),
      .epsilon = static_cast<float>(optimizer.epsilon())};
  if (!rule.factored) return update;
  update.clip_threshold = static_cast<float>(optimizer.clip_threshold());
  if (optimizer.scale_parameter()) update.least_scale = static_cast<float>(optimizer.least_scale());
  if (rule.rule != kernels::OptimizerRule::kCame) return update;
  update.beta3 = static_cast<float>(optimizer.beta3());
  update.error_epsilon = static_cast<float>(optimizer.error_epsilon());
  return update;
}

// Muon divides no matrix by a norm below this, and torch.optim.Muon has the same.
constexpr float kLeastNorm = 1e-7f;

// bf16 is what Muon's authors iterate in; f16 has too small a range for the polynomial.
kernels::MatmulPrecision IterationPrecision(const v1::Layout& layout) {
  if (layout.precision() == "fp32") return kernels::MatmulPrecision::kF32;
  return layout.precision() == "tf32" ? kernels::MatmulPrecision::kTF32
                                      : kernels::MatmulPrecision::kBF16;
}

compiler::TrainOptions TrainOptionsOf(const CompileInput& input, const v1::Layout& layout,
                                      const ForwardOptions& forward,
                                      std::vector<compiler::Pass> schedule, int micro_batches) {
  const v1::TrainSpec& train = input.spec->train();
  const v1::OptimizerSpec& optimizer = train.optimizer();
  compiler::TrainOptions options = {.forward = forward,
                                    .schedule = std::move(schedule),
                                    .micro_batches = micro_batches,
                                    .bucket_bytes = layout.bucket_bytes(),
                                    .clip_grad_norm = static_cast<float>(train.clip_grad_norm())};
  options.name = TrainName(forward.sequence, input.spec->data().sequence_length());
  options.forward.for_backward = true;
  options.forward.terms = {.label_smoothing = static_cast<float>(train.label_smoothing()),
                           .z_loss = static_cast<float>(train.z_loss())};
  options.scales_loss = layout.precision() == "fp16";
  options.updates_at_once = UpdatesAtOnce(layout, train.clip_grad_norm());
  const kernels::OptimizerRow& rule = OptimizerOf(layout);
  const kernels::OptimizerRow& of_elements =
      rule.whole_matrix ? kernels::RowOf(kernels::OptimizerRule::kAdamw) : rule;
  options.update = UpdateBy(of_elements, optimizer);
  options.update.rounding.seed = static_cast<uint64_t>(train.seed());
  if (!rule.whole_matrix) return options;
  options.matrix_update = UpdateBy(rule, optimizer);
  options.matrix_update.epsilon = kLeastNorm;
  options.matrix_update.iterations = optimizer.ns_steps();
  options.matrix_update.precision = IterationPrecision(layout);
  options.steps_as_adamw = optimizer.adjust_lr() != "original";
  return options;
}

// The passes that every program takes once its sequences are built.
absl::Status Finish(compiler::EmitInput input, PagePolicy pages, Graph* graph,
                    v1::Program* program) {
  compiler::AddWorkspaces(static_cast<int>(program->threads()), graph, program->device());
  RETURN_IF_ERROR(CheckSize(*graph));
  compiler::AssignStreams(graph);
  input.graph = graph;
  RETURN_IF_ERROR(compiler::Emit(input, program));
  if (input.roll.micro_batches > 0) RETURN_IF_ERROR(compiler::Roll(input.roll, program));
  return PlaceBuffers(program, pages);
}

// Where every step buffer gets its memory from an allocator there is nothing to page. A GPU takes
// pages only where it must: a collective cannot register an arena that is mapped twice.
PagePolicy PagesOf(const v1::JobSpec& spec, const v1::Layout& layout) {
  const std::string& packing = spec.layout().packing();
  const bool planned = layout.allocator().empty() || layout.allocator() == "planned";
  if (!planned || packing == "contiguous") return PagePolicy::kNever;
  return packing == "pages" || layout.device() != "cuda" ? PagePolicy::kWhereLoose
                                                         : PagePolicy::kToFit;
}

// The longest first: "train" is that of every job.
std::vector<int64_t> TrainLengths(const v1::DataSpec& data) {
  std::vector<int64_t> lengths = {data.sequence_length()};
  for (const int64_t length : data.buckets()) {
    if (length < data.sequence_length()) lengths.push_back(length);
  }
  return lengths;
}

// What all stages of a job have in common.
struct Job {
  const CompileInput& input;
  const v1::Layout& layout;  // complete
  ForwardOptions forward;
  compiler::ScheduleShape shape;
  std::vector<std::vector<compiler::Pass>> schedule;  // by stage
  std::atomic<int64_t>* nodes_left = nullptr;         // of TrainOptions
  compiler::RollShape roll = {};                      // of EmitInput
};

compiler::ParametersOptions ParametersOf(const Job& job) {
  const v1::Layout& layout = job.layout;
  const bool short_gradients = layout.gradient_format() == "bf16";
  // The rule is the layout's, which says momentum by its name.
  v1::OptimizerSpec optimizer = job.input.spec->train().optimizer();
  optimizer.set_name(std::string(OptimizerOf(layout).name));
  optimizer.clear_momentum();
  return {.optimizer = optimizer,
          .persistent_elements = std::max<int64_t>(0, layout.persistent_parameters()),
          .offload = layout.offload(),
          .tile_bytes = layout.tile_bytes(),
          .matrices = layout.stochastic_rounding() ? kernels::DType::kBF16 : kernels::DType::kF32,
          .precisions = job.forward.precisions,
          .round = RoundsWeights(layout),
          .gradients = short_gradients ? kernels::DType::kBF16 : kernels::DType::kF32,
          .moments = MomentFormat(layout).elements,
          .gathers = GatherFormat(layout),
          .residuals = ResidualType(layout),
          .moment_block = MomentBlock(layout, job.input.model->config),
          .frozen = FrozenFormat(layout),
          .frozen_block = FrozenBlock(layout, job.input.model->config)};
}

absl::StatusOr<v1::Program> CompileStage(const Job& job, int stage) {
  const CompileInput& input = job.input;
  const Model& model = *input.model;
  v1::Program program;
  program.set_job(input.spec->name());
  program.set_stage(stage);
  program.set_stages(job.shape.stages);
  *program.mutable_grid() = GridOf(job.layout);
  program.set_ranks(static_cast<uint32_t>(RanksOf(program.grid())));
  program.set_threads(job.layout.threads_per_rank());
  program.set_device(job.layout.device());
  program.set_external_bytes(input.external_bytes);
  program.set_device_limit_bytes(input.device_limit_bytes);
  SetRules(input, job.layout, program.mutable_rules());

  Graph graph;
  const compiler::Parallel parallel = compiler::AddGroups(job.layout, model.config, &graph);
  const std::vector<compiler::ChunkRange> chunks =
      compiler::SplitLayers(job.layout, static_cast<int>(model.config.layers));
  std::vector<compiler::ChunkRange> own;
  for (int chunk = 0; chunk < job.shape.chunks; ++chunk) {
    own.push_back(chunks[compiler::ModelChunk(job.shape, stage, chunk)]);
  }
  const Parameters parameters(model, own, parallel, ParametersOf(job), &graph);
  ForwardOptions forward = job.forward;
  forward.rope_tables = AddRopeTables(model.config, own, forward.sequence, &graph);
  const compiler::StageContext context = {
      .model = model,
      .layout = job.layout,
      .parallel = parallel,
      .parameters = parameters,
      .shape = job.shape,
      .stage = stage,
      .chunks = chunks,
      .first_trained = compiler::FirstTrained(model, input.spec->train().optimizer(), chunks),
      .first_trained_layer =
          static_cast<int>(FirstTrainedLayer(input.spec->train().optimizer(), model)),
      .retire = compiler::SendsRetire(job.shape, stage, job.schedule[stage])};
  for (const int64_t length : TrainLengths(input.spec->data())) {
    forward.sequence = length;
    compiler::TrainOptions options =
        TrainOptionsOf(input, job.layout, forward, job.schedule[stage], job.shape.micro_batches);
    options.nodes_left = job.nodes_left;
    RETURN_IF_ERROR(compiler::AppendTrain(context, options, &graph));
  }
  forward.sequence = job.forward.sequence;
  compiler::AppendEval(context, forward, &graph);
  compiler::AppendRestore(context, &graph);
  RETURN_IF_ERROR(Finish({.model = &model,
                          .parameters = &parameters,
                          .rope_tables = forward.rope_tables,
                          .roll = job.roll},
                         PagesOf(*input.spec, job.layout), &graph, &program));
  if (const std::string& allocator = job.layout.allocator();
      !allocator.empty() && allocator != "planned") {
    MakeDynamic(allocator, &program);
  }
  return program;
}

// Stages are compiled side by side: they share nothing.
absl::StatusOr<std::vector<v1::Program>> CompileStages(const Job& job) {
  std::vector<absl::StatusOr<v1::Program>> results(job.shape.stages,
                                                   absl::InternalError("not compiled"));
  SideBySide(results.size(),
             [&](size_t stage) { results[stage] = CompileStage(job, static_cast<int>(stage)); });
  std::vector<v1::Program> programs;
  for (absl::StatusOr<v1::Program>& result : results) {
    RETURN_IF_ERROR(result.status());
    programs.push_back(*std::move(result));
  }
  return programs;
}

absl::StatusOr<std::vector<v1::Program>> CompileSteps(const CompileInput& input, Job* job) {
  ASSIGN_OR_RETURN(job->schedule, compiler::MakeSchedule(job->shape));
  std::atomic<int64_t> nodes_left = input.instructions_max;
  if (input.instructions_max > 0) job->nodes_left = &nodes_left;
  return CompileStages(*job);
}

}  // namespace

absl::Status CheckStepLength(int64_t buffers, int64_t instructions) {
  RETURN_IF_ERROR(CheckCount(buffers, kMaxBuffers, "buffers"));
  return CheckCount(instructions, kMaxInstructions, "instructions");
}

absl::StatusOr<std::vector<v1::Program>> Compile(const CompileInput& input) {
  const v1::Layout layout = Completed(input.layout);
  const Model& model = *input.model;
  RETURN_IF_ERROR(CheckComplete(layout));
  RETURN_IF_ERROR(CheckLayout(layout, model, *input.spec));
  const int64_t shown = input.straight ? layout.micro_batches() : CompiledMicroBatches(layout);
  RETURN_IF_ERROR(CheckLayerPasses(layout, model.config.layers, shown));
  Job job = {.input = input,
             .layout = layout,
             .forward = {.batch = layout.micro_batch(),
                         .sequence = input.spec->data().sequence_length(),
                         .chunk_bytes = layout.chunk_bytes(),
                         .dropout_seed = static_cast<uint64_t>(input.spec->train().seed()),
                         .documents = input.spec->data().samples() == "packed"},
             .shape = compiler::ShapeOf(layout)};
  ASSIGN_OR_RETURN(job.forward.precisions, compiler::PrecisionsOf(layout));
  if (const v1::TrainSpec& train = input.spec->train(); train.has_preference()) {
    job.forward.preference = kernels::PreferenceAttrs{
        .beta = static_cast<float>(train.preference().beta()),
        .label_smoothing = static_cast<float>(train.preference().label_smoothing())};
  }
  if (shown < layout.micro_batches()) {
    for (const compiler::RollShape& roll : compiler::RollShapes(layout)) {
      Job rolled = job;
      rolled.roll = roll;
      rolled.shape.micro_batches = static_cast<int>(rolled.roll.micro_batches);
      absl::StatusOr<std::vector<v1::Program>> programs = CompileSteps(input, &rolled);
      if (!absl::IsFailedPrecondition(programs.status())) return programs;
    }
    RETURN_IF_ERROR(CheckLayerPasses(layout, model.config.layers, layout.micro_batches()));
  }
  return CompileSteps(input, &job);
}

namespace {

using AppendSequences =
    absl::FunctionRef<void(const compiler::StageContext&, const ForwardOptions&, Graph*)>;

// A program of one rank that has weights and no optimizer. `append` adds its sequences.
absl::StatusOr<v1::Program> CompileForward(const InferInput& input, AppendSequences append) {
  const Model& model = *input.model;
  ForwardOptions forward = {.batch = input.batch, .sequence = input.sequence_length};
  ASSIGN_OR_RETURN(forward.precisions, compiler::PrecisionsOf(input.precisions));

  v1::Program program;
  program.set_job(input.job);
  program.set_stages(1);
  program.set_ranks(1);
  program.set_threads(input.threads);
  program.mutable_rules()->set_micro_batch(static_cast<uint32_t>(input.batch));
  program.mutable_rules()->set_micro_batches(1);
  program.mutable_rules()->set_data_parallel(1);
  program.mutable_rules()->set_sequence_length(input.sequence_length);
  program.mutable_rules()->set_vocabulary(model.config.vocabulary);

  Graph graph;
  const v1::Layout layout;
  const compiler::Parallel parallel = compiler::AddGroups(layout, model.config, &graph);
  const std::vector<compiler::ChunkRange> all = {
      {.begin = 0, .end = static_cast<int>(model.config.layers), .first = true, .last = true}};
  // No update needs more bits of a weight than passes read.
  const Parameters parameters(
      model, all, parallel,
      {.with_optimizer = false, .precisions = forward.precisions, .round = true}, &graph);
  forward.rope_tables = AddRopeTables(model.config, all, forward.sequence, &graph);
  append({.model = model,
          .layout = layout,
          .parallel = parallel,
          .parameters = parameters,
          .shape = {},
          .chunks = all},
         forward, &graph);
  RETURN_IF_ERROR(
      Finish({.model = &model, .parameters = &parameters, .rope_tables = forward.rope_tables},
             PagePolicy::kNever, &graph, &program));
  return program;
}

}  // namespace

absl::StatusOr<v1::Program> CompileGenerate(const InferInput& input, GenerateShape shape) {
  InferInput longest = input;
  longest.sequence_length = shape.max_length;
  shape.prefill_tokens = std::min(shape.prefill_tokens, shape.max_length);
  shape.score_tokens = std::min(shape.score_tokens, shape.max_length);
  return CompileForward(
      longest, [&](const compiler::StageContext& context, const ForwardOptions& options,
                   Graph* graph) { compiler::AppendGenerate(context, options, shape, graph); });
}

absl::StatusOr<v1::Program> CompileEval(const InferInput& input) {
  return CompileForward(input, compiler::AppendEval);
}

}  // namespace terrace
