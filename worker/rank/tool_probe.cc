// terrace-rank probe: measures what plans compute with, on this machine, in about 150 ms: matrix
// products, memory, the overhead of an instruction, the link between two ranks of one host.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/cpu/registry.h"
#include "proto/v1/plan.pb.h"
#include "worker/comm/communicator.h"
#include "worker/comm/file_rendezvous.h"
#include "worker/memory/arena.h"
#include "worker/rank/environment.h"
#include "worker/rank/tool_output.h"
#include "worker/rank/tools.h"

namespace terrace {
namespace {

using kernels::DType;
using kernels::Op;

constexpr int64_t kStreamElements = 8 << 20;  // larger than caches
constexpr int64_t kLinkElements = 1 << 20;
constexpr int kOverheadCalls = 200;
constexpr int kLatencyCalls = 21;
constexpr int kBandwidthCalls = 3;
constexpr int kMatmulOperands = 6;

struct ProbeOptions {
  int threads = 0;
  std::string output = "text";
};

kernels::TensorView View(DType dtype, std::initializer_list<int64_t> shape, std::byte* data) {
  kernels::TensorView view;
  view.dtype = dtype;
  for (const int64_t size : shape) view.size[view.dims++] = size;
  view.row_stride = view.RowElements();
  view.data = data;
  return view;
}

// Hands out pieces of one arena.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Reserve(int64_t bytes, int threads) {
    ASSIGN_OR_RETURN(Arena arena, Arena::Reserve("terrace-arena-probe", bytes));
    arena.Touch(threads);
    return Scratch(std::move(arena));
  }
  std::byte* Take(int64_t bytes) {
    std::byte* piece = arena_.data() + used_;
    used_ += (bytes + 255) / 256 * 256;
    return piece;
  }
  void Reset() { used_ = 0; }

 private:
  explicit Scratch(Arena arena) : arena_(std::move(arena)) {}
  Arena arena_;
  int64_t used_ = 0;
};

class Probe {
 public:
  Probe(int threads, Scratch* scratch) : threads_(threads), scratch_(scratch) {}

  double MatmulFlopsPerSecond(DType dtype, kernels::MatmulPrecision precision) {
    constexpr int64_t kRows = 1024, kColumns = 1536, kInner = 768;
    scratch_->Reset();
    const auto bytes = [dtype](int64_t n) { return n * kernels::SizeOf(dtype); };
    std::vector<kernels::TensorView> operands(kMatmulOperands);
    operands[0] = View(dtype, {kRows, kInner}, scratch_->Take(bytes(kRows * kInner)));
    operands[1] = View(DType::kF32, {kInner, kColumns}, scratch_->Take(kInner * kColumns * 4));
    operands[2] = View(dtype, {kRows, kColumns}, scratch_->Take(bytes(kRows * kColumns)));
    const kernels::OpAttrs attrs = kernels::MatmulAttrs{.precision = precision};
    const double seconds = BestOf(5, Op::kMatmul, attrs, operands);
    return 2.0 * kRows * kColumns * kInner / seconds;
  }

  // y += x: two reads and one write an element.
  double MemoryBytesPerSecond() {
    scratch_->Reset();
    const std::vector<kernels::TensorView> operands = {
        View(DType::kF32, {kStreamElements}, scratch_->Take(kStreamElements * 4)),
        View(DType::kF32, {kStreamElements}, scratch_->Take(kStreamElements * 4))};
    return 12.0 * kStreamElements / BestOf(3, Op::kAdd, kernels::NoAttrs{}, operands);
  }

  double OverheadSeconds() {
    scratch_->Reset();
    const std::vector<kernels::TensorView> operands = {View(DType::kF32, {4}, scratch_->Take(16)),
                                                       View(DType::kF32, {4}, scratch_->Take(16))};
    const int64_t start_ns = clock_.MonotonicNanos();
    for (int i = 0; i < kOverheadCalls; ++i) Call(Op::kAdd, kernels::NoAttrs{}, operands);
    return (clock_.MonotonicNanos() - start_ns) * 1e-9 / kOverheadCalls;
  }

 private:
  void Call(Op op, const kernels::OpAttrs& attrs,
            const std::vector<kernels::TensorView>& operands) {
    kernels::cpu::Find(op)(attrs, operands, context_);
  }

  // One call to warm up, then the fastest of `calls`: interruptions by others are not the machine's
  // rate.
  double BestOf(int calls, Op op, const kernels::OpAttrs& attrs,
                const std::vector<kernels::TensorView>& operands) {
    const std::vector<kernels::TensorShape> shapes(operands.begin(), operands.end());
    context_.threads = threads_;
    context_.workspace_bytes = kernels::WorkspaceBytes(op, attrs, shapes, threads_);
    context_.workspace = scratch_->Take(context_.workspace_bytes);
    Call(op, attrs, operands);
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < calls; ++i) {
      const int64_t start_ns = clock_.MonotonicNanos();
      Call(op, attrs, operands);
      best_ns = std::min(best_ns, clock_.MonotonicNanos() - start_ns);
    }
    return best_ns * 1e-9;
  }

  const int threads_;
  Scratch* const scratch_;
  const SystemClock clock_;
  kernels::Context context_;
};

