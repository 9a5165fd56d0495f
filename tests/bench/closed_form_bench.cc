// How far the closed form of memory is off: layouts drawn from all that a few models allow on eight
// devices are compiled as the search compiles them, and the closed form is divided by the arenas.
// A table by kind of layout: how many, the least, the 5th percentile, the median, the 95th and the
// most of closed form over compiled, on the device and on the host. Below 1 the closed form
// promises a layout that does not fit, above 1 it calls one hopeless that does.
//
// --each N draws N layouts of each job (120), of as many kinds as there are; --seed S draws others
// (1); --list tells every layout. Other arguments name jobs by parts of their names.
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

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/planner/cluster.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/planner/layout_rules.h"
#include "coordinator/planner/space.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/search_sample.h"
#include "tests/bench/search_cases.h"

namespace terrace {
namespace {

constexpr SearchCase kCases[] = {
    {"gpt2-xl", "a100-40gbx8:1", 1024, 32},     {"llama-3.2-1b", "rtx4090x8:1", 2048, 8},
    {"llama-2-7b", "a100-40gbx8:1", 4096, 16},  {"qwen3-0.6b", "a100x8:1", 2048, 32},
    {"llama-2-70b", "a800x8:1", 2048, 32, 64},  {"qwen2.5-72b", "a800x8:1", 2048, 32, 64},
    {"llama-3.1-70b", "h100x8:8", 8192, 64, 64}};

// Of layouts that take longer nothing is learned that shorter ones do not tell.
constexpr int64_t kPassesMax = 1'500;
constexpr int64_t kChunkBytes = int64_t{64} << 20;

// Of the ways in which a layout may keep its memory, each in words.
std::vector<std::string> KindsOf(const v1::Layout& layout) {
  const bool one = layout.pipeline_parallel() == 1;
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
      away.empty() ? "offload of nothing" : absl::StrCat("offload", away.substr(1))};
}

struct Job {
  std::string name;
  v1::JobSpec spec;
  Model model;
  Budget budget;
};

absl::StatusOr<Job> JobOf(const SearchCase& c) {
  Job job = {.name = absl::StrCat(std::string(c.preset), ", ", std::string(c.cluster)),
             .spec = SpecOf(c)};
  if (c.host_gib > 0) job.spec.mutable_resources()->set_host_memory(c.host_gib << 30);
  ASSIGN_OR_RETURN(const Cluster cluster, ParseCluster(c.cluster));
  RETURN_IF_ERROR(ApplyCluster(cluster, &job.spec));
  ASSIGN_OR_RETURN(job.model, ReadModel(job.spec));
  job.budget = BudgetOnPaper(job.spec, cluster);
  return job;
}

// A layout of every kind that the job allows, in an order of chance. What is computed again and
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
      ForEachLayout(job.spec, job.model, job.budget, Search::kAll, [&](const v1::Layout& found) {
        if (LayerPasses(found, job.model.config.layers) > kPassesMax) return true;
        constexpr const char* kRecompute[] = {"none", "selective", "block"};
        v1::Layout layout = found;
        layout.set_recompute(kRecompute[draw(3)]);
        *layout.mutable_offload() = offloads[draw(offloads.size())];
        if (layout.zero_stage() == 1 || layout.zero_stage() == 2) {
          layout.mutable_offload()->clear_parameter();
        }
        layout.set_chunk_bytes(kChunkBytes);
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
  double device = 0, host = 0;
};

absl::StatusOr<Point> Compare(const Job& job, const MemoryEstimator& memory,
                              const v1::Layout& layout) {
  ASSIGN_OR_RETURN(const Evaluated exact,
                   Sample(job.spec, job.model, job.budget, layout, SizesOf(layout)));
  const MemoryEstimate estimate = memory.Memory(layout);
  const auto over = [](int64_t bytes, int64_t compiled) {
    return compiled > 0 ? static_cast<double>(bytes) / static_cast<double>(compiled) : 0;
  };
  return Point{over(estimate.total(), exact.device_bytes - exact.programs[0].external_bytes()),
               over(estimate.host_bytes, exact.host_bytes)};
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
  std::mt19937_64 random(1);
  bool list = false;
  std::vector<std::string_view> parts;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--list") {
      list = true;
    } else if (word == "--each" && i + 1 < argc) {
      each = static_cast<size_t>(std::atoi(argv[++i]));
    } else if (word == "--seed" && i + 1 < argc) {
      random.seed(static_cast<uint64_t>(std::atoi(argv[++i])));
    } else {
      parts.push_back(word);
    }
  }
  std::map<std::string, std::vector<double>> device, host;  // by kind
  for (const SearchCase& c : kCases) {
    absl::StatusOr<Job> job = JobOf(c);
    if (!job.ok()) {
      std::printf("%s\n", job.status().ToString().c_str());
      return 1;
    }
    if (!NamesAll(job->name, parts)) continue;
    const MemoryEstimator memory(EstimateModel(job->spec, job->model));
    absl::StatusOr<std::vector<v1::Layout>> layouts = Draw(*job, &random);
    if (!layouts.ok()) {
      std::printf("%s: %s\n", job->name.c_str(), layouts.status().ToString().c_str());
      return 1;
    }
    layouts->resize(std::min(each, layouts->size()));
    for (const v1::Layout& layout : *layouts) {
      const absl::StatusOr<Point> point = Compare(*job, memory, layout);
      if (!point.ok()) {
        std::printf("%s: %s: %s\n", job->name.c_str(), LayoutText(layout).c_str(),
                    point.status().ToString().c_str());
        continue;
      }
      std::vector<std::string> kinds = KindsOf(layout);
      kinds.push_back("model " + job->name);
      kinds.emplace_back("all");
      for (const std::string& kind : kinds) {
        device[kind].push_back(point->device);
        if (point->host > 0) host[kind].push_back(point->host);
      }
      if (!list) continue;
      std::printf("%.3f %.3f %s: %s, %u x %u\n", point->device, point->host, job->name.c_str(),
                  LayoutText(layout).c_str(), layout.micro_batches(), layout.micro_batch());
      std::fflush(stdout);
    }
  }
  for (const auto* table : {&device, &host}) {
    std::printf(
        "\n| closed form over compiled, %s | layouts | least | 5 %% | median | 95 %% | most |\n",
        table == &device ? "device" : "host");
    std::printf("|---|---|---|---|---|---|---|\n");
    for (const auto& [kind, ratios] : *table) PrintRow(kind, ratios);
  }
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
