// Replaces the process's allocation functions: any call on a thread that executes instructions is
// counted, with the library scopes of worker/memory/step_scope.h as the only exceptions.
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/compiler/compile.h"
#include "coordinator/model/config.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/vm/tiny_program.h"
#include "worker/memory/step_scope.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/vm.h"

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

std::atomic<int> forbidden_allocations{0};
std::atomic<bool> nobody_may_allocate{false};  // not on the threads of OpenMP either

void Count() {
  if (nobody_may_allocate.load() || terrace::AllocationIsForbidden())
    forbidden_allocations.fetch_add(1);
}

}  // namespace

extern "C" {
void* malloc(size_t bytes) {
  Count();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Count();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  Count();
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  Count();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  Count();
  *out = __libc_memalign(alignment, bytes);
  return *out == nullptr ? 12 : 0;
}
}

namespace terrace {
namespace {

using kernels::Op;

// Does what real ones do, within the rule; or breaks it on purpose.
class TestIo final : public SequenceIo {
 public:
  explicit TestIo(bool allocate) : allocate_(allocate) {}
  void LoadBatch(int, const BatchTarget& batch) override {
    const std::span<int32_t> tokens = batch.tokens;
    const std::span<int32_t> targets = batch.targets;
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = targets[i] = static_cast<int32_t>(i) % 16;
  }
  void LoadSchedule(std::span<float, 4> schedule) override { schedule[0] = 1; }
  void Output(v1::OutputKind, std::span<const float> values) override {
    last_ = values[0];
    if (allocate_) kept_ = std::make_unique<float>(values[0]);
  }

