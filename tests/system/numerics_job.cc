// SPDX-License-Identifier: Apache-2.0
#include "tests/system/numerics_job.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "nlohmann/json.hpp"
#include "proto/check/program_check.h"
#include "proto/program/state_layout.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/rank/program_memory.h"
#include "worker/train/initial_state.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

template <typename T>
std::vector<T> Values(const StoredTensor& tensor) {
  const std::vector<std::byte> data = tensor.ReadAll().value();
  std::vector<T> values(data.size() / sizeof(T));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

void ReadHyperparameters(const nlohmann::json& expected, v1::TrainSpec* train) {
  const auto& h = expected["hyperparameters"];
  train->set_steps(h["steps"]);
  train->set_clip_grad_norm(h["clip_grad_norm"]);
  train->mutable_optimizer()->set_name("adamw");
  train->mutable_optimizer()->set_lr(h["lr"]);
  train->mutable_optimizer()->set_beta1(h["beta1"]);
  train->mutable_optimizer()->set_beta2(h["beta2"]);
  train->mutable_optimizer()->set_epsilon(h["epsilon"]);
  train->mutable_optimizer()->set_weight_decay(h["weight_decay"]);
  train->mutable_schedule()->set_name("cosine");
  train->mutable_schedule()->set_warmup_steps(h["warmup_steps"]);
  train->mutable_schedule()->set_min_lr(h["min_lr"]);
}

// A program that generates is for one rank that holds whole tensors.
void LoadWeights(const v1::Program& program, std::span<std::byte* const> arenas,
                 const Tensors& weights) {
  for (const v1::StateRange& range : program.state()) {
    const v1::Buffer& buffer = program.buffers(range.buffer());
    for (const StateRun& run : RunsOf(range, program.grid(), {})) {
      std::memcpy(arenas[buffer.arena()] + buffer.offset() + run.offset,
                  weights.at(range.tensor()).data() + run.begin, run.elements * sizeof(float));
    }
  }
}

// Feeds the tokens [position, position + count) of every text, and keeps the logits behind them.
class NewTokensIo final : public SequenceIo {
 public:
  NewTokensIo(const Golden& golden, int64_t position, int64_t count)
      : golden_(golden), position_(position), count_(count) {}
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4>) override {}
  void LoadPrompt(const PromptTarget& to) override {
    const int64_t room = static_cast<int64_t>(to.tokens.size()) / golden_.rows;
    for (int64_t row = 0; row < golden_.rows; ++row) {
      for (int64_t i = 0; i < room; ++i) {
        const bool is_new = i < count_;
        to.tokens[row * room + i] =
            is_new ? golden_.tokens[row * golden_.length + position_ + i] : 0;
        to.positions[row * room + i] = static_cast<int32_t>(is_new ? position_ + i : 0);
      }
      to.spans[2 * row] = static_cast<int32_t>(position_);
      to.spans[2 * row + 1] = static_cast<int32_t>(count_);
      to.index[row] = static_cast<int32_t>(row * room + count_ - 1);
    }
  }
  void Output(v1::OutputKind, std::span<const float> values) override {
    logits.assign(values.begin(), values.end());
  }

  std::vector<float> logits;  // [rows,V]

 private:
  const Golden& golden_;
  const int64_t position_, count_;
};

}  // namespace

