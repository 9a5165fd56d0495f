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

// The infer program is for one rank that holds whole tensors.
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

// Keeps the logits of the position asked for.
class PositionIo final : public SequenceIo {
 public:
  PositionIo(std::span<const int32_t> row, int32_t position) : row_(row), position_(position) {}
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4>) override {}
  void LoadPrompt(std::span<int32_t> tokens, std::span<int32_t> index) override {
    std::copy(row_.begin(), row_.end(), tokens.begin());
    index[0] = position_;
  }
  void Output(v1::OutputKind, std::span<const float> values) override {
    logits.assign(values.begin(), values.end());
  }

  std::vector<float> logits;

 private:
  const std::span<const int32_t> row_;
  const int32_t position_;
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

absl::StatusOr<std::vector<float>> InferInProcess(const Golden& golden,
                                                  const std::string& precision) {
  InferInput input = {
      .model = &golden.model, .job = "numerics", .sequence_length = golden.length, .threads = 2};
  input.precisions.set_precision(precision);
  ASSIGN_OR_RETURN(const v1::Program program, CompileInfer(input));
  RETURN_IF_ERROR(CheckProgram(program));
  ASSIGN_OR_RETURN(const ProgramMemory memory, ProgramMemory::Reserve(program, 1));
  const SystemClock clock;
  ASSIGN_OR_RETURN(const auto vm,
                   Vm::Create(program, {.threads = 2, .arenas = memory.arenas()}, &clock, nullptr));
  RETURN_IF_ERROR(FillInitialState(program, memory.regions(), 1));
  LoadWeights(program, memory.arenas(), golden.weights);
  std::vector<float> logits;
  for (int64_t row = 0; row < golden.rows; ++row) {
    const std::span<const int32_t> tokens(golden.tokens.data() + row * golden.length,
                                          golden.length);
    for (int32_t position = 0; position < golden.length; ++position) {
      PositionIo io(tokens, position);
      RETURN_IF_ERROR(vm->Run("infer", &io));
      logits.insert(logits.end(), io.logits.begin(), io.logits.end());
    }
  }
  return logits;
}

}  // namespace terrace
