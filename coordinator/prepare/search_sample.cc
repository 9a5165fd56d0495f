// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search_sample.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "proto/caching_need.h"

namespace terrace {
namespace {

double Sum(const Simulation& simulation, double SimulatedStage::*seconds) {
  double sum = 0;
  for (const SimulatedStage& stage : simulation.stages) sum += stage.*seconds;
  return sum;
}

// What each micro-batch beyond the sample adds, `times` as many as lie between its two steps.
void Extrapolate(const Simulation& shorter, double times, Simulation* simulation) {
  const auto of_step = [&](double SimulatedStage::*seconds) {
    const double sum = Sum(*simulation, seconds);
    return sum + times * (sum - Sum(shorter, seconds));
  };
  const double compute = of_step(&SimulatedStage::compute_seconds);
  const double bubble = std::max(0.0, of_step(&SimulatedStage::bubble_seconds));
  if (compute > 0) simulation->bubble_ratio = bubble / compute;
  const auto field = [&](double Simulation::*seconds) {
    simulation->*seconds += times * (simulation->*seconds - shorter.*seconds);
  };
  field(&Simulation::step_seconds);
  field(&Simulation::compute_seconds);
  field(&Simulation::exposed_communication_seconds);
  field(&Simulation::exposed_offload_seconds);
}

}  // namespace

absl::StatusOr<Evaluated> Sample(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                 const v1::Layout& layout, const SampleSizes& sizes,
                                 int64_t instructions_max) {
  Evaluated evaluated = {.layout = layout};
  const auto compile = [&](int64_t micro_batches) {
    return CompileLayout(spec, model, budget, layout, micro_batches, /*search_packings=*/false,
                         instructions_max);
  };
  if (sizes.longer == 0) {
    ASSIGN_OR_RETURN(evaluated.programs, compile(layout.micro_batches()));
  } else {
    absl::StatusOr<std::vector<v1::Program>> shorter;
    {
      const std::jthread beside([&] { shorter = compile(sizes.shorter); });
      ASSIGN_OR_RETURN(evaluated.programs, compile(sizes.longer));
    }
    RETURN_IF_ERROR(shorter.status());
    evaluated.shorter = *std::move(shorter);
  }
  CountSampleBytes(spec, budget, &evaluated);
  return evaluated;
}

double TimesBeyond(const Evaluated& sample) {
  const double longer = sample.programs[0].rules().micro_batches();
  const double shorter = sample.shorter[0].rules().micro_batches();
  return (sample.layout.micro_batches() - longer) / (longer - shorter);
}

int64_t MissingInputBytes(const Evaluated& evaluated, size_t stage) {
  const v1::Program& program = evaluated.programs[stage];
  int64_t inputs = 0;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.class_() == v1::INPUT) inputs += buffer.bytes();
  }
  const int64_t compiled = std::max<int64_t>(1, program.rules().micro_batches());
  const int64_t missing = evaluated.layout.micro_batches() - compiled;
  return (inputs + compiled - 1) / compiled * missing;
}

int64_t StageBytes(const Evaluated& evaluated, size_t stage) {
  const v1::Program& program = evaluated.programs[stage];
  return ReservedBytesNeeded(program, v1::DEVICE) + program.external_bytes() +
         MissingInputBytes(evaluated, stage);
}

void CountSampleBytes(const v1::JobSpec& spec, const Budget& budget, Evaluated* evaluated) {
  CountBytes(spec, budget, evaluated);
  for (size_t stage = 0; stage < evaluated->programs.size(); ++stage) {
    evaluated->device_bytes = std::max(evaluated->device_bytes, StageBytes(*evaluated, stage));
  }
  evaluated->fits = Excesses(spec, budget, *evaluated).empty();
}

bool NearlyFits(const Evaluated& one, const Budget& budget) {
  constexpr double kPackingSaves = 0.08;
  return static_cast<double>(one.device_bytes) * (1 - kPackingSaves) <=
         static_cast<double>(budget.device_memory_bytes);
}

absl::Status SimulateStep(const v1::HardwareProfile& profile, Evaluated* evaluated) {
  if (evaluated->shorter.empty()) {
    ASSIGN_OR_RETURN(evaluated->simulation, Simulate(evaluated->programs, "train", profile));
    return absl::OkStatus();
  }
  absl::StatusOr<Simulation> shorter;
  {
    const std::jthread beside([&] { shorter = Simulate(evaluated->shorter, "train", profile); });
    ASSIGN_OR_RETURN(evaluated->simulation, Simulate(evaluated->programs, "train", profile));
  }
  RETURN_IF_ERROR(shorter.status());
  Extrapolate(*shorter, TimesBeyond(*evaluated), &evaluated->simulation);
  return absl::OkStatus();
}

}  // namespace terrace
