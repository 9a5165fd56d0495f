// The optimizer's stream of a job whose states rest on NVMe, against what the disk and the memory
// give: the instructions of a compiled program that load a chunk, update it on the host and store
// it, run by the VM over the rank's file, with its buffers, slots and chunk size.
//
// All works take turns within a round; reported are medians, and of the stream the share of the
// slower of
//   disk    the same loads and stores at once, with nothing in between
//   memory  STREAM's triad at the 28 bytes a parameter that the update reads and writes
// in the same round. Run by hand; results/offload_stream-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "coordinator/compiler/compile.h"
#include "tests/bench/rounds.h"
#include "tests/bench/triad.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

constexpr int64_t kSequence = 32;
constexpr double kBytesPerParameter = 28;  // read w, g, m, v; write w, m, v
constexpr const char* kName = "optimizer";
constexpr std::array<float, 4> kScale = {1e-3F, 1, 1, 0};
constexpr std::array<float, 4> kSchedule = {1e-4F, 0.1F, 0.05F, 0};

template <typename T>
T Checked(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status() << "\n";
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

// A Llama of 17 million parameters a layer.
v1::Program Compiled(int layers, int64_t chunk_bytes) {
  const auto config = Checked(ParseModelConfig(
      R"({"model_type": "llama", "vocab_size": 2048, "hidden_size": 1024, "num_hidden_layers": )" +
          std::to_string(layers) +
          R"(, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 4096,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "hidden_act": "silu", "tie_word_embeddings": false})",
      kSequence));
  const Model model = BuildModel(config);
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(kSequence);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(1);
  train->set_global_batch(1);
  train->mutable_optimizer()->set_lr(1e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_schedule()->set_name("constant");
  v1::Layout layout;
  for (auto set : {&v1::Layout::set_data_parallel, &v1::Layout::set_tensor_parallel,
                   &v1::Layout::set_pipeline_parallel, &v1::Layout::set_context_parallel,
                   &v1::Layout::set_micro_batch, &v1::Layout::set_micro_batches,
                   &v1::Layout::set_interleave, &v1::Layout::set_threads_per_rank}) {
    (layout.*set)(1);
  }
  layout.set_bucket_bytes(int64_t{25} << 20);
  layout.set_precision("fp32");
  layout.set_recompute("none");
  layout.set_schedule("1f1b");
  layout.set_chunk_bytes(chunk_bytes);
  for (v1::TierShares* share :
       {layout.mutable_offload()->mutable_parameter(), layout.mutable_offload()->mutable_gradient(),
        layout.mutable_offload()->mutable_optimizer()}) {
    share->set_nvme(1);
  }
  return Checked(Compile({.spec = &spec, .model = &model, .layout = layout}))[0];
}

bool BelongsToStream(const v1::Program& program, const v1::Instruction& instruction) {
  if (instruction.phase() != v1::OPTIMIZER_STEP) return false;
  const v1::StreamKind kind = program.streams(static_cast<int>(instruction.stream())).kind();
  if (instruction.has_compute())
    return kind == v1::HOST_COMPUTE && instruction.compute().op() == "update";
  return instruction.has_copy() && (kind == v1::NVME_READ || kind == v1::NVME_WRITE);
}

// Leaves only the stream of "train", as a sequence of its own.
void KeepStream(v1::Program* program) {
  v1::Sequence kept;
  kept.set_name(kName);
  for (const v1::Sequence& sequence : program->sequences()) {
    if (sequence.name() != "train") continue;
    std::map<uint32_t, uint32_t> ids;
    for (const v1::Instruction& instruction : sequence.instructions()) {
      if (!BelongsToStream(*program, instruction)) continue;
      v1::Instruction* copy = kept.add_instructions();
      *copy = instruction;
      copy->set_id(kept.instructions_size() - 1);
      copy->clear_waits();
      for (const uint32_t wait : instruction.waits()) {
        if (const auto found = ids.find(wait); found != ids.end()) copy->add_waits(found->second);
      }
      ids[instruction.id()] = copy->id();
    }
  }
  program->clear_sequences();
  *program->add_sequences() = std::move(kept);
}

double Seconds(const std::function<void()>& work) {
  const double begin = bench::SecondsOf(CLOCK_MONOTONIC);
  work();
  return bench::SecondsOf(CLOCK_MONOTONIC) - begin;
}

// What one stream copies, in its order.
std::vector<std::vector<NvmePiece>> PiecesOf(const PreparedStream& stream) {
  std::vector<std::vector<NvmePiece>> pieces;
  for (const PreparedInstruction& instruction : stream.instructions)
    pieces.push_back(instruction.pieces);
  return pieces;
}

class Bench {
 public:
  Bench(const std::string& folder, int layers, int64_t chunk_bytes)
      : program_(Compiled(layers, chunk_bytes)) {
    KeepStream(&program_);
    v1::NvmeSpec nvme;
    nvme.add_paths(folder);
    memory_.emplace(
        Checked(ProgramMemory::Reserve(program_, {.threads = 1, .nvme = nvme, .name = "bench"})));
    Fill();
    vm_ = Checked(Vm::Create(program_,
                             {.threads = 1, .arenas = memory_->arenas(), .nvme = memory_->nvme()},
                             &clock_, nullptr));
    for (const PreparedStream& stream : vm_->Find(kName)->streams) {
      if (stream.kind == v1::NVME_READ) reads_ = PiecesOf(stream);
      if (stream.kind == v1::NVME_WRITE) writes_ = PiecesOf(stream);
      for (const PreparedInstruction& instruction : stream.instructions) {
        if (instruction.kernel == nullptr) continue;
        parameters_ += instruction.operands[1].Elements();
        // Without a scale that says that the gradient is finite nothing would be updated.
        std::copy_n(kScale.begin(), kScale.size(), instruction.operands[4].as<float>());
        std::copy_n(kSchedule.begin(), kSchedule.size(), instruction.operands[5].as<float>());
      }
    }
    for (auto* queue : {&read_queue_, &write_queue_}) {
      *queue = Checked(memory_->nvme()->NewQueue());
      (*queue)->RegisterMemory(
          {memory_->host()->data(), static_cast<size_t>(memory_->host()->bytes())});
    }
    std::cerr << read_queue_->description() << "\n";
  }

  double bytes() const { return kBytesPerParameter * static_cast<double>(parameters_); }
  double Stream() {
    return Seconds([this] { Check(vm_->Run(kName, nullptr)); });
  }
  double Disk() {
    return Seconds([this] {
      std::thread writer([this] {
        for (const auto& pieces : writes_)
          Check(write_queue_->Transfer(NvmeDirection::kWrite, pieces));
      });
      for (const auto& pieces : reads_) Check(read_queue_->Transfer(NvmeDirection::kRead, pieces));
      writer.join();
    });
  }
  // Of the last run of the stream: how much of its time each of its streams was at work.
  std::map<std::string, double> Busy() const {
    std::map<std::string, double> busy;
    const PreparedSequence& sequence = *vm_->Find(kName);
    int64_t first = INT64_MAX, last = 0;
    for (size_t s = 0; s < sequence.streams.size(); ++s) {
      int64_t nanos = 0;
      for (const Slice& slice : sequence.streams[s].slices) {
        nanos += slice.end_ns - slice.start_ns;
        first = std::min(first, slice.start_ns);
        last = std::max(last, slice.end_ns);
      }
      if (nanos > 0)
        busy[program_.streams(static_cast<int>(s)).name()] = static_cast<double>(nanos);
    }
    for (auto& [name, share] : busy) share /= static_cast<double>(last - first);
    return busy;
  }

 private:
  // Numbers of an ordinary size everywhere; space that was never written would cost extra once.
  void Fill() {
    const std::vector<float> values(int64_t{2} << 20, 0.01F);
    const auto bytes = std::as_bytes(std::span(values));
    for (Region* region : memory_->regions()) {
      for (int64_t at = 0; at < region->bytes(); at += static_cast<int64_t>(bytes.size())) {
        const auto count =
            std::min<int64_t>(static_cast<int64_t>(bytes.size()), region->bytes() - at);
        Check(region->Write(at, bytes.first(static_cast<size_t>(count))));
      }
    }
  }

  v1::Program program_;
  const SystemClock clock_;
  std::optional<ProgramMemory> memory_;
  std::unique_ptr<Vm> vm_;
  std::unique_ptr<NvmeQueue> read_queue_, write_queue_;
  std::vector<std::vector<NvmePiece>> reads_, writes_;
  int64_t parameters_ = 0;
};

// Seconds for so many bytes of triad.
double Triad(const bench::Memory& memory, double bytes) {
  constexpr int64_t kElements = 16 << 20;
  constexpr int64_t kMiB = 1 << 20;
  auto* const base = static_cast<std::byte*>(memory.data());
  const auto at = [base](int64_t offset) { return reinterpret_cast<float*>(base + offset); };
  const double seconds = std::min(
      Seconds([&] {
        bench::Triad(at(0), at(70 * kMiB), at(141 * kMiB), kElements, bench::Stores::kStreaming);
      }),
      Seconds([&] {
        bench::Triad(at(0), at(70 * kMiB), at(141 * kMiB), kElements, bench::Stores::kPlain);
      }));
  return seconds * bytes / (12.0 * kElements);
}

int Main(const std::string& folder, int rounds, int layers, const std::vector<int64_t>& chunks) {
  const bench::Memory memory(int64_t{210} << 20);
  std::printf(
      "| chunk | stream GB/s | disk GB/s | triad GB/s | of the slower | busy |\n"
      "|---|---|---|---|---|---|\n");
  for (const int64_t chunk : chunks) {
    Bench bench(folder, layers, chunk);
    bench.Stream();
    bench.Disk();
    std::vector<double> stream, disk, triad, share;
    std::map<std::string, std::vector<double>> busy;
    for (int round = 0; round < rounds; ++round) {
      stream.push_back(bench.Stream());
      for (const auto& [name, part] : bench.Busy()) busy[name].push_back(part);
      disk.push_back(bench.Disk());
      triad.push_back(Triad(memory, bench.bytes()));
      share.push_back(std::max(disk.back(), triad.back()) / stream.back());
    }
    const auto rate = [&](const std::vector<double>& seconds) {
      return bench.bytes() / bench::Median(seconds) * 1e-9;
    };
    std::printf("| %ld MiB | %.2f | %.2f | %.2f | %.2f |", chunk >> 20, rate(stream), rate(disk),
                rate(triad), bench::Median(share));
    for (const auto& [name, parts] : busy)
      std::printf(" %s %.2f", name.c_str(), bench::Median(parts));
    std::printf(" |\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: offload_stream FOLDER [rounds, default 5] [layers, default 8] [chunk in "
                 "MiB ...]\n";
    return 2;
  }
  std::vector<int64_t> chunks;
  for (int i = 4; i < argc; ++i) chunks.push_back(int64_t{std::atoi(argv[i])} << 20);
  if (chunks.empty()) chunks = {8 << 20};
  return terrace::Main(argv[1], argc > 2 ? std::max(1, std::atoi(argv[2])) : 5,
                       argc > 3 ? std::max(1, std::atoi(argv[3])) : 8, chunks);
}
