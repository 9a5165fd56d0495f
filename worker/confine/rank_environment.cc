// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/rank_environment.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr PassedVariable kPassed[] = {
    {"PATH", "tools of drivers"},
    {"HOME", "caches of drivers"},
    {"USER", "messages"},
    {"LOGNAME", "messages"},
    {"TMPDIR", "libraries"},
    {"LANG", "messages of the system"},
    {"LC_*", "messages of the system"},
    {"TZ", "times in logs"},
    {"LD_LIBRARY_PATH", "libraries outside the system's folders"},
    {"LD_PRELOAD", "allocators, tools that measure"},
    {"CUDA_*", "the driver and the runtime; CUDA_VISIBLE_DEVICES above all"},
    {"NVIDIA_*", "the container toolkit"},
    {"NCCL_*", "links between GPUs"},
    {"RDMAV_*", "InfiniBand"},
    {"MLX5_*", "InfiniBand"},
    {"UCX_*", "plugins of NCCL"},
    {"FI_*", "plugins of NCCL on libfabric"},
    {"OFI_NCCL_*", "plugins of NCCL on libfabric"},
    {"OMP_*", "threads on the CPU"},
    {"GOMP_*", "threads on the CPU"},
    {"KMP_*", "threads on the CPU"},
    {"DNNL_*", "products on the CPU"},
    {"ONEDNN_*", "products on the CPU"},
    {"GLIBC_TUNABLES", "the C library"},
    {"MALLOC_*", "the C library"},
    {"MIMALLOC_*", "allocator"},
    {"ASAN_OPTIONS", "sanitizers"},
    {"TSAN_OPTIONS", "sanitizers"},
    {"UBSAN_OPTIONS", "sanitizers"},
    {"LSAN_OPTIONS", "sanitizers"},
    {"TERRACE_CUDA_GRAPHS", "docs/cuda.md"},
    {"TERRACE_CUDA_ATTENTION", "docs/cuda.md"},
};

bool Matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

}  // namespace

std::span<const PassedVariable> PassedVariables() { return kPassed; }

std::vector<std::string> PassedEnvironment(const char* const* environment,
                                           std::span<const std::string> also) {
  std::vector<std::string> passed;
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable(*environment);
    const std::string_view name = variable.substr(0, variable.find('='));
    const bool is_listed =
        std::any_of(std::begin(kPassed), std::end(kPassed),
                    [name](const PassedVariable& row) { return Matches(row.name, name); });
    if (is_listed || std::find(also.begin(), also.end(), name) != also.end())
      passed.emplace_back(variable);
  }
  return passed;
}

}  // namespace terrace
