// How far the closed forms of memory and time are off: layouts drawn from all that a few models
// allow on one or eight devices are compiled as the search compiles them, and the closed forms are
// divided by the arenas and by the simulated step. A table by kind of layout: how many, the least,
// the 5th percentile, the median, the 95th and the most of closed form over compiled, on each tier,
// and over simulated. Below 1 the closed form promises a layout that does not fit, or is slower,
// above 1 it calls one infeasible that does.
//
// --clip C: train.clip_grad_norm of the jobs (1); 0: gradients are used up at once.
// --each N draws N layouts of each job (120), of as many kinds as there are; --seed S draws others
// (1); --list tells every layout; --why WORDS only those whose text has the words, with what their
// arenas hold when they hold the most. Other arguments name jobs by parts of their names.
// results/closed_form-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/compiler/pack/liveness.h"
#include "coordinator/hardware/cluster.h"
#include "coordinator/layout/rules.h"
#include "coordinator/planner/closed_form_error.h"
#include "coordinator/planner/estimate_length.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/planner/estimate_time.h"
#include "coordinator/planner/space.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/memory_peak.h"
#include "tests/bench/search_cases.h"

namespace terrace {
namespace {

constexpr SearchCase kCases[] = {
    {"gpt2-xl", "a100-40gbx8:1", 1024, 32},        {"llama-3.2-1b", "rtx4090x8:1", 2048, 8},
    {"llama-2-7b", "a100-40gbx8:1", 4096, 16},     {"qwen3-0.6b", "a100x8:1", 2048, 32},
    {"llama-2-70b", "a800x8:1", 2048, 32, 64},     {"qwen2.5-72b", "a800x8:1", 2048, 32, 64},
    {"llama-3.1-70b", "h100x8:8", 8192, 64, 64},   {"qwen2.5-14b", "h100x1:1", 1024, 64, 400},
    {"llama-3.1-8b", "rtx4090x1:1", 2048, 16, 200}};

// Of layouts that take longer nothing is learned that shorter ones do not tell.
constexpr int64_t kPassesMax = 1'500;
constexpr int64_t kChunkBytes = int64_t{64} << 20;

// Of the ways in which a layout may keep its memory, each in words.
std::vector<std::string> KindsOf(const v1::Layout& layout) {
  const bool one = layout.pipeline_parallel() == 1 && !InRuns(layout.schedule());
  std::string away;
  const auto add = [&away](const char* name, const v1::TierShares& shares) {
    const v1::Tier tier = FarthestTier(shares);
    if (tier != v1::DEVICE) absl::StrAppend(&away, ", ", name, " ", Absl(TierName(tier)));
  };
  add("weights", layout.offload().parameter());
  add("gradients", layout.offload().gradient());
  add("moments", layout.offload().optimizer());
  add("activations", layout.offload().activation());
  return {
      absl::StrCat("schedule ", one ? "of one stage" : layout.schedule()),
      absl::StrCat("tp ", layout.tensor_parallel() > 1 ? "more than 1" : "1", ", cp ",
                   layout.context_parallel() > 1 ? "more than 1" : "1"),
      absl::StrCat("zero ", layout.zero_stage(), layout.micro_batches() > 1 ? ", several" : ", one",
                   layout.micro_batches() > 1 ? " micro-batches" : " micro-batch"),
      absl::StrCat("recompute ", layout.recompute()),
      TileBytes(layout) > 0 ? "in tiles" : "in whole matrices",
      away.empty() ? "offload of nothing" : absl::StrCat("offload", away.substr(1))};
}

struct Job {
  std::string name;
  v1::JobSpec spec;
  Model model;
  Budget budget;
};

absl::StatusOr<Job> JobOf(const SearchCase& c, double clip_grad_norm) {
  Job job = {.name = absl::StrCat(std::string(c.preset), ", ", std::string(c.cluster)),
             .spec = SpecOf(c)};
  job.spec.mutable_train()->set_clip_grad_norm(clip_grad_norm);
  if (c.host_gib > 0) job.spec.mutable_resources()->set_host_memory(c.host_gib << 30);
  ASSIGN_OR_RETURN(const Cluster cluster, ParseCluster(c.cluster));
  RETURN_IF_ERROR(ApplyCluster(cluster, &job.spec));
  ASSIGN_OR_RETURN(job.model, ReadModel(job.spec));
  job.budget = WhatIfBudget(job.spec, cluster);
  return job;
}

// A layout of every kind that the job allows, in an order of chance. What is recomputed and
// what rests elsewhere is drawn for each layout.
absl::StatusOr<std::vector<v1::Layout>> Draw(const Job& job, std::mt19937_64* random) {
  std::vector<v1::Offload> offloads(12);  // most of nothing
  for (v1::Offload& offload : Offloads(/*to_nvme=*/true)) {
    offloads.push_back(offload);
    offloads.push_back(std::move(offload));
    offloads.back().mutable_activation()->set_host(1);
  }
  for (const double kept : {0.25, 0.6}) {
    v1::TierShares* states = offloads.emplace_back().mutable_optimizer();
    states->set_device(kept);
    states->set_host(1 - kept);
  }
  offloads.emplace_back().mutable_activation()->set_host(1);
  const auto draw = [random](size_t count) { return static_cast<size_t>((*random)() % count); };
  std::map<std::vector<std::string>, std::pair<v1::Layout, size_t>>
      kinds;  // and how many there were
  RETURN_IF_ERROR(
      ForEachLayout(job.spec, job.model, job.budget, Search::kTiers, [&](const v1::Layout& found) {
        if (LayerPasses(found, job.model.config.layers) > kPassesMax) return true;
        constexpr const char* kRecompute[] = {"none", "selective", "block"};
        v1::Layout layout = found;
        layout.set_recompute(kRecompute[draw(3)]);
        *layout.mutable_offload() = offloads[draw(offloads.size())];
        if (layout.zero_stage() == 1 || layout.zero_stage() == 2) {
          layout.mutable_offload()->clear_parameter();
        }
        layout.set_chunk_bytes(kChunkBytes);
        const bool fetched = FarthestTier(layout.offload().parameter()) != v1::DEVICE;
        const bool tileable = layout.tensor_parallel() == 1 &&
                              (layout.zero_stage() == 3 || (layout.zero_stage() == 0 && fetched));
        constexpr int64_t kTiles[] = {4 << 20, 16 << 20, 64 << 20};
        if (tileable && draw(3) == 0) layout.set_tile_bytes(kTiles[draw(3)]);
        layout = Completed(std::move(layout));
        if (!CheckLayout(layout, job.model, job.spec).ok()) return true;
        auto& [kept, count] = kinds[KindsOf(layout)];
        if (draw(++count) == 0) kept = std::move(layout);
        return true;
      }));
  std::vector<v1::Layout> drawn;
  for (auto& [kind, kept] : kinds) drawn.push_back(std::move(kept.first));
  std::shuffle(drawn.begin(), drawn.end(), *random);
  return drawn;
}

// Closed form over compiled; 0 where nothing is there.
struct Point {
  double device = 0, host = 0, nvme = 0, time = 0;
};

// "mb3.layer.17.kept" as "mb.layer.kept".
std::string StemOf(const std::string& name) {
  std::string stem;
  for (const char c : name) {
    if (c < '0' || c > '9') stem += c;
  }
  return stem;
}

// What an arena holds when it holds the most, by the names of buffers, in MiB.
void PrintHeld(const v1::Program& program, const v1::Arena& arena) {
  const SequencePeak peak = PeakOf(program, arena.id());
  const std::vector<Life> lives = Liveness(program, *peak.sequence);
  std::map<std::string, std::pair<int64_t, int>> held;
  for (int i = 0; i < program.buffers_size(); ++i) {
    const v1::Buffer& buffer = program.buffers(i);
    if (buffer.arena() != arena.id()) continue;
    const bool there = buffer.lifetime() == v1::PERSISTENT ||
                       (lives[i].begin <= peak.time && peak.time < lives[i].end);
    if (!there) continue;
    auto& [bytes, count] =
        held[absl::StrCat(v1::BufferClass_Name(buffer.class_()), " ", StemOf(buffer.name()))];
    bytes += buffer.bytes();
    ++count;
  }
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [name, of] : held) {
    order.emplace_back(of.first, absl::StrCat(name, " x ", of.second));
  }
  std::sort(order.rbegin(), order.rend());
  const v1::Sequence& sequence = *peak.sequence;
  const auto at = static_cast<int>(peak.time);
  std::printf("  stage %u, %s: arena %.1f MiB, at %d of %d %s\n", program.stage(),
              std::string(TierName(arena.tier())).c_str(),
              static_cast<double>(arena.bytes()) / (1 << 20), at, sequence.instructions_size(),
              at < sequence.instructions_size() ? sequence.instructions(at).text().c_str() : "end");
  for (size_t i = 0; i < order.size() && i < 14; ++i) {
    std::printf("    %10.1f %s\n", static_cast<double>(order[i].first) / (1 << 20),
                order[i].second.c_str());
  }
}

void Explain(const MemoryEstimator& memory, const Evaluated& exact) {
  const std::vector<MemoryEstimate> stages = memory.Stages(exact.layout);
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    std::printf(
        "  stage %zu: closed form %.1f MiB: states %.1f, gradients %.1f, activations %.1f, "
        "workspace %.1f; host %.1f\n",
        i, mib(stages[i].total()), mib(stages[i].state_bytes), mib(stages[i].gradient_bytes),
        mib(stages[i].activation_bytes), mib(stages[i].workspace_bytes), mib(stages[i].host_bytes));
    for (const v1::Arena& arena : exact.programs[i].arenas()) {
      if (arena.tier() != v1::NVME) PrintHeld(exact.programs[i], arena);
    }
  }
}

