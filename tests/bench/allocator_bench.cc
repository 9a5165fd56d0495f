// Planned against caching memory on the same programs: replays the "train" sequence of compiled
// jobs through the caching allocator (proto/caching/cache.h), and prints what it reserves
// beside the planned arena and the bound that no allocator beats.
//
// Persistent buffers are allocated once. A step buffer is allocated before the first instruction
// that touches it, for that one's stream, and freed after the last one in list order; what other
// streams use then is retired until these have finished by the simulator's time. An instruction is
// issued when it begins: a host that runs ahead, as PyTorch's does, frees later and reserves more.
// Sizes only; no memory is touched. With arguments only the jobs whose names contain one of them.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/compiler/compile.h"
#include "coordinator/hardware/catalogue.h"
#include "coordinator/model/presets.h"
#include "coordinator/simulator/simulate.h"
#include "proto/caching/cache.h"
#include "proto/check/program_check.h"

namespace terrace {
namespace {

constexpr int64_t kMib = 1 << 20;
constexpr int kSteps = 3;  // the last is measured: by then the cache is warm

// The device buffers of one sequence and when its instructions run.
struct Recording {
  struct Use {
    int64_t bytes = 0;
    int first = -1, last = -1;  // instructions, in list order; -1: not used
    uint32_t stream = 0;        // of the first
    double other_end = -1;      // when the uses on other streams have finished
  };
  std::vector<int64_t> persistent;           // sizes
  std::vector<Use> uses;                     // of step buffers
  std::vector<std::vector<int>> begin, end;  // indices in `uses`, by instruction
  std::vector<double> issued;                // seconds, by instruction; never falls
};

Recording Record(const v1::Program& program, const v1::Sequence& sequence,
                 const std::vector<RunInstruction>& run) {
  Recording result;
  const int count = sequence.instructions_size();
  result.begin.resize(count);
  result.end.resize(count);
  std::vector<Recording::Use> uses(program.buffers_size());
  const auto touch = [&](const v1::Operand& operand, const v1::Instruction& instruction, int i) {
    if (operand.access() == v1::ACCESS_UNSPECIFIED) return;
    Recording::Use& use = uses[operand.buffer()];
    if (use.first < 0) {
      use.first = i;
      use.stream = instruction.stream();
    }
    use.last = i;
    if (instruction.stream() != use.stream)
      use.other_end = std::max(use.other_end, run[i].end_seconds);
  };
  double now = 0;
  for (int i = 0; i < count; ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    for (const v1::Operand& operand : instruction.operands()) touch(operand, instruction, i);
    touch(instruction.compute().workspace(), instruction, i);
    now = std::max(now, run[i].start_seconds);
    result.issued.push_back(now);
  }
  for (const v1::Buffer& buffer : program.buffers()) {
    if (program.arenas(buffer.arena()).tier() != v1::DEVICE || buffer.bytes() == 0) continue;
    if (buffer.lifetime() == v1::PERSISTENT) {
      result.persistent.push_back(buffer.bytes());
    } else if (Recording::Use use = uses[buffer.id()]; use.first >= 0) {
      use.bytes = buffer.bytes();
      result.begin[use.first].push_back(static_cast<int>(result.uses.size()));
      result.end[use.last].push_back(static_cast<int>(result.uses.size()));
      result.uses.push_back(use);
    }
  }
  return result;
}

struct Figures {
  int64_t peak_reserved = 0;  // over all steps
  CachingStatistics at_peak;  // when most was allocated in the last step
};

class Replay {
 public:
  struct Options {
    int64_t limit_bytes = int64_t{1} << 60;
    // All streams share their free blocks. No allocator could do that without waiting for the
    // streams; it shows what keeping them apart costs.
    bool one_pool = false;
    bool expandable = false;  // segments
  };
  Replay(const Recording& recording, const Options& options)
      : recording_(recording),
        one_pool_(options.one_pool),
        cache_(&source_, {.policy = {.expandable = options.expandable},
                          .limit_bytes = options.limit_bytes,
                          .finish_streams = [this] {
                            FreeFinished(std::numeric_limits<double>::infinity());
                          }}) {}

  // RESOURCE_EXHAUSTED when it does not fit the limit.
  absl::StatusOr<Figures> Run() {
    for (const int64_t bytes : recording_.persistent) {
      if (const auto data = cache_.Allocate(bytes, 0); !data.ok()) return data.status();
    }
    for (int step = 0; step < kSteps; ++step) {
      figures_.at_peak = {};
      if (absl::Status status = Step(); !status.ok()) return status;
    }
    return figures_;
  }

