// SPDX-License-Identifier: Apache-2.0
#include "tests/system/numerics_job.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "nlohmann/json.hpp"
#include "proto/program_check.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/comm/communicator.h"
#include "worker/comm/file_rendezvous.h"
#include "worker/rank/initial_state.h"
#include "worker/rank/program_file.h"
#include "worker/rank/train_io.h"
#include "worker/rank/vm.h"

namespace terrace {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

template <typename T>
std::vector<T> Values(const StoredTensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
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

class BatchDataset final : public TokenDataset {
 public:
  explicit BatchDataset(const Golden& golden) : golden_(golden) {}
  int64_t tokens(Split) const override { return golden_.rows * golden_.length; }
  void TrainRow(int64_t, int64_t row, int64_t, std::span<int32_t> tokens,
                std::span<int32_t> targets) const override {
    const int64_t begin = row % golden_.rows * golden_.length;
    std::copy_n(golden_.tokens.begin() + begin, golden_.length, tokens.begin());
    std::copy_n(golden_.targets.begin() + begin, golden_.length, targets.begin());
  }
  void ValidationRow(int64_t index, std::span<int32_t> tokens,
                     std::span<int32_t> targets) const override {
    TrainRow(0, index, golden_.rows, tokens, targets);
  }

 private:
  const Golden& golden_;
};

std::byte* Address(const v1::Program& program, std::span<std::byte* const> arenas, uint32_t buffer,
                   int64_t offset) {
  const v1::Buffer& b = program.buffers(buffer);
  return arenas[b.arena()] + b.offset() + offset;
}

void LoadWeights(const v1::Program& program, std::span<std::byte* const> arenas,
                 const Tensors& weights) {
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    std::memcpy(Address(program, arenas, range.buffer(), range.offset()),
                weights.at(range.tensor()).data() + range.tensor_begin(),
                range.elements() * sizeof(float));
  }
}

// Copies `elements` floats from `data` to where `range` lies in its tensor.
void Store(const v1::StateRange& range, const std::byte* data, Tensors* tensors) {
  std::vector<float>& tensor = (*tensors)[range.tensor()];
  tensor.resize(std::max<size_t>(tensor.size(), range.tensor_begin() + range.elements()));
  std::memcpy(tensor.data() + range.tensor_begin(), data, range.elements() * sizeof(float));
}

// The operand of an AdamW instruction that holds the gradient of `range`, as an address.
const std::byte* GradientOf(const v1::Program& program, std::span<std::byte* const> arenas,
                            const v1::StateRange& range) {
  for (const v1::Sequence& sequence : program.sequences()) {
    for (const v1::Instruction& instruction : sequence.instructions()) {
      if (instruction.compute().op() != "adamw") continue;
      const v1::Operand& gradient = instruction.operands(0);
      const v1::Operand& weight = instruction.operands(1);
      const int64_t within = range.offset() - weight.offset();
      if (weight.buffer() != range.buffer() || within < 0 || within >= weight.shape(0) * 4)
        continue;
      return Address(program, arenas, gradient.buffer(), gradient.offset()) + within;
    }
  }
  return nullptr;
}

// At the first write of state all gradients of the step are final: keeps those of the first step.
class GradientKeeper final : public StateFence {
 public:
  GradientKeeper(const v1::Program& program, std::span<std::byte* const> arenas)
      : program_(program), arenas_(arenas) {}
  void WaitUntilUnread() override {
    if (!gradients_.empty()) return;
    for (const v1::StateRange& range : program_.state()) {
      if (range.kind() == v1::WEIGHT)
        Store(range, GradientOf(program_, arenas_, range), &gradients_);
    }
  }
  // Of the mean loss: what the program sums is the loss of all tokens.
  Tensors Mean() const {
    Tensors mean = gradients_;
    for (auto& [name, values] : mean) {
      for (float& value : values) value /= static_cast<float>(program_.rules().tokens_per_step());
    }
    return mean;
  }

