// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/validate_optimizer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace terrace {
namespace {

// A key that some values of another key alone give a meaning to.
struct ReadBy {
  std::string_view key;
  std::vector<std::string> values;
};

void CheckReadBy(SpecReader& reader, std::string_view chooser, const std::string& chosen,
                 const std::vector<ReadBy>& table) {
  for (const ReadBy& row : table) {
    if (!reader.Has(std::string(row.key))) continue;
    if (std::find(row.values.begin(), row.values.end(), chosen) != row.values.end()) continue;
    reader.Problem(
        std::string(row.key), "a value",
        absl::StrCat("left out with ", Absl(chooser), " ", chosen, ", which does not read it"),
        absl::StrCat(Absl(chooser), " ", absl::StrJoin(row.values, " or ")));
  }
}

bool IsPlainSgd(const v1::OptimizerSpec& optimizer) {
  return optimizer.name() == "sgd" && optimizer.momentum() == 0;
}

bool IsFactored(const v1::OptimizerSpec& optimizer) {
  return optimizer.name() == "adafactor" || optimizer.name() == "came";
}

void CheckRule(SpecReader& reader, const v1::OptimizerSpec& optimizer) {
  CheckReadBy(reader, "train.optimizer.name", optimizer.name(),
              {{"train.optimizer.betas", {"adamw", "adam", "lion", "muon", "came"}},
               {"train.optimizer.epsilon", {"adamw", "adam", "muon", "adafactor", "came"}},
               {"train.optimizer.beta1", {"adafactor"}},
               {"train.optimizer.beta2_decay", {"adafactor"}},
               {"train.optimizer.beta3", {"came"}},
               {"train.optimizer.error_epsilon", {"came"}},
               {"train.optimizer.clip_threshold", {"adafactor", "came"}},
               {"train.optimizer.scale_parameter", {"adafactor"}},
               {"train.optimizer.least_scale", {"adafactor"}},
               {"train.optimizer.relative_step", {"adafactor"}},
               {"train.optimizer.momentum", {"sgd", "muon"}},
               {"train.optimizer.nesterov", {"sgd"}},
               {"train.optimizer.ns_steps", {"muon"}},
               {"train.optimizer.adjust_lr", {"muon"}}});
  if (!optimizer.nesterov() || !IsPlainSgd(optimizer)) return;
  reader.Problem("train.optimizer.nesterov", "true",
                 "false without train.optimizer.momentum, along which it looks ahead",
                 "momentum 0.9");
}

// Refuses a rate or schedule beside relative_step, and a least scale without a scale.
void CheckFactored(SpecReader& reader, const v1::OptimizerSpec& optimizer) {
  if (optimizer.name() != "adafactor") return;
  if (reader.Has("train.optimizer.least_scale") && !optimizer.scale_parameter()) {
    reader.Problem("train.optimizer.least_scale", "a value",
                   "left out with train.optimizer.scale_parameter false, which does not read it",
                   "scale_parameter: true");
  }
  if (!optimizer.relative_step()) return;
  for (const char* key :
       {"train.optimizer.lr", "train.schedule.name", "train.schedule.warmup_steps",
        "train.schedule.warmup_tokens", "train.schedule.warmup_ratio", "train.schedule.initial_lr",
        "train.schedule.min_lr", "train.schedule.decay_steps", "train.schedule.decay",
        "train.schedule.power", "train.schedule.cycles"}) {
    if (!reader.Has(key)) continue;
    reader.Problem(key, "a value",
                   "left out with train.optimizer.relative_step, by which the learning rate "
                   "follows from the step alone",
                   "relative_step: false");
  }
}

// Defaults of the rule's authors, and nothing of rules that are not the job's.
void SetFactored(const SpecReader& reader, v1::OptimizerSpec* optimizer) {
  constexpr double kEpsilon = 1e-30, kBeta1 = 0.9, kBeta2 = 0.999;
  const bool adafactor = optimizer->name() == "adafactor", came = optimizer->name() == "came";
  if ((adafactor || came) && !reader.Has("train.optimizer.epsilon"))
    optimizer->set_epsilon(kEpsilon);
  if (adafactor) {
    if (!reader.Has("train.optimizer.beta1")) optimizer->set_beta1(0);
    optimizer->clear_beta2();
  } else {
    optimizer->clear_beta2_decay();
    optimizer->clear_scale_parameter();
    optimizer->clear_least_scale();
    optimizer->clear_relative_step();
  }
  if (came && !reader.Has("train.optimizer.betas")) {
    optimizer->set_beta1(kBeta1);
    optimizer->set_beta2(kBeta2);
  }
  if (!came) {
    optimizer->clear_beta3();
    optimizer->clear_error_epsilon();
  }
  if (!adafactor && !came) optimizer->clear_clip_threshold();
}

void CheckRounding(SpecReader& reader, const v1::TrainSpec& train) {
  const std::string& precision = train.precision();
  if (!train.optimizer().stochastic_rounding()) return;
  for (const v1::PrecisionRule& rule : train.precision_rules()) {
    const bool is_exact = rule.precision() == "fp32" || rule.precision() == "tf32";
    if (!is_exact || rule.where() == "norms") continue;  // norms are in fp32 whatever else is
    reader.Problem(absl::StrCat("train.precision.layers.", rule.where()), rule.precision(),
                   "bf16 or fp8 with train.optimizer.stochastic_rounding, which keeps no weights "
                   "in fp32",
                   "bf16");
  }
  if (precision == "bf16" || precision == "fp8") return;
  reader.Problem("train.optimizer.stochastic_rounding", "true",
                 absl::StrCat("false with train.precision ", precision,
                              ", whose products would read weights rounded to bf16"),
                 "train.precision bf16 or fp8");
}

// Refuses what no rule of whole matrices or tensors can be combined with, and a group's rule
// without one.
void CheckWholeMatrices(SpecReader& reader, const v1::JobSpec& spec) {
  const v1::OptimizerSpec& optimizer = spec.train().optimizer();
  const bool matrices = optimizer.name() == "muon", whole = matrices || IsFactored(optimizer);
  for (const v1::ParameterGroup& group : optimizer.groups()) {
    if (group.rule().empty() || matrices) continue;
    reader.Problem(absl::StrCat("train.optimizer.groups.", group.match(), ".rule"), group.rule(),
                   absl::StrCat("left out with train.optimizer.name ", optimizer.name(),
                                ", which updates all tensors alike"),
                   "train.optimizer.name muon");
  }
  if (whole && spec.layout().zero() > 2) {
    reader.Problem(
        "layout.zero", absl::StrCat(spec.layout().zero()),
        absl::StrCat("0, 1 or 2 with train.optimizer.name ", optimizer.name(), ", which updates ",
                     matrices ? "matrices" : "tensors", " as a whole"),
        "layout.zero 1");
  }
  if (!whole || !optimizer.stochastic_rounding()) return;
  reader.Problem("train.optimizer.stochastic_rounding", "true",
                 absl::StrCat("false with train.optimizer.name ", optimizer.name(),
                              ", which needs fp32 master weights"),
                 "train.optimizer.name adamw");
}

// `allowed`: formats.allow.moments, of which f32 needs no leave.
void CheckMoments(SpecReader& reader, const v1::OptimizerSpec& optimizer, const char* key,
                  const std::string& format, bool allowed) {
  if (reader.Has(key) && IsPlainSgd(optimizer)) {
    reader.Problem(
        key, format,
        "left out with train.optimizer.name sgd without momentum, which keeps no moments",
        "train.optimizer.momentum 0.9, or another optimizer");
  }
  if (reader.Has(key) && optimizer.name() == "adafactor" && optimizer.beta1() == 0) {
    reader.Problem(key, format,
                   "left out with train.optimizer.name adafactor without beta1, which keeps no "
                   "moments of the size of the weights",
                   "train.optimizer.beta1 0.9");
    return;
  }
  if ((optimizer.name() == "muon" || IsFactored(optimizer)) && format == "int8") {
    reader.Problem(key, "int8",
                   absl::StrCat("f32 or bf16 with train.optimizer.name ", optimizer.name()),
                   "bf16");
    return;
  }
  if (!optimizer.stochastic_rounding() || format != "int8") return;
  reader.Problem(key, "int8",
                 absl::StrCat(allowed ? "bf16" : "f32 or bf16",
                              " with train.optimizer.stochastic_rounding, which does not support "
                              "int8 blocks"),
                 "bf16");
}

void CheckSchedule(SpecReader& reader, const v1::TrainSpec& train) {
  const v1::ScheduleSpec& schedule = train.schedule();
  CheckReadBy(reader, "train.schedule.name", schedule.name(),
              {{"train.schedule.decay_steps", {"wsd"}},
               {"train.schedule.decay", {"wsd"}},
               {"train.schedule.power", {"polynomial"}},
               {"train.schedule.cycles", {"cosine_restarts"}}});
  if (schedule.warmup_steps() > train.steps()) {
    const bool in_tokens = schedule.warmup_tokens() > 0;
    reader.Problem(in_tokens ? "train.schedule.warmup_tokens" : "train.schedule.warmup_steps",
                   absl::StrCat(schedule.warmup_steps(), in_tokens ? " steps of them" : ""),
                   absl::StrCat("at most train.steps ", train.steps()));
  } else if (schedule.warmup_steps() + schedule.decay_steps() > train.steps()) {
    reader.Problem("train.schedule.decay_steps", absl::StrCat(schedule.decay_steps()),
                   absl::StrCat("at most the ", train.steps() - schedule.warmup_steps(),
                                " steps that the warm-up leaves of train.steps"),
                   absl::StrCat(train.steps() - schedule.warmup_steps()));
  }
  const double peak = train.optimizer().lr();
  if (schedule.min_lr() > peak) {
    reader.Problem("train.schedule.min_lr", absl::StrCat(schedule.min_lr()),
                   absl::StrCat("at most train.optimizer.lr ", peak));
  }
  if (schedule.initial_lr() > peak) {
    reader.Problem("train.schedule.initial_lr", absl::StrCat(schedule.initial_lr()),
                   absl::StrCat("at most train.optimizer.lr ", peak));
  }
  if (schedule.initial_lr() > 0 && schedule.warmup_steps() == 0) {
    reader.Problem("train.schedule.initial_lr", absl::StrCat(schedule.initial_lr()),
                   "left out without train.schedule.warmup_steps, whose first step it belongs to",
                   "warmup_steps");
  }
  if (schedule.name() == "exponential" && !(schedule.min_lr() > 0)) {
    reader.Problem("train.schedule.min_lr", absl::StrCat(schedule.min_lr()),
                   "above 0 with train.schedule.name exponential, which falls to it by the same "
                   "factor each step",
                   absl::StrCat(peak / 100));
  }
}

}  // namespace

void ValidateOptimizer(SpecReader& reader, v1::JobSpec* job) {
  constexpr double kMuonMomentum = 0.95;  // of its authors
  v1::OptimizerSpec* own = job->mutable_train()->mutable_optimizer();
  if (own->name() == "muon" && !reader.Has("train.optimizer.momentum"))
    own->set_momentum(kMuonMomentum);
  SetFactored(reader, own);
  const v1::JobSpec& spec = *job;
  const v1::OptimizerSpec& optimizer = spec.train().optimizer();
  CheckRule(reader, optimizer);
  CheckFactored(reader, optimizer);
  CheckWholeMatrices(reader, spec);
  CheckRounding(reader, spec.train());
  CheckMoments(reader, optimizer, "formats.moments", spec.formats().moments(), /*allowed=*/false);
  CheckMoments(reader, optimizer, "formats.allow.moments", spec.formats().allow().moments(),
               /*allowed=*/true);
  CheckSchedule(reader, spec.train());
}

}  // namespace terrace
