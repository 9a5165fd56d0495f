// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search_sample.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/prepare/sample_bytes.h"

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

int64_t TrainInstructions(const v1::Program& program) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() == "train") return sequence.instructions_size();
  }
  return 0;
}

}  // namespace

absl::StatusOr<Evaluated> Sample(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                 const v1::Layout& layout, const SampleSizes& sizes,
                                 int64_t instructions_max) {
  Evaluated evaluated = {.layout = layout};
  const auto compile = [&](int64_t micro_batches) {
    return CompileLayout(spec, model, budget, layout, micro_batches, instructions_max);
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

absl::Status CheckWholeStep(const Evaluated& sample) {
  const double times = TimesBeyond(sample);
  const auto whole = [times](int64_t longer, int64_t shorter) {
    return longer + std::llround(times * static_cast<double>(longer - shorter));
  };
  for (size_t stage = 0; stage < sample.programs.size(); ++stage) {
    const v1::Program& longer = sample.programs[stage];
    const v1::Program& shorter = sample.shorter[stage];
    RETURN_IF_ERROR(CheckStepLength(whole(longer.buffers_size(), shorter.buffers_size()),
                                    whole(TrainInstructions(longer), TrainInstructions(shorter))));
  }
  return absl::OkStatus();
}

double TimesBeyond(const Evaluated& sample) {
  const double longer = sample.programs[0].rules().micro_batches();
  const double shorter = sample.shorter[0].rules().micro_batches();
  return (sample.layout.micro_batches() - longer) / (longer - shorter);
}

int64_t StageBytes(const Evaluated& evaluated, size_t stage) {
  return BytesOf(evaluated, stage, v1::DEVICE);
}

void CountSampleBytes(const v1::JobSpec& spec, const Budget& budget, Evaluated* evaluated) {
  CountBytes(spec, budget, evaluated);
  for (size_t stage = 0; stage < evaluated->programs.size(); ++stage) {
    const auto most = [&](v1::Tier tier, int64_t* bytes) {
      *bytes = std::max(*bytes, BytesOf(*evaluated, stage, tier));
    };
    most(v1::DEVICE, &evaluated->device_bytes);
    most(v1::HOST, &evaluated->host_bytes);
    most(v1::NVME, &evaluated->nvme_bytes);
  }
  evaluated->fits = Excesses(spec, budget, *evaluated).empty();
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
