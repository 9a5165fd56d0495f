// Every op of the CUDA backend on a real GPU: fresh random inputs, poisoned outputs, fences around
// every operand, the error against the reference in double, finite differences of gradients, and
// the same bytes when run again. Prints a table; --json writes what it says.
//
// Exit codes: 0 all as they must be, 1 not, 2 wrong usage, 77 no GPU here (one line says why).
// Needs nothing but the CUDA toolkit; tests/gpu/run.sh builds and runs it.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <variant>

#include "kernels/cuda/registry.h"
#include "tests/conformance/op_judge.h"
#include "tests/gpu/gpu_backend.h"
#include "tests/gpu/report.h"

namespace terrace::kernels::conformance {
namespace {

constexpr int kWrongUsage = 2;
constexpr int kNoGpu = 77;

struct Options {
  std::string filter;    // part of a case's name
  std::string json;      // a file
  uint64_t seed = 0;     // 0: from the machine's entropy
  int64_t elements = 0;  // at most, of all operands of a case; 0: any number
  int rounds = 2;
  double seconds = 400;
  bool brief = false;  // each case once, against the reference alone
  bool list = false;
  bool wgmma = false;  // attention alone, as sm_90a alone computes it
};

// False when the arguments are wrong, after saying so.
bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--list" || name == "--brief") {
      (name == "--list" ? options->list : options->brief) = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (value != nullptr && name == "--attention" &&
        (std::strcmp(value, "mma") == 0 || std::strcmp(value, "wgmma") == 0)) {
      options->wgmma = std::strcmp(value, "wgmma") == 0;
    } else if (value != nullptr && name == "--filter") {
      options->filter = value;
    } else if (value != nullptr && name == "--json") {
      options->json = value;
    } else if (value != nullptr && name == "--seed") {
      options->seed = std::strtoull(value, nullptr, 10);
    } else if (value != nullptr && name == "--elements" && std::atoll(value) > 0) {
      options->elements = std::atoll(value);
    } else if (value != nullptr && name == "--rounds" && std::atoi(value) > 0) {
      options->rounds = std::atoi(value);
    } else if (value != nullptr && name == "--seconds" && std::atof(value) > 0) {
      options->seconds = std::atof(value);
    } else {
      std::fprintf(stderr,
                   "conformance: got '%s', must be --list, --brief, --filter PART, --json FILE, "
                   "--seed N, --rounds N, --elements N, --seconds N or --attention mma|wgmma\n",
                   name.c_str());
      return false;
    }
  }
  return true;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Add(const OpCase& op_case, const char* what, const Judgement& judgement, Report* report) {
  OpResult& result = report->ops[std::string(Name(op_case.op))];
  ++result.checks;
  result.worst = std::max(result.worst, judgement.worst);
  for (const std::string& complaint : judgement.complaints) {
    result.failures.push_back(op_case.name + " (" + what + "): " + complaint);
  }
}

int64_t Elements(const OpCase& op_case) {
  int64_t elements = 0;
  for (const TensorShape& shape : op_case.operands) elements += shape.Elements();
  return elements;
}

std::vector<OpCase> Chosen(std::vector<OpCase> cases, const Options& options) {
  std::erase_if(cases, [&](const OpCase& c) {
    return c.name.find(options.filter) == std::string::npos || cuda::Find(c.op) == nullptr ||
           (options.elements > 0 && Elements(c) > options.elements) ||
           (options.wgmma && !IsAttentionOfHalves(c));
  });
  return cases;
}

bool IsFp8(const OpCase& op_case) {
  const auto* matmul = std::get_if<MatmulAttrs>(&op_case.attrs);
  return matmul != nullptr && matmul->precision == MatmulPrecision::kFP8;
}

// What runs cases until the time is over or the device is lost.
class Run {
 public:
  Run(const Options& options, GpuBackend* gpu, Report* report)
      : deadline_(Now() + options.seconds), gpu_(gpu), report_(report) {}

  // False when nothing more can be run.
  template <typename Judge>
  bool Case(const OpCase& op_case, const char* what, Judge judge) {
    if (Now() > deadline_) {
      report_->out_of_time = true;
      return false;
    }
    const Judgement judgement = judge();
    Add(op_case, what, judgement, report_);
    if (judgement.ok() || !gpu_->Lost()) return true;
    report_->lost_in = op_case.name + " (" + what + ")";
    return false;
  }

 private:
  const double deadline_;
  GpuBackend* const gpu_;
  Report* const report_;
};

// Rounds in turn start operands where 16-byte accesses are possible and where they are not.
void RunAll(const Options& options, GpuBackend* gpu, Report* report) {
  std::vector<OpCase> cases = Chosen(AllCases(), options);
  // Jobs are refused there by name.
  if (!gpu->HasFp8()) std::erase_if(cases, IsFp8);
  const std::vector<OpCase> differentiable = Chosen(DifferentiableCases(), options);
  Run run(options, gpu, report);
  for (int round = 0; round < options.rounds; ++round) {
    const Backend backend = gpu->Runner(/*misaligned=*/round % 2 == 1, options.wgmma);
    const uint64_t seed = report->seed + static_cast<uint64_t>(round);
    const bool more = round == 0 && !options.brief;
    for (const OpCase& c : cases) {
      if (!run.Case(c, "reference", [&] { return JudgeAgainstReference(backend, c, seed); }))
        return;
      if (more && !run.Case(c, "again", [&] { return JudgeThreads(backend, c, seed); })) return;
    }
    for (const OpCase& c : differentiable) {
      if (!more) break;
      if (!run.Case(c, "slopes", [&] { return JudgeFiniteDifferences(backend, c, seed); })) return;
    }
  }
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) return kWrongUsage;
  if (options.list) {
    for (const OpCase& op_case : Chosen(AllCases(), options)) {
      std::printf("%s\n", op_case.name.c_str());
    }
    return 0;
  }
  GpuBackend gpu;
  const Status status = gpu.Open();
  if (!status.ok()) {
    std::fprintf(stderr, "conformance: %s\n", status.message.c_str());
    return kNoGpu;
  }
  if (options.wgmma && !gpu.has_wgmma()) {
    std::fprintf(stderr, "conformance: %s has no wgmma, which is sm_90a's alone\n",
                 gpu.device_name().c_str());
    return kNoGpu;
  }
  Report report;
  report.device = gpu.device_name();
  report.seed = options.seed != 0 ? options.seed : std::random_device()();
  for (int op = 1; op <= static_cast<int>(Op::kLastOp); ++op) {
    if (cuda::Find(static_cast<Op>(op)) != nullptr) continue;
    report.without_kernel.push_back(std::string(Name(static_cast<Op>(op))));
  }
  const double begin = Now();
  RunAll(options, &gpu, &report);
  report.seconds = Now() - begin;
  PrintReport(report);
  if (!options.json.empty() && !WriteJson(report, options.json)) return kWrongUsage;
  return Passed(report) ? 0 : 1;
}

}  // namespace
}  // namespace terrace::kernels::conformance

int main(int argc, char** argv) { return terrace::kernels::conformance::Main(argc, argv); }
