// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/probe.h"

#include <google/protobuf/util/json_util.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/daemon/gpus.h"

namespace terrace {
namespace {

constexpr double kRankMemoryShare = 0.9;  // of the machine's; the rest is the system's

uint32_t CoreCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

std::string InstructionSet() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return "avx512";
  return __builtin_cpu_supports("avx2") ? "avx2" : "sse";
}

std::string RunAndRead(const std::string& command) {
  std::string output;
  // The shell's place is taken, so that what runs there ends with this process.
  FILE* pipe = popen(absl::StrCat("exec ", command).c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer;
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), got);
  }
  pclose(pipe);
  return output;
}

bool Parse(const std::string& json, v1::HardwareProfile* profile) {
  return google::protobuf::util::JsonStringToMessage(json, profile).ok() && profile->measured();
}

v1::HardwareProfile Profile(const ProbeOptions& options, const v1::Node& node) {
  v1::HardwareProfile profile;
  const std::string of = absl::StrJoin(ProbeArguments(node), " ");
  const std::string json =
      RunAndRead(absl::StrCat("'", options.rank_binary, "' probe --brief ", of, " -o json"));
  if (Parse(json, &profile)) return profile;
  log::Warn("the hardware could not be measured with ", options.rank_binary, " probe ", of,
            ": plans use default rates");
  return {};
}

}  // namespace

std::vector<std::string> ProbeArguments(const v1::Node& node) {
  if (node.device() == "cuda") return {"--device", "cuda"};
  return {"--threads", absl::StrCat(node.threads_per_device())};
}

absl::StatusOr<v1::Node> ProbeNode(const ProbeOptions& options) {
  v1::Node node;
  node.set_name(options.name);
  node.set_cores(CoreCount());
  node.set_memory_bytes(static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE));
  node.set_instruction_set(InstructionSet());
  node.set_version(TERRACE_VERSION);
  Gpus gpus;
  if (options.device != "cpu")
    gpus = ParseGpus(RunAndRead(absl::StrCat("'", options.rank_binary, "' devices -o json")));
  ASSIGN_OR_RETURN(const bool cuda, OffersGpus(options.device, gpus));
  const uint32_t devices = options.devices > 0 ? options.devices : cuda ? gpus.devices : 1;
  const double offered = static_cast<double>(node.memory_bytes()) * kRankMemoryShare;
  node.set_devices(devices);
  node.set_device_memory_bytes(cuda ? MemoryOfEach(gpus, devices)
                                    : static_cast<int64_t>(offered) / devices);
  if (options.device_memory_bytes > 0) node.set_device_memory_bytes(options.device_memory_bytes);
  node.set_threads_per_device(options.threads_per_device > 0
                                  ? options.threads_per_device
                                  : std::max<uint32_t>(1, node.cores() / devices));
  if (cuda) {
    node.set_device("cuda");
    node.set_device_name(gpus.name);
    node.set_gpus(gpus.devices);
    *node.mutable_profile() = Profile(options, node);
    node.mutable_profile()->set_device_memory_bytes(gpus.memory_bytes);  // whole, whoever shares it
  } else {
    *node.mutable_profile() = Profile(options, node);
  }
  return node;
}

}  // namespace terrace
