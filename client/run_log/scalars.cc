// SPDX-License-Identifier: Apache-2.0
#include "client/run_log/scalars.h"

namespace terrace {
namespace {

constexpr std::string_view kNames[] = {
    "train/loss",   "train/grad_norm",         "train/learning_rate", "train/loss_scale",
    "train/tokens", "train/tokens_per_second", "train/step_seconds",  "eval/loss",
    "eval/seconds", "checkpoint/seconds",      "checkpoint/bytes"};

}  // namespace

std::span<const std::string_view> ScalarNames() { return kNames; }

Point PointOf(const v1::JobEvent& event) {
  if (event.has_step()) {
    const v1::StepEvent& step = event.step();
    Point point{.step = step.step(),
                .scalars = {{"train/loss", step.loss()},
                            {"train/grad_norm", step.grad_norm()},
                            {"train/learning_rate", step.learning_rate()},
                            {"train/tokens", static_cast<double>(step.tokens())},
                            {"train/tokens_per_second", step.tokens_per_second()},
                            {"train/step_seconds", step.step_seconds()}}};
    if (step.loss_scale() > 0) point.scalars.push_back({"train/loss_scale", step.loss_scale()});
    return point;
  }
  if (event.has_eval()) {
    return {
        .step = event.eval().step(),
        .scalars = {{"eval/loss", event.eval().loss()}, {"eval/seconds", event.eval().seconds()}}};
  }
  if (event.has_checkpoint()) {
    return {.step = event.checkpoint().step(),
            .scalars = {{"checkpoint/seconds", event.checkpoint().seconds()},
                        {"checkpoint/bytes", static_cast<double>(event.checkpoint().bytes())}}};
  }
  return {};
}

}  // namespace terrace
