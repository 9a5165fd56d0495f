// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/device/cuda/job_on_device.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "proto/check/program_check.h"
#include "proto/program/grid.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/second_addresses.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/state_view.h"
#include "worker/comm/file_rendezvous.h"
#include "worker/device/groups.h"
#include "worker/train/initial_state.h"
#include "worker/train/loss_scale.h"
#include "worker/train/schedule.h"

namespace terrace {
namespace {

constexpr int64_t kSequence = 16;
constexpr int64_t kSeed = 17;
constexpr int64_t kTimeoutMs = 300'000;
constexpr TinySizes kSizes = {
    .vocabulary = 61, .hidden = 32, .layers = 2, .intermediate = 48, .sequence = kSequence};

absl::StatusOr<v1::Program> CompileOne(const DeviceJob& job) {
  const v1::JobSpec base = TinySpec(kSequence);
  v1::JobSpec spec = base;
  spec.mutable_train()->set_precision(job.layout.precision());
  const Model model = TinyModel(job.family, kSizes);
  ASSIGN_OR_RETURN(std::vector<v1::Program> programs,
                   Compile({.spec = &spec, .model = &model, .layout = job.layout}));
  for (v1::Program& program : programs) {
    if (job.page_bytes > 0) MoveToSecondAddresses(job.page_bytes, &program);
  }
  RETURN_IF_ERROR(CheckPrograms(programs));
  return programs[0];
}

class FixedIo final : public SequenceIo {
 public:
  FixedIo(const v1::StepRules& rules, int64_t step, int64_t data_rank)
      : rules_(rules), step_(step), data_rank_(data_rank) {}

  void LoadBatch(int micro_batch, const BatchTarget& batch) override {
    const std::span<int32_t> tokens = batch.tokens;
    const std::span<int32_t> targets = batch.targets;
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = Id(micro_batch, i);
    for (size_t i = 0; i < targets.size(); ++i) targets[i] = Id(micro_batch, i + 1);
    if (!targets.empty()) targets.back() = -1;  // one that does not count
  }
  void LoadSchedule(std::span<float, 4> schedule) override {
    FillSchedule(rules_, step_, LossScale(rules_).Factor(), schedule);
  }
  int32_t Updates() const override { return static_cast<int32_t>(step_); }
  void Output(v1::OutputKind kind, std::span<const float> values) override {
    if (kind != v1::STEP_STATS) return;
    grad_norm = values[1];
    loss = values[2];
  }

  double loss = NAN, grad_norm = NAN;

 private:
  int32_t Id(int micro_batch, size_t i) const {
    const auto place = static_cast<uint64_t>((step_ * 31 + micro_batch) * 7 + data_rank_);
    const uint64_t x = (place * 977 + i) * 2654435761u;
    return static_cast<int32_t>(x / 65536 % kSizes.vocabulary);
  }