absl::StatusOr<Golden> ReadGolden(const std::string& folder) {
  Golden golden;
  ASSIGN_OR_RETURN(const auto batch, SafetensorsReader::Open(folder + "/batch.safetensors"));
  ASSIGN_OR_RETURN(const StoredTensor tokens, batch->Get("tokens"));
  ASSIGN_OR_RETURN(const StoredTensor targets, batch->Get("targets"));
  golden.rows = tokens.shape[0];
  golden.length = tokens.shape[1];
  golden.tokens = Values<int32_t>(tokens);
  golden.targets = Values<int32_t>(targets);
  ASSIGN_OR_RETURN(const ModelConfig config,
                   ParseModelConfig(ReadText(folder + "/config.json"), golden.length));
  golden.model = BuildModel(config);
  ASSIGN_OR_RETURN(const auto weights, SafetensorsReader::Open(folder + "/model.safetensors"));
  ASSIGN_OR_RETURN(const auto expected, SafetensorsReader::Open(folder + "/expected.safetensors"));
  ASSIGN_OR_RETURN(const StoredTensor logits, expected->Get("logits"));
  golden.logits = Values<float>(logits);
  for (const Tensor& tensor : golden.model.tensors) {
    ASSIGN_OR_RETURN(const StoredTensor weight, weights->Get(tensor.name));
    ASSIGN_OR_RETURN(const StoredTensor gradient, expected->Get("grad." + tensor.name));
    ASSIGN_OR_RETURN(const StoredTensor step10, expected->Get("step10." + tensor.name));
    golden.weights[tensor.name] = Values<float>(weight);
    golden.gradients[tensor.name] = Values<float>(gradient);
    golden.step10[tensor.name] = Values<float>(step10);
  }
  const auto json = nlohmann::json::parse(ReadText(folder + "/expected.json"));
  golden.loss = json["loss"];
  golden.losses = json["losses"].get<std::vector<double>>();
  golden.grad_norms = json["grad_norms"].get<std::vector<double>>();
  const auto& padded = json["padded"];
  golden.padded_counts = padded["counts"].get<std::vector<int64_t>>();
  golden.padded_losses = padded["losses"].get<std::vector<double>>();
  golden.padded_grad_norms = padded["grad_norms"].get<std::vector<double>>();
  const auto& half = json["half"];
  golden.half_scale = half["initial_scale"];
  golden.half_losses = half["losses"].get<std::vector<double>>();
  golden.half_grad_norms = half["grad_norms"].get<std::vector<double>>();
  ReadHyperparameters(json, &golden.train);
  return golden;
}

v1::Layout LayoutOf(const JobShape& shape) {
  v1::Layout layout;
  layout.set_data_parallel(shape.ranks);
  layout.set_tensor_parallel(1);
  layout.set_pipeline_parallel(1);
  layout.set_context_parallel(1);
  layout.set_micro_batch(shape.micro_batch);
  layout.set_micro_batches(shape.micro_batches);
  layout.set_bucket_bytes(shape.bucket_bytes);
  layout.set_recompute("none");
  layout.set_precision(shape.precision);
  layout.set_ranks(shape.ranks);
  layout.set_nodes(1);
  layout.set_threads_per_rank(shape.threads);
  return layout;
}

absl::StatusOr<std::unique_ptr<Generating>> OpenToGenerate(const Golden& golden, int64_t texts,
                                                           const GenerateShape& shape,
                                                           const std::string& precision) {
  InferInput input = {.model = &golden.model, .job = "numerics", .batch = texts, .threads = 2};
  input.precisions.set_precision(precision);
  auto open = std::make_unique<Generating>();
  ASSIGN_OR_RETURN(open->program, CompileGenerate(input, shape));
  RETURN_IF_ERROR(CheckProgram(open->program));
  ASSIGN_OR_RETURN(open->memory, ProgramMemory::Reserve(open->program, 1));
  ASSIGN_OR_RETURN(open->vm,
                   Vm::Create(open->program, {.threads = 2, .arenas = open->memory->arenas()},
                              &open->clock, nullptr));
  RETURN_IF_ERROR(FillInitialState(open->program, open->memory->regions(), 1));
  LoadWeights(open->program, open->memory->arenas(), golden.weights);
  return open;
}

absl::StatusOr<std::vector<float>> InferInProcess(const Golden& golden,
                                                  const std::string& precision) {
  constexpr int64_t kAtOnce = 5;  // more than are computed one by one
  const GenerateShape shape = {.max_length = golden.length, .prefill_tokens = kAtOnce};
  ASSIGN_OR_RETURN(const auto open, OpenToGenerate(golden, golden.rows, shape, precision));
  const int64_t vocabulary = golden.model.config.vocabulary;
  std::vector<float> logits(golden.rows * golden.length * vocabulary);
  // Begins with tokens [0, end) in pieces, or goes on with the last of them.
  const auto run = [&](int64_t end, bool begin) -> absl::Status {
    for (int64_t position = begin ? 0 : end - 1; position < end; position += kAtOnce) {
      NewTokensIo io(golden, position, std::min(kAtOnce, end - position));
      RETURN_IF_ERROR(open->vm->Run(begin ? "prefill" : "decode", &io));
      for (int64_t row = 0; position + kAtOnce >= end && row < golden.rows; ++row) {
        std::copy_n(io.logits.begin() + row * vocabulary, vocabulary,
                    logits.begin() + (row * golden.length + end - 1) * vocabulary);
      }
    }
    return absl::OkStatus();
  };
  const int64_t half = golden.length / 2;
  for (int64_t end = 1; end <= golden.length; ++end) RETURN_IF_ERROR(run(end, end <= half));
  return logits;
}

}  // namespace terrace