absl::StatusOr<Point> Compare(const Job& job, const MemoryEstimator& memory,
                              const v1::Layout& layout, bool explain) {
  ASSIGN_OR_RETURN(Evaluated exact, CompileLayout(job.spec, job.model, job.budget, layout));
  RETURN_IF_ERROR(SimulateStep(job.budget.profile, &exact));
  const MemoryEstimate estimate = memory.Memory(layout);
  const TimeEstimator time(memory.model(), job.budget.profile);
  if (explain) Explain(memory, exact);
  const auto over = [](int64_t bytes, int64_t compiled) {
    return compiled > 0 ? static_cast<double>(bytes) / static_cast<double>(compiled) : 0;
  };
  return Point{over(estimate.total(), exact.device_bytes - exact.programs[0].external_bytes()),
               over(estimate.host_bytes, exact.host_bytes),
               over(estimate.nvme_bytes, exact.nvme_bytes),
               time.StepSeconds(layout, time.TimeOfPass(layout)) / exact.simulation.step_seconds};
}

void PrintRow(const std::string& name, std::vector<double> ratios) {
  if (ratios.empty()) return;
  std::sort(ratios.begin(), ratios.end());
  const auto at = [&](double part) {
    return ratios[static_cast<size_t>(part * static_cast<double>(ratios.size() - 1))];
  };
  std::printf("| %s | %zu | %.2f | %.2f | %.2f | %.2f | %.2f |\n", name.c_str(), ratios.size(),
              ratios.front(), at(0.05), at(0.5), at(0.95), ratios.back());
}

