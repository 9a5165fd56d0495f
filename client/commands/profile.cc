// Measures this machine: what `terrace plan` and `terrace run` compute with. The work is done by
// terrace-rank: once for its GPUs, and once for each number of threads that a rank may have when
// ranks share the machine evenly.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "client/commands/commands.h"
#include "client/print.h"
#include "client/process.h"

namespace terrace {
namespace {

constexpr size_t kCountsMax = 4;  // so that all of it stays under a minute
constexpr int kNoGpu = 3;         // what terrace-rank probe --if-any then exits with

// All cores, half of them and so on.
std::vector<uint32_t> ThreadCounts(const ProfileOptions& options) {
  if (options.threads > 0) return {options.threads};
  std::vector<uint32_t> counts;
  for (uint32_t threads = ThisMachine().cores; threads > 0 && counts.size() < kCountsMax;
       threads /= 2) {
    counts.push_back(threads);
  }
  return counts;
}

// terrace-rank's arguments for each thing to measure.
std::vector<std::vector<std::string>> Measurements(const ProfileOptions& options) {
  std::vector<std::vector<std::string>> all;
  if (options.device == "cuda") all.push_back({"--device", "cuda"});
  if (options.device == "auto") all.push_back({"--device", "cuda", "--if-any"});
  if (options.device == "cuda") return all;
  for (const uint32_t threads : ThreadCounts(options))
    all.push_back({"--threads", absl::StrCat(threads)});
  return all;
}

}  // namespace

int ProfileCommand(const GlobalOptions& global, const ProfileOptions& options) {
  const auto program = SiblingProgram("terrace-rank");
  if (!program.ok()) return Fail(global, program.status());
  const std::vector<std::vector<std::string>> measurements = Measurements(options);
  int failed = 0;  // a GPU that cannot be measured does not keep the CPU from it
  if (global.json()) std::printf("{\"profiles\": [\n");
  for (const std::vector<std::string>& what : measurements) {
    std::vector<std::string> arguments = {"probe", "-o", global.json() ? "json" : "text"};
    arguments.insert(arguments.end(), what.begin(), what.end());
    if (options.refresh) arguments.push_back("--refresh");
    if (!options.nvme.empty()) {
      arguments.insert(arguments.end(), {"--nvme", options.nvme});
    }
    std::fflush(stdout);
    const auto code = RunToEnd(*program, arguments);
    if (!code.ok()) return Fail(global, code.status());
    if (*code == kNoGpu && what.back() == "--if-any") continue;
    if (failed == 0) failed = *code;
    const bool last = &what == &measurements.back();
    std::fputs(!global.json() ? "\n" : last ? "]}\n" : ",\n", stdout);
  }
  return failed;
}

}  // namespace terrace
