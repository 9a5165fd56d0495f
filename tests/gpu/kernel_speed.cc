// The speed of the kernels, one by one: matrix products against the best that cuBLASLt has,
// attention in FLOP/s, memory-bound kernels against the measured rate of copies. Prints a table;
// --json writes what it says. With --device cpu it rehearses on the CPU with small shapes, and
// judges nothing.
//
// Exit codes: 0 every bound held, 1 not, 2 wrong usage, 77 no GPU here (one line says why).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/bench_machine.h"
#include "tests/gpu/bench_rows.h"

namespace terrace::kernels::bench {
namespace {

constexpr int kWrongUsage = 2;
constexpr int kNoGpu = 77;
constexpr int64_t kCopyBytes = int64_t{1} << 30;
constexpr int64_t kSmallCopyBytes = int64_t{1} << 24;

struct Options {
  std::string filter;  // part of a case's name
  std::string json;    // a file
  bool cpu = false;
  bool list = false;
  double seconds = 100;
};

// False when the arguments are wrong, after saying so.
bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--list") {
      options->list = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (value != nullptr && name == "--filter") {
      options->filter = value;
    } else if (value != nullptr && name == "--json") {
      options->json = value;
    } else if (value != nullptr && name == "--seconds" && std::atof(value) > 0) {
      options->seconds = std::atof(value);
    } else if (value != nullptr && name == "--device" &&
               (std::strcmp(value, "cuda") == 0 || std::strcmp(value, "cpu") == 0)) {
      options->cpu = std::strcmp(value, "cpu") == 0;
    } else {
      std::fprintf(
          stderr,
          "kernels: got '%s', must be --list, --device cuda|cpu, --filter PART, --json FILE "
          "or --seconds N\n",
          name.c_str());
      return false;
    }
  }
  return true;
}

void PrintTable(const std::string& device, double copy_rate, const std::vector<Row>& rows) {
  std::printf("kernels on %s\ncopies  %.1f GB/s read and written\n\n", device.c_str(),
              copy_rate / 1e9);
  std::printf("%-42s %12s %14s %14s %8s  %s\n", "kernel", "us", "rate", "compared with", "share",
              "passed");
  for (const Row& row : rows) {
    const double unit = row.bandwidth ? 1e9 : 1e12;
    const char* name = row.bandwidth ? "GB/s" : "TF/s";
    std::printf("%-42s %12.1f %9.2f %s ", row.name.c_str(), row.seconds * 1e6, row.rate / unit,
                name);
    if (row.compared > 0) {
      std::printf("%9.2f %s %7.1f%%", row.compared / unit, name, 100 * row.rate / row.compared);
    } else {
      std::printf("%14s %8s", "", "");
    }
    std::printf("  %s\n", !row.judged ? "" : row.passed ? "yes" : "NO");
  }
}

bool WriteJson(const Options& options, const std::string& device, double copy_rate, bool complete,
               const std::vector<Row>& rows) {
  std::FILE* out = std::fopen(options.json.c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "kernels: cannot write '%s'\n", options.json.c_str());
    return false;
  }
  std::fprintf(out, "{\"part\":\"kernels\",\"device\":\"%s\",\"rehearsal\":%s,\"complete\":%s,",
               device.c_str(), options.cpu ? "true" : "false", complete ? "true" : "false");
  std::fprintf(out, "\"copy_bytes_per_second\":%.6g,\"rows\":[", copy_rate);
  const char* comma = "";
  for (const Row& row : rows) {
    std::fprintf(out,
                 "%s\n {\"kernel\":\"%s\",\"seconds\":%.6g,\"unit\":\"%s\",\"rate\":%.6g,"
                 "\"compared\":%.6g,\"bound\":%.6g,\"passed\":%s}",
                 comma, row.name.c_str(), row.seconds, row.bandwidth ? "bytes/s" : "flop/s",
                 row.rate, row.compared, row.judged ? row.bound : 0,
                 !row.judged  ? "null"
                 : row.passed ? "true"
                              : "false");
    comma = ",";
  }
  std::fprintf(out, "\n]}\n");
  return std::fclose(out) == 0;
}

int Run(const Options& options, const std::vector<Case>& cases, Machine* machine) {
  const double deadline = Now() + options.seconds;
  double copy_rate = 0;
  Status status = machine->CopyRate(options.cpu ? kSmallCopyBytes : kCopyBytes, &copy_rate);
  std::vector<Row> rows;
  bool complete = true;
  for (const Case& c : cases) {
    if (!status.ok()) break;
    if (!machine->Has(c.op)) {
      std::fprintf(stderr, "kernels: %s: no kernel on this device\n", c.name.c_str());
      continue;
    }
    if (Now() > deadline) {
      complete = false;
      break;
    }
    status = MeasureCase(c, copy_rate, machine, &rows.emplace_back());
  }
  if (!status.ok()) {
    std::fprintf(stderr, "kernels: %s\n", status.message.c_str());
    return 1;
  }
  if (machine->has_wgmma() && complete) {
    // What has been measured is told before: nothing more would be, should these kernels hang.
    PrintTable(machine->name(), copy_rate, rows);
    std::printf("\nagain, with attention on wgmma; the faster of the two is judged\n\n");
    std::fflush(stdout);
    status = MeasureWgmma(cases, deadline, machine, &rows);
    if (!status.ok()) {
      std::fprintf(stderr, "kernels: %s\n", status.message.c_str());
      return 1;
    }
  }
  PrintTable(machine->name(), copy_rate, rows);
  if (!complete) std::printf("out of time after %zu of %zu cases\n", rows.size(), cases.size());
  if (options.cpu) std::printf("a rehearsal on the CPU: nothing here is about GPUs\n");
  if (!options.json.empty() && !WriteJson(options, machine->name(), copy_rate, complete, rows)) {
    return kWrongUsage;
  }
  const bool passed =
      std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.passed; });
  return passed && complete && !rows.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) return kWrongUsage;
  std::vector<Case> cases = AllCases(/*small=*/options.cpu);
  std::erase_if(cases,
                [&](const Case& c) { return c.name.find(options.filter) == std::string::npos; });
  if (options.list) {
    for (const Case& c : cases) std::printf("%s\n", c.name.c_str());
    return 0;
  }
  std::unique_ptr<Machine> machine;
  const Status status = options.cpu ? OpenCpu(&machine) : OpenGpu(&machine);
  if (!status.ok()) {
    std::fprintf(stderr, "kernels: %s\n", status.message.c_str());
    return options.cpu ? kWrongUsage : kNoGpu;
  }
  return Run(options, cases, machine.get());
}

}  // namespace
}  // namespace terrace::kernels::bench

int main(int argc, char** argv) { return terrace::kernels::bench::Main(argc, argv); }