int Main(int argc, char** argv) {
  size_t each = 120;
  uint64_t seed = 1;
  double clip_grad_norm = 1;
  bool list = false;
  std::string why;
  std::vector<std::string_view> parts;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--list") {
      list = true;
    } else if (word == "--why" && i + 1 < argc) {
      why = argv[++i];
    } else if (word == "--clip" && i + 1 < argc) {
      clip_grad_norm = std::atof(argv[++i]);
    } else if (word == "--each" && i + 1 < argc) {
      each = static_cast<size_t>(std::atoi(argv[++i]));
    } else if (word == "--seed" && i + 1 < argc) {
      seed = static_cast<uint64_t>(std::atoi(argv[++i]));
    } else {
      parts.push_back(word);
    }
  }
  std::map<std::string, std::vector<double>> device, host, nvme, time;  // by kind
  for (const SearchCase& c : kCases) {
    absl::StatusOr<Job> job = JobOf(c, clip_grad_norm);
    if (!job.ok()) {
      std::printf("%s\n", job.status().ToString().c_str());
      return 1;
    }
    if (!NamesAll(job->name, parts)) continue;
    const MemoryEstimator memory(EstimateModel(job->spec, job->model));
    std::mt19937_64 random(seed);  // so that a job alone draws what it draws among others
    absl::StatusOr<std::vector<v1::Layout>> layouts = Draw(*job, &random);
    if (!layouts.ok()) {
      std::printf("%s: %s\n", job->name.c_str(), layouts.status().ToString().c_str());
      return 1;
    }
    layouts->resize(std::min(each, layouts->size()));
    for (const v1::Layout& layout : *layouts) {
      const bool explain = !why.empty() && absl::StrContains(LayoutText(layout), why);
      if (!why.empty() && !explain) continue;
      const absl::StatusOr<Point> point = Compare(*job, memory, layout, explain);
      if (!point.ok()) {
        std::printf("%s: %s: %s\n", job->name.c_str(), LayoutText(layout).c_str(),
                    point.status().ToString().c_str());
        continue;
      }
      std::vector<std::string> kinds = KindsOf(layout);
      kinds.push_back("model " + job->name);
      kinds.push_back(absl::StrCat("bound of ", Absl(BoundsOf(layout).kind)));
      kinds.emplace_back("all");
      for (const std::string& kind : kinds) {
        device[kind].push_back(point->device);
        time[kind].push_back(point->time);
        if (point->host > 0) host[kind].push_back(point->host);
        if (point->nvme > 0) nvme[kind].push_back(point->nvme);
      }
      if (!list) continue;
      std::printf("%.3f %.3f %.3f %.3f %s: %s, %u x %u\n", point->device, point->host, point->nvme,
                  point->time, job->name.c_str(), LayoutText(layout).c_str(),
                  layout.micro_batches(), layout.micro_batch());
      std::fflush(stdout);
    }
  }
  for (const auto* table : {&device, &host, &nvme, &time}) {
    std::printf("\n| closed form over %s | layouts | least | 5 %% | median | 95 %% | most |\n",
                table == &device ? "compiled, device"
                : table == &host ? "compiled, host"
                : table == &nvme ? "compiled, NVMe"
                                 : "simulated, time");
    std::printf("|---|---|---|---|---|---|---|\n");
    for (const auto& [kind, ratios] : *table) PrintRow(kind, ratios);
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