 private:
  const bool allocate_;
  float last_ = 0;
  std::unique_ptr<float> kept_;
};

absl::Status RunWatched(Vm* vm, std::string_view sequence, SequenceIo* io) {
  nobody_may_allocate.store(true);
  absl::Status status = vm->Run(sequence, io);
  nobody_may_allocate.store(false);
  return status;
}

int AllocationsOfOneRun(bool io_allocates) {
  TinyProgram tiny({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::HOST_COMPUTE});
  const uint32_t tokens = tiny.Buffer(v1::I32, {64}), targets = tiny.Buffer(v1::I32, {64});
  const uint32_t table = tiny.Buffer(v1::F32, {16, 32}), x = tiny.Buffer(v1::F32, {64, 32});
  const uint32_t y = tiny.Buffer(v1::F32, {64, 32}), w = tiny.Buffer(v1::F32, {32, 32});
  const uint32_t scratch = tiny.Buffer(v1::U8, {1 << 20});
  tiny.program().mutable_rules()->set_micro_batch(1);
  tiny.program().mutable_rules()->set_sequence_length(64);
  tiny.Input(1, v1::LOAD_BATCH, {tokens, targets});
  tiny.Compute(0, Op::kGatherRows, kernels::NoAttrs{},
               {{v1::READ, table}, {v1::READ, tokens}, {v1::WRITE, x}})
      ->add_waits(0);
  tiny.Compute(2, Op::kGelu, kernels::ActivationAttrs{}, {{v1::READ, x}, {v1::WRITE, x}})
      ->add_waits(1);
  v1::Instruction* product = tiny.Compute(0, Op::kMatmul, kernels::MatmulAttrs{},
                                          {{v1::READ, x}, {v1::READ, w}, {v1::WRITE, y}});
  for (int absent = 0; absent < 3; ++absent) product->add_operands();
  product->add_waits(2);
  v1::Operand* workspace = product->mutable_compute()->mutable_workspace();
  workspace->set_access(v1::WRITE);
  workspace->set_buffer(scratch);
  workspace->set_dtype(v1::U8);
  workspace->add_shape(1 << 20);
  tiny.Output(0, v1::LOGITS, y);

  SystemClock clock;
  const std::vector<std::byte*> arenas = tiny.Arenas();
  auto vm = Vm::Create(tiny.program(), {.threads = 2, .arenas = arenas}, &clock, nullptr);
  EXPECT_TRUE(vm.ok()) << vm.status();
  EXPECT_TRUE((*vm)->Warm().ok());
  TestIo io(io_allocates);
  EXPECT_TRUE((*vm)->Run("train", &io).ok());
  forbidden_allocations.store(0);
  for (int run = 0; run < 10; ++run) EXPECT_TRUE(RunWatched(vm->get(), "train", &io).ok());
  return forbidden_allocations.load();
}

// Copies between all tiers and computation on the host.
int AllocationsOfAnOffloadedRun(const std::string& engine) {
  constexpr int64_t kElements = 1 << 19;  // several requests a copy
  TinyProgram tiny({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::DEVICE_TO_HOST, v1::NVME_READ,
                    v1::NVME_WRITE, v1::HOST_COMPUTE});
  const uint32_t grad = tiny.Buffer(v1::F32, {kElements}), y = tiny.Buffer(v1::F32, {kElements});
  const uint32_t slot = tiny.Buffer(v1::F32, {kElements}, v1::HOST);
  const uint32_t state = tiny.Buffer(v1::F32, {kElements}, v1::HOST);
  const uint32_t far = tiny.Buffer(v1::F32, {kElements}, v1::NVME);
  tiny.Compute(0, Op::kFill, kernels::FillAttrs{.value = 1}, {{v1::WRITE, grad}});
  tiny.Copy(2, v1::TO_HOST, {{grad, slot}})->add_waits(0);
  tiny.Copy(3, v1::NVME_LOAD, {{far, state}});
  v1::Instruction* add =
      tiny.Compute(5, Op::kAdd, kernels::NoAttrs{}, {{v1::READ, slot}, {v1::UPDATE, state}});
  add->add_waits(1), add->add_waits(2);
  tiny.Copy(4, v1::NVME_STORE, {{state, far}})->add_waits(3);
  tiny.Copy(1, v1::TO_DEVICE, {{state, y}})->add_waits(3);
  tiny.Output(0, v1::LOGITS, y)->add_waits(5);

  v1::NvmeSpec nvme;
  nvme.add_paths(std::filesystem::temp_directory_path().string());
  nvme.set_engine(engine);
  nvme.set_verify(true);
  auto memory = ProgramMemory::Reserve(tiny.program(), {.nvme = nvme, .name = "no-allocation"});
  EXPECT_TRUE(memory.ok()) << memory.status();
  SystemClock clock;
  auto vm =
      Vm::Create(tiny.program(), {.threads = 2, .arenas = memory->arenas(), .nvme = memory->nvme()},
                 &clock, nullptr);
  EXPECT_TRUE(vm.ok()) << vm.status();
  EXPECT_TRUE((*vm)->Warm().ok());
  TestIo io(false);
  EXPECT_TRUE((*vm)->Run("train", &io).ok());
  forbidden_allocations.store(0);
  for (int run = 0; run < 5; ++run) EXPECT_TRUE(RunWatched(vm->get(), "train", &io).ok());
  return forbidden_allocations.load();
}

// A whole training step of each family, as compiled: every kernel, in both precisions.
int AllocationsOfCompiledSteps(const std::string& config_json, const std::string& precision,
                               uint32_t micro_batches = 2) {
  constexpr int kSequence = 32;
  const auto config = ParseModelConfig(config_json, kSequence);
  EXPECT_TRUE(config.ok()) << config.status();
  const Model model = BuildModel(*config);
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(kSequence);
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->set_precision(precision);
  v1::Layout layout;
  layout.set_data_parallel(1);
  layout.set_micro_batch(2);
  layout.set_micro_batches(micro_batches);
  layout.set_bucket_bytes(64 << 10);
  layout.set_threads_per_rank(2);
  layout.set_precision(precision);
  const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
  EXPECT_TRUE(programs.ok()) << programs.status();
  const v1::Program& program = programs->front();
  std::vector<std::byte> memory(program.arenas(0).bytes() + 64);
  void* start = memory.data();
  size_t space = memory.size();
  const std::vector<std::byte*> arenas = {
      static_cast<std::byte*>(std::align(64, program.arenas(0).bytes(), start, space))};
  SystemClock clock;
  auto vm = Vm::Create(program, {.threads = 2, .arenas = arenas}, &clock, nullptr);
  EXPECT_TRUE(vm.ok()) << vm.status();
  EXPECT_TRUE((*vm)->Warm().ok());
  TestIo io(false);
  forbidden_allocations.store(0);
  for (int run = 0; run < 3; ++run) EXPECT_TRUE(RunWatched(vm->get(), "train", &io).ok());
  EXPECT_TRUE(RunWatched(vm->get(), "eval", &io).ok());
  return forbidden_allocations.load();
}

constexpr char kGpt2[] =
    R"({"model_type":"gpt2","vocab_size":64,"n_positions":32,"n_embd":32,"n_layer":2,"n_head":2})";
constexpr char kQwen3[] =
    R"({"model_type":"qwen3","vocab_size":64,"max_position_embeddings":32,"hidden_size":32,"intermediate_size":48,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"rms_norm_eps":1e-6,
        "rope_theta":10000,"tie_word_embeddings":false})";

TEST(NoAllocationTest, CompiledStepsAllocateNothing) {
  for (const char* precision : {"fp32", "bf16"}) {
    EXPECT_EQ(AllocationsOfCompiledSteps(kGpt2, precision), 0) << precision;
    EXPECT_EQ(AllocationsOfCompiledSteps(kQwen3, precision), 0) << precision;
  }
}

TEST(NoAllocationTest, StepsWithLoopsAllocateNothing) {
  EXPECT_EQ(AllocationsOfCompiledSteps(kGpt2, "bf16", 30), 0);
  EXPECT_EQ(AllocationsOfCompiledSteps(kQwen3, "fp32", 30), 0);
}

TEST(NoAllocationTest, TheStepLoopAllocatesNothing) { EXPECT_EQ(AllocationsOfOneRun(false), 0); }

TEST(NoAllocationTest, MovingBetweenTiersAllocatesNothing) {
  for (const char* engine : {"auto", "threads"})
    EXPECT_EQ(AllocationsOfAnOffloadedRun(engine), 0) << engine;
}

TEST(NoAllocationTest, AnAllocationInAHandlerIsSeen) { EXPECT_EQ(AllocationsOfOneRun(true), 10); }

}  // namespace
}  // namespace terrace