  const v1::StepRules& rules_;
  const int64_t step_;
  const int64_t data_rank_;
};

absl::StatusOr<std::map<std::string, std::vector<float>>> ReadState(const RankState& state) {
  std::map<std::string, std::vector<float>> values;
  ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, ViewState(state));
  for (const StateTensor& tensor : tensors) {
    std::vector<float>& out = values[tensor.stored_name];
    for (const StateSlice& slice : tensor.slices) {
      std::vector<std::byte> held(slice.elements * tensor.element_bytes());
      RETURN_IF_ERROR(slice.region->Read(slice.offset, held));
      std::vector<float> part(slice.elements);
      ConvertElements(tensor.dtype, held.data(), kernels::DType::kF32,
                      reinterpret_cast<std::byte*>(part.data()), slice.elements);
      if (out.size() < static_cast<size_t>(slice.begin + slice.elements))
        out.resize(slice.begin + slice.elements);
      std::copy(part.begin(), part.end(), out.begin() + slice.begin);
    }
  }
  return values;
}

// Scores of one query that all grow by one amount change nothing: the gradient of keys' biases is
// zero but for rounding, and AdamW turns that into whole steps.
bool IsKeysBias(const std::string& tensor, size_t i, size_t elements) {
  if (tensor.find("k_proj.bias") != std::string::npos) return true;
  return tensor.find("attn.c_attn.bias") != std::string::npos && i >= elements / 3 &&
         i < elements / 3 * 2;
}

double RelativeError(const std::string& tensor, const std::vector<float>& got,
                     const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (IsKeysBias(tensor, i, want.size())) continue;
    error += (got[i] - want[i]) * static_cast<double>(got[i] - want[i]);
    norm += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(error / std::max(norm, 1e-30));
}

std::string NewFolder() {
  static std::atomic<int> folders = 0;
  const std::string folder = std::filesystem::temp_directory_path() /
                             absl::StrCat("terrace-device-job-", ::getpid(), "-", ++folders);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace

v1::Layout PlainLayout() {
  v1::Layout layout = TinyLayout({});
  layout.set_threads_per_rank(1);
  layout.set_allocator("planned");
  return layout;
}

absl::StatusOr<std::unique_ptr<JobOnDevice>> JobOnDevice::Make(const DeviceJob& job, uint32_t rank,
                                                               const std::string& folder) {
  ASSIGN_OR_RETURN(v1::Program program, CompileOne(job));
  std::unique_ptr<JobOnDevice> made(new JobOnDevice(std::move(program), rank));
  made->folder_ = NewFolder();
  ASSIGN_OR_RETURN(made->backend_, OpenBackend(made->program_.device(), /*ordinal=*/0));
  MemoryOptions memory = {.threads = 1, .name = "rank0", .backend = made->backend_.get()};
  memory.nvme.add_paths(made->folder_);
  ASSIGN_OR_RETURN(made->memory_, ProgramMemory::Reserve(made->program_, std::move(memory)));
  RETURN_IF_ERROR(made->Connect(folder));
  ASSIGN_OR_RETURN(made->vm_, Vm::Create(made->program_,
                                         {.threads = 1,
                                          .arenas = made->memory_->arenas(),
                                          .groups = made->groups_,
                                          .rank = rank,
                                          .nvme = made->memory_->nvme(),
                                          .dynamic = made->memory_->dynamic(),
                                          .backend = made->backend_.get()},
                                         &made->clock_, nullptr));
  return made;
}

absl::Status JobOnDevice::Connect(const std::string& folder) {
  std::unique_ptr<FileRendezvous> store;
  if (!folder.empty()) store = std::make_unique<FileRendezvous>(folder);
  RETURN_IF_ERROR(backend_->MeetRanks(rank_, program_.ranks(), store.get(), kTimeoutMs));
  ASSIGN_OR_RETURN(
      groups_,
      ConnectGroups(program_, rank_, {.interface_address = "127.0.0.1", .timeout_ms = kTimeoutMs},
                    store.get(), backend_.get()));
  return absl::OkStatus();
}

JobOnDevice::~JobOnDevice() {
  vm_.reset();
  groups_.clear();
  memory_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

RankState JobOnDevice::state() const {
  return {program_, CoordinatesOf(program_.grid(), rank_), memory_->regions()};
}

absl::Status JobOnDevice::Prepare() {
  RETURN_IF_ERROR(vm_->Warm());
  RETURN_IF_ERROR(FillInitialState(program_, memory_->regions(), 1));
  return InitialiseWeights(kSeed, state(), 1);
}

absl::StatusOr<Trained> JobOnDevice::Train(int64_t steps) {
  Trained trained;
  for (const int64_t end = step_ + steps; step_ < end; ++step_) {
    FixedIo io(program_.rules(), step_, DataIndex(program_.grid(), state().rank));
    RETURN_IF_ERROR(vm_->Run("train", &io));
    trained.losses.push_back(io.loss);
    trained.grad_norms.push_back(io.grad_norm);
  }
  ASSIGN_OR_RETURN(trained.state, ReadState(state()));
  return trained;
}

absl::StatusOr<Trained> TrainOnDevice(const DeviceJob& job, int64_t steps) {
  ASSIGN_OR_RETURN(const auto made, JobOnDevice::Make(job));
  RETURN_IF_ERROR(made->Prepare());
  return made->Train(steps);
}

absl::StatusOr<std::vector<Trained>> TrainRanksOnDevice(const DeviceJob& job, int64_t steps) {
  const uint32_t ranks = job.layout.data_parallel() * job.layout.tensor_parallel();
  const std::string folder = NewFolder();
  std::vector<absl::StatusOr<Trained>> results(ranks);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        results[rank] = [&]() -> absl::StatusOr<Trained> {
          ASSIGN_OR_RETURN(const auto made, JobOnDevice::Make(job, rank, folder));
          RETURN_IF_ERROR(made->Prepare());
          return made->Train(steps);
        }();
      });
    }
  }
  std::filesystem::remove_all(folder);
  std::vector<Trained> trained;
  for (absl::StatusOr<Trained>& result : results) {
    RETURN_IF_ERROR(result.status());
    trained.push_back(*std::move(result));
  }
  return trained;
}

TensorError WorstError(const Trained& got, const Trained& want) {
  TensorError worst;
  if (got.state.size() != want.state.size()) return {INFINITY, "their number"};
  for (const auto& [name, values] : want.state) {
    const auto found = got.state.find(name);
    const bool same = found != got.state.end() && found->second.size() == values.size();
    const double error = same ? RelativeError(name, found->second, values) : INFINITY;
    if (!(error <= worst.error)) worst = {std::isnan(error) ? INFINITY : error, name};
  }
  return worst;
}

}  // namespace terrace
