// How long it takes to say that a job does not fit, and what would: over models, clusters and
// amounts of memory with which nothing or hardly anything fits. A table: seconds until the search
// itself has ended and until all is said, CPU seconds of all threads, changes tried, changes that
// fit, and what is said.
// --verbose tells each change when it is tried. Other arguments name cases by parts of their names.
// results/refused-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/hardware/cluster.h"
#include "coordinator/prepare/prepare.h"
#include "tests/bench/search_cases.h"

namespace terrace {
namespace {

// Memory that the devices and hosts would have, so that nothing or little fits.
struct Refused {
  SearchCase job;
  const char* precision = "bf16";
  int64_t device_mib = 0;
  int64_t host_gib = 0;  // of a rank; 0: the cluster's
  const char* pinned = "";
};

constexpr Refused kRefused[] = {
    {{"gpt2", "h100x8:1", 1024, 512}, "fp32", 600, 1},
    {{"llama-3.1-8b", "h100x1:1", 8192, 64}, "bf16", 8 << 10, 0},
    {{"llama-3.1-8b", "h100x1:1", 8192, 512}, "fp32", 8 << 10, 16},
    {{"llama-3.1-8b", "h100x8:8", 8192, 2048}, "fp32", 2 << 10, 4},
    {{"llama-3.1-70b", "h100x8:1", 8192, 64}, "bf16", 1 << 10, 1},
    {{"llama-3.1-70b", "h100x8:1", 8192, 1024}, "bf16", 24 << 10, 64},
    {{"llama-3.1-70b", "h100x8:32", 8192, 1024}, "fp32", 4 << 10, 0},
    {{"llama-3.1-70b", "h100x8:32", 8192, 1024}, "fp32", 4 << 10, 8, "zero 3"},
    {{"llama-3.1-405b", "h100x1:1", 8192, 16}, "bf16", 80 << 10, 0},
    {{"llama-3.1-405b", "h100x8:8", 8192, 512}, "bf16", 8 << 10, 0},
    {{"llama-3.1-405b", "h100x8:8", 8192, 512}, "bf16", 8 << 10, 64},
    {{"llama-3.1-405b", "h100x8:16", 8192, 512}, "fp32", 10 << 10, 10},
    {{"llama-3.1-405b", "h100x8:16", 8192, 512}, "fp32", 24 << 10, 24},
    {{"llama-3.1-405b", "h100x8:16", 8192, 512}, "fp32", 24 << 10, 24, "pp 16 zbv"},
    {{"llama-3.1-405b", "h100x8:16", 8192, 512}, "fp32", 24 << 10, 0, "tp 8 pp 16"},
    {{"llama-3.1-405b", "h100x8:256", 8192, 2048}, "bf16", 4 << 10, 8},
    {{"llama-3.1-405b", "h100x8:2048", 8192, 2048}, "bf16", 2 << 10, 0},
    {{"llama-3.1-405b", "h100x8:2048", 8192, 2048}, "bf16", 2 << 10, 8},
};

v1::JobSpec SpecOf(const Refused& c) {
  v1::JobSpec spec = SpecOf(c.job);
  spec.mutable_train()->set_precision(c.precision);
  spec.mutable_resources()->set_device_memory(c.device_mib << 20);
  if (c.host_gib > 0) spec.mutable_resources()->set_host_memory(c.host_gib << 30);
  Pin(c.pinned, spec.mutable_layout());
  return spec;
}

std::string NameOf(const Refused& c) {
  std::string name = std::string(c.job.preset) + ", " + std::string(c.job.cluster) + ", batch " +
                     std::to_string(c.job.global_batch) + ", " + c.precision + ", " +
                     std::to_string(c.device_mib) + " MiB";
  if (c.host_gib > 0) name += ", host " + std::to_string(c.host_gib) + " GiB";
  return *c.pinned == 0 ? name : name + ", " + c.pinned;
}

// False when it fails for another reason than that it does not fit.
bool PrintRefusal(const Refused& c, bool verbose) {
  v1::JobSpec spec = SpecOf(c);
  const absl::StatusOr<Cluster> cluster = ParseCluster(c.job.cluster);
  if (!cluster.ok() || !ApplyCluster(*cluster, &spec).ok()) return false;
  const double start = Now();
  const std::clock_t cpu_start = std::clock();
  int tries = -1;  // the first thing told is that closed forms are asked
  double first = 0;
  const auto prepared =
      PrepareAnyway(spec, WhatIfBudget(spec, *cluster), [&](const std::string& words) {
        if (++tries == 0) first = Now() - start;
        if (verbose) std::printf("  %.2f trying %s\n", Now() - start, words.c_str());
        if (verbose) std::fflush(stdout);
      });
  const double seconds = Now() - start;
  const double cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  if (!prepared.ok()) {
    std::printf("%s: %s\n", NameOf(c).c_str(), prepared.status().ToString().c_str());
    return false;
  }
  const std::string said(prepared->refusal.message());
  std::printf("| %s | %.2f | %.2f | %.2f | %d | %d | %s |\n", NameOf(c).c_str(), first, seconds,
              cpu, tries, prepared->refusal.ok() ? -1 : prepared->plan.alternatives_size(),
              said.substr(0, verbose ? said.size() : 200).c_str());
  std::fflush(stdout);
  return true;
}

int Main(int argc, char** argv) {
  bool verbose = false, all = true;
  std::vector<std::string_view> parts;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--verbose") {
      verbose = true;
    } else {
      parts.emplace_back(argv[i]);
    }
  }
  for (const Refused& c : kRefused) {
    if (NamesAll(NameOf(c), parts)) all = PrintRefusal(c, verbose) && all;
  }
  return all ? 0 : 1;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
