// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/offload_report.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "coordinator/layout/rules.h"
#include "coordinator/simulator/cache_reuse.h"
#include "coordinator/simulator/contention.h"
#include "coordinator/simulator/instruction_time.h"
#include "kernels/tensor_view.h"
#include "proto/program/loops.h"
#include "proto/program/op_codec.h"
#include "proto/program/played_program.h"

namespace terrace {
namespace {

constexpr double kSecondsPerDay = 86400;
// Of the step, that the offload may take at break-even: a tenth, but for a hundredth that first
// fetches and hand-overs between streams take, which the formula leaves out.
constexpr double kCost = 0.09;

const v1::Sequence* TrainSequence(const v1::Program& program) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() == "train") return &sequence;
  }
  return nullptr;
}

// Bytes that the copies of one kind move in a step.
int64_t CopiedBytes(const v1::Program& program, v1::CopyKind kind) {
  int64_t bytes = 0;
  const v1::Sequence* sequence = TrainSequence(program);
  if (sequence == nullptr) return 0;
  const LoopIndex index(*sequence);
  for (const v1::Instruction& instruction : sequence->instructions()) {
    if (!instruction.has_copy() || instruction.copy().kind() != kind) continue;
    const int64_t trips = index.TripsOf(static_cast<int>(instruction.id()));
    for (int i = 0; i < instruction.operands_size(); i += 2) {  // what is read
      const auto shape = DecodeShape(instruction.operands(i));
      if (shape.ok()) bytes += trips * shape->SpanBytes();
    }
  }
  return bytes;
}

// Of one step's passes; seconds.
struct PassSeconds {
  double compute = 0;  // alone
  double copies = 0;   // alone, of all streams together
  double on_host = 0;  // alone, what the host computes
  double busiest = 0;  // of the offload's streams, beside whatever ran
};

PassSeconds SecondsOfPasses(const v1::Program& program, const Simulation& simulation, size_t stage,
                            const InstructionTime& time, int64_t cache_bytes) {
  PassSeconds passes;
  const PlayedProgram played(&program, simulation.left_out);
  const v1::Program& list = played.program();
  const v1::Sequence* sequence = TrainSequence(list);
  if (sequence == nullptr) return passes;
  const std::vector<double> cached = CachedShares(list, *sequence, cache_bytes);
  const int train = played.IndexOf(*sequence);
  const LoopIndex index(program.sequences(train));
  std::set<uint32_t> streams;  // of the offload
  for (int i = 0; i < sequence->instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence->instructions(i);
    if (instruction.phase() == v1::OPTIMIZER_STEP) continue;
    const v1::StreamKind kind = list.streams(static_cast<int>(instruction.stream())).kind();
    // An iteration stands for those that are left out as well.
    const auto trips = static_cast<double>(index.TripsOf(played.PlayedAt(train, i).instruction));
    const double times = trips == 1 ? 1 : trips / (trips - static_cast<double>(played.left_out()));
    const double alone = times * time.Seconds(list, instruction, cached[i]).value_or(0);
    if (kind == v1::COMPUTE && instruction.has_compute()) passes.compute += alone;
    if (!instruction.has_copy() && kind != v1::HOST_COMPUTE) continue;
    streams.insert(instruction.stream());
    const bool crosses = instruction.has_copy() && instruction.copy().kind() != v1::NVME_LOAD &&
                         instruction.copy().kind() != v1::NVME_STORE;
    if (crosses) passes.copies += alone;
    if (kind == v1::HOST_COMPUTE && instruction.has_compute()) passes.on_host += alone;
  }
  for (const uint32_t stream : streams) {
    const SimulatedStream& of = simulation.stages[stage].streams[stream];
    passes.busiest = std::max(passes.busiest, of.busy_seconds - of.optimizer_seconds);
  }
  return passes;
}

// What the passes' computations take longer for what shares their cores.
double Stolen(const PassSeconds& passes, const Contention& contention, int stage) {
  const auto slower = [&](Work beside) {
    return 1 / contention.ComputeShare(stage, beside) -
           1 / contention.ComputeShare(stage, Work::kOther);
  };
  return passes.copies * slower(Work::kToHost) + passes.on_host * slower(Work::kHostCompute);
}

}  // namespace

std::optional<v1::NvmePlan> ReportNvme(const v1::JobSpec& spec, const Evaluated& chosen) {
  if (chosen.nvme_bytes == 0) return std::nullopt;
  v1::NvmePlan plan;
  for (const v1::Program& program : chosen.programs) {
    const int64_t written = CopiedBytes(program, v1::NVME_STORE);
    if (written < plan.write_bytes_per_step()) continue;
    plan.set_write_bytes_per_step(written);
    plan.set_read_bytes_per_step(CopiedBytes(program, v1::NVME_LOAD));
  }
  const double steps_per_day = kSecondsPerDay / std::max(1e-12, chosen.simulation.step_seconds);
  plan.set_write_bytes_per_day(static_cast<double>(plan.write_bytes_per_step()) * steps_per_day);
  const double ranks_per_node = std::max(
      1.0, static_cast<double>(chosen.layout.ranks()) / std::max<double>(1, chosen.layout.nodes()));
  const double endurance = spec.resources().nvme().endurance_bytes();
  if (endurance > 0 && plan.write_bytes_per_day() > 0) {
    plan.set_drive_life_days(endurance / (plan.write_bytes_per_day() * ranks_per_node));
  }
  return plan;
}

double BreakEvenTokens(const v1::HardwareProfile& profile, const Evaluated& chosen) {
  if (!IsOffloaded(chosen.layout)) return 0;
  const InstructionTime time(profile);
  const auto tokens = static_cast<double>(chosen.programs[0].rules().tokens_per_step());
  std::vector<const v1::Program*> programs;
  for (const v1::Program& program : chosen.programs) programs.push_back(&program);
  const Contention contention(profile, programs);
  double most = 0;
  for (size_t i = 0; i < chosen.programs.size(); ++i) {
    const SimulatedStage& stage = chosen.simulation.stages[i];
    const PassSeconds passes =
        SecondsOfPasses(chosen.programs[i], chosen.simulation, i, time, profile.cache_bytes());
    if (passes.compute <= 0) continue;
    const double stolen = Stolen(passes, contention, static_cast<int>(i));
    const double computed =
        passes.compute / contention.ComputeShare(static_cast<int>(i), Work::kOther);
    const double after = stage.exposed_optimizer_seconds;
    const double enough =
        std::max((1 - kCost) / kCost * (after + stolen), (1 - kCost) * (passes.busiest + after));
    most = std::max(most, enough / (computed / tokens));
  }
  return most;
}

absl::Status CheckDriveLife(const v1::JobSpec& spec, const v1::Plan& plan) {
  const v1::NvmeSpec& nvme = spec.resources().nvme();
  const double days = plan.nvme().drive_life_days();
  if (days == 0 || days >= nvme.min_drive_life_days()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "job '%s' would wear its drives out in %.4g days, resources.nvme.min_drive_life_days is "
      "%.6g: a rank writes %s a step, %.4g TB a day, and resources.nvme.endurance is %.6g TB; "
      "keep more off NVMe (layout.offload host, a smaller part on nvme), write less often for the "
      "same tokens (a larger train.global_batch), or use drives that endure more",
      spec.name(), days, nvme.min_drive_life_days(),
      FormatBytes(plan.nvme().write_bytes_per_step()), plan.nvme().write_bytes_per_day() * 1e-12,
      nvme.endurance_bytes() * 1e-12));
}

}  // namespace terrace
