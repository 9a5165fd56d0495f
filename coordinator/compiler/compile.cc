// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/compile.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/emit.h"
#include "coordinator/compiler/graph.h"
#include "coordinator/compiler/parameters.h"
#include "coordinator/compiler/place.h"
#include "coordinator/compiler/step.h"
#include "coordinator/compiler/streams.h"
#include "coordinator/compiler/workspace.h"

namespace terrace {
namespace {

using compiler::ForwardOptions;
using compiler::Graph;
using compiler::kNone;
using compiler::Parameters;

absl::Status Unsupported(const char* key, uint32_t got, uint32_t supported) {
  return absl::InvalidArgumentError(absl::StrCat("layout.", key, ": got ", got,
                                                 ", this version compiles ", supported,
                                                 " only; leave the key out"));
}

// "train" is unrolled; beyond this a program is too long to stream and to check.
constexpr int64_t kMaxLayerPasses = 32'768;

absl::Status CheckLength(const v1::Layout& layout, int64_t layers) {
  const int64_t passes = layers * layout.micro_batches();
  if (passes <= kMaxLayerPasses) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layout: ", layout.micro_batches(), " micro-batches of ", layers, " layers are ",
                   passes, " layer passes in one step, must be at most ", kMaxLayerPasses,
                   "; raise layout.micro_batch or layout.dp, or lower train.global_batch"));
}

absl::Status CheckLayout(const v1::Layout& layout) {
  const auto [tp, pp, cp, zero] = std::tuple(layout.tensor_parallel(), layout.pipeline_parallel(),
                                             layout.context_parallel(), layout.zero_stage());
  if (tp > 1) return Unsupported("tp", tp, 1);
  if (pp > 1) return Unsupported("pp", pp, 1);
  if (cp > 1) return Unsupported("cp", cp, 1);
  if (zero > 0) return Unsupported("zero", zero, 0);
  if (!layout.recompute().empty() && layout.recompute() != "none") {
    return absl::InvalidArgumentError(absl::StrCat("layout.recompute: got '", layout.recompute(),
                                                   "', this version compiles 'none' only; leave "
                                                   "the key out"));
  }
  if (layout.data_parallel() < 1 || layout.micro_batch() < 1 || layout.micro_batches() < 1 ||
      layout.bucket_bytes() < 1 || layout.threads_per_rank() < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout is incomplete: dp ", layout.data_parallel(), ", micro_batch ", layout.micro_batch(),
        ", micro_batches ", layout.micro_batches(), ", bucket_bytes ", layout.bucket_bytes(),
        ", threads_per_rank ", layout.threads_per_rank(), "; each must be at least 1"));
  }
  return absl::OkStatus();
}

absl::Status SetPrecision(const std::string& precision, ForwardOptions* options) {
  if (precision == "fp32") {
    options->activation = kernels::DType::kF32;
    options->precision = kernels::MatmulPrecision::kF32;
    return absl::OkStatus();
  }
  if (precision == "bf16") {
    options->activation = kernels::DType::kBF16;
    options->precision = kernels::MatmulPrecision::kBF16;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("train.precision: got '", precision,
                                                 "', this version compiles 'fp32' and 'bf16'"));
}

// The value with the cosines and sines of the rotary angles; kNone when the model has none.
int AddRopeTable(const ModelConfig& config, int64_t positions, Graph* graph) {
  if (config.rope.inverse_frequency.empty()) return kNone;
  return graph->Add({.name = "rope",
                     .cls = v1::PARAMETER,
                     .shape = {positions, config.head_dim},
                     .lifetime = v1::PERSISTENT});
}

// The group of all data-parallel ranks; kNone when there is only one.
int AddDataParallelGroup(uint32_t ranks, Graph* graph) {
  if (ranks == 1) return kNone;
  v1::Group group;
  group.set_name("data_parallel");
  v1::Group::Ranks* instance = group.add_instances();
  for (uint32_t rank = 0; rank < ranks; ++rank) instance->add_rank(rank);
  graph->groups.push_back(std::move(group));
  return static_cast<int>(graph->groups.size()) - 1;
}

v1::StepRules::Schedule ScheduleOf(const std::string& name) {
  if (name == "linear") return v1::StepRules::LINEAR;
  return name == "cosine" ? v1::StepRules::COSINE : v1::StepRules::CONSTANT;
}

