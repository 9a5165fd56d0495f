// What the search for a layout costs and how well it chooses, over well-known models and clusters
// of the catalogue. A table of the layouts chosen: seconds to search, layouts compared by closed
// form and compiled, step time, share of the peak, bytes. With --rank N each job's N fastest
// proposals are compiled and simulated too: how the closed form orders them (Spearman's rank
// correlation), how far it is off, and what choosing by it alone would cost. With --ordinary all of
// the plan is made, as `terrace plan` does, for models of 7 and 8 billion parameters on 8 devices
// at every ordinary sequence and batch, and its programs' hashes tell one plan from another.
// results/search-*.md keeps what was measured. Other arguments name cases by parts of their names.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/hardware/cluster.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/prepare.h"
#include "coordinator/prepare/search.h"
#include "tests/bench/search_cases.h"

namespace terrace {
namespace {

constexpr SearchCase kCases[] = {
    {"gpt2", "h100x8:1", 1024, 512},
    {"gpt2-xl", "a100-40gbx8:1", 1024, 512},
    {"llama-2-7b", "h100x8:1", 4096, 256},
    {"llama-2-7b", "a100-40gbx8:1", 4096, 256},
    {"llama-3.1-8b", "h100x8:1", 8192, 64},
    {"llama-3.1-8b", "h100x8:8", 8192, 512},
    {"llama-3.1-8b", "h100x8:128", 8192, 1024},
    {"llama-3.1-8b", "rtx4090x1:1", 2048, 16},
    {"llama-3.1-8b", "rtx4090x8:1", 4096, 64},
    {"llama-3.1-8b", "rtx4090x8:2", 2048, 16},
    {"llama-3.1-8b", "rtx4090x8:2", 4096, 64},
    {"llama-2-13b", "a100x8:1", 4096, 128},
    {"llama-2-13b", "h100x8:16", 4096, 1024},
    {"llama-3.1-70b", "h100x8:8", 8192, 128},
    {"llama-3.1-70b", "h100x8:32", 8192, 1024},
    {"llama-3.1-70b", "h100x8:256", 8192, 2048},
    {"llama-3.1-405b", "h100x8:2048", 8192, 2048},
};

// Of a user who has eight devices: nothing pinned, or one thing.
std::vector<SearchCase> OrdinaryCases() {
  std::vector<SearchCase> cases;
  for (const char* preset : {"llama-2-7b", "llama-3.1-8b"}) {
    for (const char* cluster : {"a100-40gbx8:1", "a100x8:1", "h100x8:1"}) {
      for (const int64_t sequence : {1024, 2048, 4096, 8192}) {
        if (preset == std::string_view("llama-2-7b") && sequence > 4096) continue;
        for (const int64_t batch : {8, 16, 64, 256}) {
          for (const char* pinned : {"", "zero 3", "tp 2"}) {
            cases.push_back({preset, cluster, sequence, batch, 0, pinned});
          }
        }
      }
    }
  }
  return cases;
}

struct Job {
  std::string name;
  v1::JobSpec spec;
  Model model;
  Budget budget;
};

absl::StatusOr<Job> JobOf(const SearchCase& c) {
  Job job = {.name = std::string(c.preset) + ", " + std::string(c.cluster) + ", sequence " +
                     std::to_string(c.sequence) + ", batch " + std::to_string(c.global_batch) +
                     (c.pinned.empty() ? "" : ", ") + std::string(c.pinned),
             .spec = SpecOf(c)};
  absl::StatusOr<Cluster> cluster = ParseCluster(c.cluster);
  if (!cluster.ok()) return cluster.status();
  if (const absl::Status status = ApplyCluster(*cluster, &job.spec); !status.ok()) return status;
  absl::StatusOr<Model> model = ReadModel(job.spec);
  if (!model.ok()) return model.status();
  job.model = *std::move(model);
  job.budget = WhatIfBudget(job.spec, *cluster);
  return job;
}

double Mfu(const Job& job, const v1::Layout& layout, double step_seconds) {
  const double tokens = static_cast<double>(job.spec.train().global_batch()) *
                        static_cast<double>(job.spec.data().sequence_length());
  return FlopsPerToken(job.model, job.spec.data().sequence_length()) * tokens / layout.ranks() /
         step_seconds / job.budget.profile.bf16_flops_per_second();
}

double Gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// False when it fails; that nothing fits is a row.
bool PrintChoice(const Job& job) {
  const double start = Now();
  const absl::StatusOr<Searched> searched = SearchLayouts(job.spec, job.model, job.budget);
  const double seconds = Now() - start;
  if (!searched.ok()) {
    std::printf("| %s | %s |\n", job.name.c_str(),
                std::string(searched.status().message()).c_str());
    return false;
  }
  const Evaluated& best = searched->evaluated.front();
  const double step = best.simulation.step_seconds;
  std::printf("| %s | %.2f | %ld | %zu | %s%s | %.3f | %.1f | %.1f + %.1f |\n", job.name.c_str(),
              seconds, static_cast<long>(searched->candidates), searched->evaluated.size(),
              LayoutText(best.layout).c_str(), best.fits ? "" : " (does not fit)", step,
              100 * Mfu(job, best.layout, step), Gib(best.device_bytes), Gib(best.host_bytes));
  for (size_t i = 1; i < searched->evaluated.size(); ++i) {
    const Evaluated& other = searched->evaluated[i];
    std::printf("  %.3f %.1f %s%s\n", other.simulation.step_seconds, Gib(other.device_bytes),
                LayoutText(other.layout).c_str(), other.fits ? "" : " (does not fit)");
  }
  std::fflush(stdout);
  return true;
}

bool PrintPlan(const Job& job) {
  const std::clock_t cpu_start = std::clock();
  const double start = Now();
  const absl::StatusOr<Prepared> prepared = PrepareAnyway(job.spec, job.budget);
  const double seconds = Now() - start;
  const double cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  if (!prepared.ok()) {
    std::printf("| %s | %s |\n", job.name.c_str(),
                std::string(prepared.status().message()).c_str());
    return false;
  }
  const v1::Plan& plan = prepared->plan;
  std::string hashes;
  for (const std::string& hash : plan.program_sha256()) hashes += hash;
  std::printf("| %s | %.2f | %.2f | %ld | %ld | %s%s | %.4f | %.1f | %016zx |\n", job.name.c_str(),
              seconds, cpu, static_cast<long>(plan.search().candidates()),
              static_cast<long>(plan.search().compiled()), LayoutText(plan.layout()).c_str(),
              prepared->refusal.ok() ? "" : " (does not fit)", plan.time().step_seconds(),
              100 * Mfu(job, plan.layout(), plan.time().step_seconds()),
              std::hash<std::string>()(hashes));
  std::fflush(stdout);
  return true;
}

std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size(); ++i) ranks[order[i]] = static_cast<double>(i);
  return ranks;
}

double Spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> ra = Ranks(a), rb = Ranks(b);
  double sum = 0;
  for (size_t i = 0; i < ra.size(); ++i) sum += (ra[i] - rb[i]) * (ra[i] - rb[i]);
  const auto n = static_cast<double>(ra.size());
  return n < 2 ? 1 : 1 - 6 * sum / (n * (n * n - 1));
}

// Every step-th proposal, so that slow ones are among them.
bool PrintRanking(const Job& job, size_t count) {
  const auto proposals = Propose(job.spec, job.model, job.budget, Search::kAll);
  if (!proposals.ok()) return false;
  std::vector<double> estimated, simulated;
  double error = 0;
  for (const Proposal& one : proposals->best) {
    if (estimated.size() >= count) break;
    if (one.to_fit) continue;
    auto exact = CompileLayout(job.spec, job.model, job.budget, one.layout);
    if (!exact.ok() || !SimulateStep(job.budget.profile, &*exact).ok()) continue;
    estimated.push_back(one.seconds);
    simulated.push_back(exact->simulation.step_seconds);
    error += std::abs(one.seconds / simulated.back() - 1);
    const double arena = Gib(exact->device_bytes - exact->programs[0].external_bytes());
    std::printf("  %.3f %.3f %+.1f%% | %.1f %.1f GiB %+.1f%% | %s\n", one.seconds, simulated.back(),
                100 * (one.seconds / simulated.back() - 1), Gib(one.memory.total()), arena,
                100 * (Gib(one.memory.total()) / arena - 1), LayoutText(one.layout).c_str());
    std::fflush(stdout);
  }
  if (estimated.empty()) return false;
  const double best = *std::min_element(simulated.begin(), simulated.end());
  std::printf("| %s | %zu | %.2f | %.1f | %.1f |\n", job.name.c_str(), estimated.size(),
              Spearman(estimated, simulated), 100 * error / static_cast<double>(estimated.size()),
              100 * (simulated.front() / best - 1));
  std::fflush(stdout);
  return true;
}

int Main(int argc, char** argv) {
  size_t rank = 0;
  std::vector<SearchCase> cases(std::begin(kCases), std::end(kCases));
  bool plans = false;
  std::vector<std::string_view> parts;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--rank" && i + 1 < argc) {
      rank = static_cast<size_t>(std::atoi(argv[++i]));
    } else if (std::string_view(argv[i]) == "--ordinary") {
      cases = OrdinaryCases();
      plans = true;
    } else {
      parts.emplace_back(argv[i]);
    }
  }
  bool all = true;
  for (const SearchCase& c : cases) {
    const absl::StatusOr<Job> job = JobOf(c);
    if (!job.ok()) {
      std::printf("%s: %s\n", std::string(c.preset).c_str(),
                  std::string(job.status().message()).c_str());
      all = false;
      continue;
    }
    if (!NamesAll(job->name, parts)) continue;
    const bool one = plans      ? PrintPlan(*job)
                     : rank > 0 ? PrintRanking(*job, rank)
                                : PrintChoice(*job);
    all = one && all;
  }
  return all ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