 private:
  const v1::Program& program_;
  const std::span<std::byte* const> arenas_;
  Tensors gradients_;
};

absl::StatusOr<v1::Program> CompileTrain(const Golden& golden, const JobShape& shape) {
  v1::JobSpec spec;
  spec.set_name("numerics");
  *spec.mutable_train() = golden.train;
  spec.mutable_train()->set_precision(shape.precision);
  spec.mutable_data()->set_sequence_length(golden.length);
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
  ASSIGN_OR_RETURN(std::vector<v1::Program> programs,
                   Compile({.spec = &spec, .model = &golden.model, .layout = layout}));
  RETURN_IF_ERROR(CheckPrograms(programs));
  return std::move(programs.front());
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> Connect(const v1::Program& program,
                                                                   int rank, int ranks,
                                                                   const std::string& folder) {
  std::vector<std::unique_ptr<Communicator>> groups;
  FileRendezvous store(folder);
  for (const v1::Group& group : program.groups()) {
    ASSIGN_OR_RETURN(
        groups.emplace_back(),
        ConnectGloo(
            {.name = group.name(), .rank = rank, .size = ranks, .interface_address = "127.0.0.1"},
            &store));
  }
  return groups;
}

absl::StatusOr<JobResult> TrainRank(const Golden& golden, const v1::Program& program,
                                    const JobShape& shape, int rank, const std::string& folder) {
  ASSIGN_OR_RETURN(const ProgramMemory memory, ProgramMemory::Reserve(program, 1));
  ASSIGN_OR_RETURN(const auto groups,
                   Connect(program, rank, static_cast<int>(shape.ranks), folder));
  const SystemClock clock;
  GradientKeeper keeper(program, memory.arenas());
  ASSIGN_OR_RETURN(const auto vm, Vm::Create(program,
                                             {.threads = static_cast<int>(shape.threads),
                                              .arenas = memory.arenas(),
                                              .groups = groups},
                                             &clock, &keeper));
  RETURN_IF_ERROR(vm->Warm());
  FillInitialState(program, memory.arenas(), 1);
  LoadWeights(program, memory.arenas(), golden.weights);
  const BatchDataset dataset(golden);
  TrainIo io(program.rules(), dataset, rank);
  JobResult result;
  for (int64_t step = 0; step < shape.steps; ++step) {
    io.SetStep(step);
    RETURN_IF_ERROR(vm->Run("train", &io));
    result.losses.push_back(io.stats().loss);
    result.grad_norms.push_back(io.stats().grad_norm);
  }
  result.gradients = keeper.Mean();
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    Store(range, Address(program, memory.arenas(), range.buffer(), range.offset()),
          &result.weights);
  }
  return result;
}

// Keeps the logits of the position asked for.
class PositionIo final : public SequenceIo {
 public:
  PositionIo(std::span<const int32_t> row, int32_t position) : row_(row), position_(position) {}
  void LoadBatch(int, std::span<int32_t>, std::span<int32_t>) override {}
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
  ReadHyperparameters(json, &golden.train);
  return golden;
}

absl::StatusOr<JobResult> TrainInProcess(const Golden& golden, const JobShape& shape) {
  ASSIGN_OR_RETURN(const v1::Program program, CompileTrain(golden, shape));
  const std::string folder =
      std::filesystem::temp_directory_path() / absl::StrCat("terrace-numerics-", ::getpid());
  std::filesystem::remove_all(folder);
  std::vector<absl::StatusOr<JobResult>> results(shape.ranks);
  {
    std::vector<std::jthread> ranks;
    for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
      ranks.emplace_back([&, rank] {
        results[rank] = TrainRank(golden, program, shape, static_cast<int>(rank), folder);
      });
    }
  }
  std::filesystem::remove_all(folder);
  for (const auto& result : results) RETURN_IF_ERROR(result.status());
  return std::move(results.front());
}

absl::StatusOr<std::vector<float>> InferInProcess(const Golden& golden,
                                                  const std::string& precision) {
  ASSIGN_OR_RETURN(const v1::Program program, CompileInfer({.model = &golden.model,
                                                            .job = "numerics",
                                                            .sequence_length = golden.length,
                                                            .precision = precision,
                                                            .threads = 2}));
  RETURN_IF_ERROR(CheckProgram(program));
  ASSIGN_OR_RETURN(const ProgramMemory memory, ProgramMemory::Reserve(program, 1));
  const SystemClock clock;
  ASSIGN_OR_RETURN(const auto vm,
                   Vm::Create(program, {.threads = 2, .arenas = memory.arenas()}, &clock, nullptr));
  FillInitialState(program, memory.arenas(), 1);
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