 private:
  absl::Status Step() {
    data_.assign(recording_.uses.size(), nullptr);
    for (size_t i = 0; i < recording_.issued.size(); ++i) {
      FreeFinished(recording_.issued[i]);
      for (const int use : recording_.begin[i]) {
        const Recording::Use& what = recording_.uses[use];
        const auto data = cache_.Allocate(what.bytes, one_pool_ ? 0 : what.stream);
        if (!data.ok()) return data.status();
        data_[use] = *data;
      }
      if (!recording_.begin[i].empty()) Look();
      for (const int use : recording_.end[i]) {
        if (absl::Status status = End(use, recording_.issued[i]); !status.ok()) return status;
      }
    }
    FreeFinished(std::numeric_limits<double>::infinity());  // a step ends when all streams have
    return status_;
  }

  absl::Status End(int use, double now) {
    if (recording_.uses[use].other_end <= now) return cache_.Free(data_[use]);
    retired_.push_back(use);
    return cache_.Retire(data_[use]);
  }

  void FreeFinished(double now) {
    std::erase_if(retired_, [&](int use) {
      if (recording_.uses[use].other_end > now) return false;
      status_.Update(cache_.Free(data_[use]));
      return true;
    });
  }

  void Look() {
    const CachingStatistics now = cache_.statistics();
    figures_.peak_reserved = std::max(figures_.peak_reserved, now.reserved_bytes);
    if (now.allocated_bytes > figures_.at_peak.allocated_bytes) figures_.at_peak = now;
  }