void SetRules(const CompileInput& input, v1::StepRules* rules) {
  const v1::TrainSpec& train = input.spec->train();
  const v1::Layout& layout = input.layout;
  const int64_t sequence = input.spec->data().sequence_length();
  const int64_t rank_tokens = sequence * layout.micro_batch() * layout.micro_batches();
  rules->set_steps(train.steps());
  rules->set_learning_rate(train.optimizer().lr());
  rules->set_min_learning_rate(train.schedule().min_lr());
  rules->set_warmup_steps(train.schedule().warmup_steps());
  rules->set_schedule(ScheduleOf(train.schedule().name()));
  rules->set_beta1(train.optimizer().beta1());
  rules->set_beta2(train.optimizer().beta2());
  rules->set_micro_batches(layout.micro_batches());
  rules->set_micro_batch(layout.micro_batch());
  rules->set_sequence_length(sequence);
  rules->set_data_parallel(layout.data_parallel());
  rules->set_tokens_per_step(rank_tokens * layout.data_parallel());
  rules->set_vocabulary(input.model->config.vocabulary);
  rules->set_flops_per_step(FlopsPerToken(*input.model, sequence) *
                            static_cast<double>(rank_tokens));
}

compiler::TrainOptions TrainOptionsOf(const CompileInput& input, const ForwardOptions& forward,
                                      int group) {
  const v1::TrainSpec& train = input.spec->train();
  const v1::OptimizerSpec& optimizer = train.optimizer();
  compiler::TrainOptions options = {.forward = forward,
                                    .micro_batches = static_cast<int>(input.layout.micro_batches()),
                                    .bucket_bytes = input.layout.bucket_bytes(),
                                    .group = group,
                                    .clip_grad_norm = static_cast<float>(train.clip_grad_norm())};
  options.forward.for_backward = true;
  options.adamw = {.beta1 = static_cast<float>(optimizer.beta1()),
                   .beta2 = static_cast<float>(optimizer.beta2()),
                   .epsilon = static_cast<float>(optimizer.epsilon()),
                   .weight_decay = static_cast<float>(optimizer.weight_decay())};
  return options;
}

// The passes that every program takes once its sequences are built.
absl::Status Finish(const Model& model, const Parameters& parameters, int rope_table, Graph* graph,
                    v1::Program* program) {
  compiler::AddWorkspaces(static_cast<int>(program->threads()), graph);
  compiler::AssignStreams(graph);
  RETURN_IF_ERROR(compiler::Emit(
      {.graph = graph, .model = &model, .parameters = &parameters, .rope_table = rope_table},
      program));
  return PlaceBuffers(program);
}

}  // namespace

absl::StatusOr<std::vector<v1::Program>> Compile(const CompileInput& input) {
  const v1::Layout& layout = input.layout;
  const Model& model = *input.model;
  RETURN_IF_ERROR(CheckLayout(layout));
  RETURN_IF_ERROR(CheckLength(layout, model.config.layers));
  ForwardOptions forward = {.batch = layout.micro_batch(),
                            .sequence = input.spec->data().sequence_length()};
  RETURN_IF_ERROR(SetPrecision(layout.precision(), &forward));

  v1::Program program;
  program.set_job(input.spec->name());
  program.set_stages(1);
  program.set_ranks(layout.data_parallel());
  program.set_threads(layout.threads_per_rank());
  program.set_external_bytes(input.external_bytes);
  program.set_device_limit_bytes(input.device_limit_bytes);
  SetRules(input, program.mutable_rules());

  Graph graph;
  const Parameters parameters(model, /*with_optimizer=*/true, &graph);
  forward.rope_table = AddRopeTable(model.config, forward.sequence, &graph);
  const int group = AddDataParallelGroup(layout.data_parallel(), &graph);
  RETURN_IF_ERROR(
      compiler::AppendTrain(model, parameters, TrainOptionsOf(input, forward, group), &graph));
  compiler::AppendEval(model, parameters, forward, group, &graph);
  RETURN_IF_ERROR(Finish(model, parameters, forward.rope_table, &graph, &program));
  return std::vector<v1::Program>{std::move(program)};
}

absl::StatusOr<v1::Program> CompileInfer(const InferInput& input) {
  const Model& model = *input.model;
  ForwardOptions forward = {.batch = 1, .sequence = input.sequence_length};
  RETURN_IF_ERROR(SetPrecision(input.precision, &forward));

  v1::Program program;
  program.set_job(input.job);
  program.set_stages(1);
  program.set_ranks(1);
  program.set_threads(input.threads);
  program.mutable_rules()->set_micro_batch(1);
  program.mutable_rules()->set_sequence_length(input.sequence_length);
  program.mutable_rules()->set_vocabulary(model.config.vocabulary);

  Graph graph;
  const Parameters parameters(model, /*with_optimizer=*/false, &graph);
  forward.rope_table = AddRopeTable(model.config, forward.sequence, &graph);
  compiler::AppendInfer(model, parameters, forward, &graph);
  RETURN_IF_ERROR(Finish(model, parameters, forward.rope_table, &graph, &program));
  return program;
}

}  // namespace terrace
