// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/validate_course.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr int64_t kStepsMax = 1'000'000'000;

// Padding counts.
double TokensOfAStep(const v1::JobSpec& spec) {
  return static_cast<double>(spec.train().global_batch()) *
         static_cast<double>(spec.data().sequence_length());
}

int64_t StepsOf(int64_t tokens, const v1::JobSpec& spec) {
  const double steps = std::ceil(static_cast<double>(tokens) / TokensOfAStep(spec));
  return static_cast<int64_t>(std::min(steps, 2.0 * static_cast<double>(kStepsMax)));
}

// Returns the keys that the spec has.
std::vector<std::string> Written(const SpecReader& reader, const std::vector<std::string>& keys) {
  std::vector<std::string> written;
  for (const std::string& key : keys) {
    if (reader.Has(key)) written.push_back(key);
  }
  return written;
}

void TellTwice(SpecReader& reader, const std::vector<std::string>& written) {
  if (written.size() < 2) return;
  reader.Problem(written[1], "a value",
                 absl::StrCat("left out beside ", written[0], ", which says the same"), written[0]);
}

void SetSteps(SpecReader& reader, v1::JobSpec* spec) {
  const auto written = Written(reader, {"train.steps", "train.tokens"});
  v1::TrainSpec* train = spec->mutable_train();
  TellTwice(reader, written);
  if (train->tokens() == 0) return;
  train->set_steps(StepsOf(train->tokens(), *spec));
  if (train->steps() <= kStepsMax) return;
  reader.Problem("train.tokens", absl::StrCat(train->tokens()),
                 absl::StrCat("those of at most ", kStepsMax, " steps, of ", TokensOfAStep(*spec),
                              " tokens each"),
                 "a larger train.global_batch");
}

void SetWarmup(SpecReader& reader, v1::JobSpec* spec) {
  TellTwice(reader, Written(reader, {"train.schedule.warmup_steps", "train.schedule.warmup_tokens",
                                     "train.schedule.warmup_ratio"}));
  v1::ScheduleSpec* schedule = spec->mutable_train()->mutable_schedule();
  if (schedule->warmup_tokens() > 0)
    schedule->set_warmup_steps(StepsOf(schedule->warmup_tokens(), *spec));
  // As the Hugging Face Trainer rounds it.
  if (schedule->warmup_ratio() > 0) {
    schedule->set_warmup_steps(static_cast<int64_t>(
        std::ceil(schedule->warmup_ratio() * static_cast<double>(spec->train().steps()))));
  }
}

void CheckEarlyStop(SpecReader& reader, const v1::JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  const bool stops = train.early_stop().evaluations() > 0;
  if (!stops && train.early_stop().improvement() > 0) {
    reader.Problem("train.early_stop.improvement", absl::StrCat(train.early_stop().improvement()),
                   "accompanied by train.early_stop.evaluations", "evaluations: 3");
  }
  if (train.eval_every_steps() > 0) return;
  constexpr char kEvery[] = "accompanied by train.eval_every_steps, how often it is evaluated";
  if (stops) {
    reader.Problem("train.early_stop.evaluations", absl::StrCat(train.early_stop().evaluations()),
                   kEvery, "eval_every_steps: 100");
  }
  if (spec.checkpoint().keep_best())
    reader.Problem("checkpoint.keep_best", "true", kEvery, "eval_every_steps: 100");
}

}  // namespace

void ValidateCourse(SpecReader& reader, v1::JobSpec* spec) {
  SetSteps(reader, spec);
  SetWarmup(reader, spec);
  CheckEarlyStop(reader, *spec);
  if (!spec->checkpoint().keep_best() || spec->checkpoint().save() != "never") return;
  reader.Problem("checkpoint.keep_best", "true", "left out with checkpoint.save never",
                 "checkpoint.save auto");
}

}  // namespace terrace