  const Recording& recording_;
  const bool one_pool_;
  CountedSegments source_;
  BlockCache cache_;
  std::vector<std::byte*> data_;  // by use
  std::vector<int> retired_;      // uses
  absl::Status status_;
  Figures figures_;
};

// The smallest limit, to 2 MiB, under which every step gets through; what the cache then gives back
// and reserves again costs it time. `low` does not do, `high` does.
int64_t SmallestLimit(const Recording& recording, int64_t low, int64_t high) {
  while (high - low > 2 * kMib) {
    const int64_t middle = low + (high - low) / 2;
    (Replay(recording, {.limit_bytes = middle}).Run().ok() ? high : low) = middle;
  }
  return high;
}

struct Case {
  std::string name;
  std::string_view preset;
  int64_t sequence = 0;
  v1::Layout layout;
};

struct Choice {
  uint32_t ranks = 1, zero = 0, micro_batch = 1, micro_batches = 1;
  std::string recompute = "none";
  std::optional<v1::Offload> offload;
};

v1::Layout LayoutOf(const Choice& choice) {
  v1::Layout layout;
  layout.set_data_parallel(choice.ranks);
  layout.set_tensor_parallel(1);
  layout.set_pipeline_parallel(1);
  layout.set_context_parallel(1);
  layout.set_zero_stage(choice.zero);
  layout.set_micro_batch(choice.micro_batch);
  layout.set_micro_batches(choice.micro_batches);
  layout.set_recompute(choice.recompute);
  layout.set_bucket_bytes(25 * kMib);
  layout.set_precision("bf16");
  layout.set_threads_per_rank(8);
  if (choice.offload) *layout.mutable_offload() = *choice.offload;
  return layout;
}

// Optimizer states and gradients on the host; the weights too when asked for.
v1::Offload ToHost(bool parameters) {
  v1::Offload offload;
  offload.mutable_optimizer()->set_host(1);
  offload.mutable_gradient()->set_host(1);
  if (parameters) offload.mutable_parameter()->set_host(1);
  return offload;
}

std::vector<Case> Cases() {
  const std::string_view gpt2 = "gpt2", llama = "llama-3.2-1b";
  return {
      {"GPT-2 124M, 1 rank, 8 micro-batches of 4", gpt2, 1024,
       LayoutOf({.micro_batch = 4, .micro_batches = 8})},
      {"GPT-2 124M, dp 8, 4 micro-batches of 4", gpt2, 1024,
       LayoutOf({.ranks = 8, .micro_batch = 4, .micro_batches = 4})},
      {"GPT-2 124M, dp 8, zero 2, 4 micro-batches of 4, optimizer on the host", gpt2, 1024,
       LayoutOf({.ranks = 8,
                 .zero = 2,
                 .micro_batch = 4,
                 .micro_batches = 4,
                 .offload = ToHost(false)})},
      {"GPT-2 124M, dp 8, zero 3, 4 micro-batches of 4, all states on the host", gpt2, 1024,
       LayoutOf(
           {.ranks = 8, .zero = 3, .micro_batch = 4, .micro_batches = 4, .offload = ToHost(true)})},
      {"Llama 1B, 1 rank, block recompute, 4 micro-batches of 1", llama, 4096,
       LayoutOf({.micro_batches = 4, .recompute = "block"})},
      {"Llama 1B, dp 8, zero 2, block recompute, 4 micro-batches of 1", llama, 4096,
       LayoutOf({.ranks = 8, .zero = 2, .micro_batches = 4, .recompute = "block"})},
      {"Llama 1B, dp 8, zero 3, selective recompute, 4 micro-batches of 1", llama, 4096,
       LayoutOf({.ranks = 8, .zero = 3, .micro_batches = 4, .recompute = "selective"})},
      {"Llama 1B, dp 8, zero 3, block recompute, 4 micro-batches of 1, all states on the host",
       llama, 4096,
       LayoutOf({.ranks = 8,
                 .zero = 3,
                 .micro_batches = 4,
                 .recompute = "block",
                 .offload = ToHost(true)})},
  };
}

v1::JobSpec SpecOf(const Case& c) {
  v1::JobSpec spec;
  spec.set_name(c.name);
  spec.mutable_data()->set_sequence_length(c.sequence);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(1000);
  train->set_global_batch(int64_t{c.layout.data_parallel()} * c.layout.micro_batch() *
                          c.layout.micro_batches());
  train->set_clip_grad_norm(1);
  train->mutable_optimizer()->set_lr(1e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_optimizer()->set_weight_decay(0.1);
  train->mutable_schedule()->set_name("cosine");
  return spec;
}

double Mib(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMib); }

void Print(const std::string& name, const v1::Arena& arena, const Figures& figures,
           const Figures& expandable, int64_t one_pool, int64_t smallest) {
  const double bound = static_cast<double>(arena.lower_bound_bytes());
  const auto over = [&](int64_t bytes) { return 100 * (static_cast<double>(bytes) / bound - 1); };
  const auto with_bound = [&](int64_t bytes, int digits) {
    char text[64];
    std::snprintf(text, sizeof(text), "%.1f (%+.*f %%)", Mib(bytes), digits, over(bytes));
    return std::string(text);
  };
  std::printf("| %s | %.1f | %s | %s | %.1f | %.1f %% | %.1f %% | %s | %.1f %% | %s | %s |\n",
              name.c_str(), Mib(arena.lower_bound_bytes()), with_bound(arena.bytes(), 2).c_str(),
              with_bound(figures.peak_reserved, 1).c_str(), Mib(figures.at_peak.allocated_bytes),
              100 * figures.at_peak.UnallocatedShare(), 100 * figures.at_peak.ScatteredShare(),
              with_bound(expandable.peak_reserved, 1).c_str(),
              100 * expandable.at_peak.UnallocatedShare(), with_bound(one_pool, 1).c_str(),
              with_bound(smallest, 1).c_str());
  std::fflush(stdout);
}

absl::Status Measure(const Case& c) {
  const auto config = ParseModelConfig(FindPreset(c.preset)->config_json, c.sequence);
  if (!config.ok()) return config.status();
  const Model model = BuildModel(*config);
  const v1::JobSpec spec = SpecOf(c);
  const auto programs = Compile({.spec = &spec, .model = &model, .layout = c.layout});
  if (!programs.ok()) return programs.status();
  if (absl::Status status = CheckPrograms(*programs); !status.ok()) return status;
  const v1::Program& program = programs->at(0);
  const auto simulation = Simulate(program, "train", ProfileOf(*FindDevice("H100-80GB")));
  if (!simulation.ok()) return simulation.status();
  const auto train = std::find_if(program.sequences().begin(), program.sequences().end(),
                                  [](const v1::Sequence& s) { return s.name() == "train"; });
  const Recording recording = Record(program, *train, simulation->stages[0].instructions);
  const auto figures = Replay(recording, {}).Run();
  if (!figures.ok()) return figures.status();
  const auto expandable = Replay(recording, {.expandable = true}).Run();
  if (!expandable.ok()) return expandable.status();
  const auto one_pool = Replay(recording, {.one_pool = true}).Run();
  if (!one_pool.ok()) return one_pool.status();
  const v1::Arena& arena = program.arenas(0);
  Print(c.name, arena, *figures, *expandable, one_pool->peak_reserved,
        SmallestLimit(recording, arena.lower_bound_bytes() / 2, figures->peak_reserved));
  return absl::OkStatus();
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  std::printf(
      "| job | bound MiB | planned | caching, reserved | allocated | 1 - allocated / reserved | "
      "1 - largest free / free | expandable, reserved | 1 - allocated / reserved | "
      "one pool for all streams | caching, smallest limit |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  bool all = true;
  for (const terrace::Case& c : terrace::Cases()) {
    const bool chosen = argc < 2 || std::any_of(argv + 1, argv + argc, [&](const char* part) {
                          return c.name.find(part) != std::string::npos;
                        });
    if (!chosen) continue;
    const absl::Status status = terrace::Measure(c);
    if (!status.ok()) std::printf("%s: %s\n", c.name.c_str(), status.ToString().c_str());
    all = all && status.ok();
  }
  return all ? 0 : 1;
}