struct LinkRates {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

// Ascending; empty when the group is broken.
std::vector<double> TimeSums(Communicator* group, std::vector<float>& data, int64_t elements,
                             int calls) {
  const SystemClock clock;
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const int64_t start_ns = clock.MonotonicNanos();
    if (!group->AllReduce(data.data(), elements, ReduceType::kF32).ok()) return {};
    seconds.push_back((clock.MonotonicNanos() - start_ns) * 1e-9);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

LinkRates TimeLink(Communicator* group) {
  std::vector<float> data(kLinkElements, 0.0f);
  const std::vector<double> small = TimeSums(group, data, 1, kLatencyCalls),
                            large = TimeSums(group, data, kLinkElements, kBandwidthCalls);
  if (small.empty() || large.empty()) return {};
  const double latency = small[small.size() / 2], seconds = large.front();
  // A ring over two ranks sends each byte once. A busy machine may have stretched the small sums.
  return {kLinkElements * 4 / std::max(seconds - latency, seconds / 2), latency};
}

// Two ranks of this host, as threads.
LinkRates MeasureLink() {
  std::string folder = (std::filesystem::temp_directory_path() / "terrace-probe-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return {};
  FileRendezvous store(folder);
  const auto join = [&store](int rank) -> LinkRates {
    auto group = ConnectGloo({.name = "probe",
                              .rank = rank,
                              .size = 2,
                              .interface_address = "127.0.0.1",
                              .timeout_ms = 5000},
                             &store);
    return group.ok() ? TimeLink(group->get()) : LinkRates{};
  };
  LinkRates rates;
  {
    std::jthread peer([&join] { join(1); });
    rates = join(0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return rates;
}

absl::StatusOr<v1::HardwareProfile> Measure(int threads) {
  if (const kernels::Status prepared = kernels::cpu::Prepare(threads); !prepared.ok()) {
    return absl::InternalError(prepared.message);
  }
  ASSIGN_OR_RETURN(Scratch scratch, Scratch::Reserve(96 << 20, threads));
  Probe probe(threads, &scratch);
  v1::HardwareProfile profile;
  profile.set_name(kernels::cpu::InstructionSet());
  profile.set_f32_flops_per_second(
      probe.MatmulFlopsPerSecond(DType::kF32, kernels::MatmulPrecision::kF32));
  profile.set_bf16_flops_per_second(
      probe.MatmulFlopsPerSecond(DType::kBF16, kernels::MatmulPrecision::kBF16));
  profile.set_memory_bytes_per_second(probe.MemoryBytesPerSecond());
  profile.set_instruction_overhead_seconds(probe.OverheadSeconds());
  const LinkRates link = MeasureLink();
  profile.set_link_bytes_per_second(link.bytes_per_second);
  profile.set_link_latency_seconds(link.latency_seconds);
  profile.set_measured(true);
  return profile;
}

void Print(const v1::HardwareProfile& profile, bool json) {
  std::string text;
  if (json) {
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    if (!google::protobuf::util::MessageToJsonString(profile, &text, options).ok()) return;
  } else {
    text = absl::StrFormat(
        "%s: f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, memory %.1f GB/s, link %.2f GB/s, %.0f us",
        profile.name(), profile.f32_flops_per_second() * 1e-9,
        profile.bf16_flops_per_second() * 1e-9, profile.memory_bytes_per_second() * 1e-9,
        profile.link_bytes_per_second() * 1e-9, profile.link_latency_seconds() * 1e6);
  }
  std::printf("%s\n", text.c_str());
}

int Run(const ProbeOptions& options, char** argv) {
  const int threads =
      options.threads > 0 ? options.threads : std::max<int>(1, std::thread::hardware_concurrency());
  RestartWithEnvironment(argv, threads, false);
  const bool json = options.output == "json";
  const auto profile = Measure(threads);
  if (!profile.ok()) {
    return FailTool({.format = json ? ToolFormat::kJson : ToolFormat::kTable,
                     .out = std::cout,
                     .err = std::cerr},
                    profile.status());
  }
  Print(*profile, json);
  return 0;
}

}  // namespace

void AddProbeTool(CLI::App* app, char** argv, int* exit_code) {
  auto options = std::make_shared<ProbeOptions>();  // lives as long as the callback
  CLI::App* probe = app->add_subcommand("probe", "Measure this machine for plans");
  probe->add_option("--threads", options->threads, "Threads of one rank; 0: all cores")
      ->check(CLI::Range(0, 4096));
  probe->add_option("-o", options->output, "text or json")
      ->check(CLI::IsMember({"text", "json", "table"}));
  probe->callback([options, argv, exit_code] { *exit_code = Run(*options, argv); });
}

}  // namespace terrace
