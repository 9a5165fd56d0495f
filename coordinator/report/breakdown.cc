// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/breakdown.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "coordinator/report/stages.h"

namespace terrace {
namespace {

constexpr size_t kStagesMost = 32;
constexpr double kLeft = 74;

StageTime Of(const Prepared& prepared, int index) {
  const SimulatedStage& simulated = prepared.simulation.stages[index];
  StageTime time{.stage = simulated.stage, .parts = {}};
  for (const PhaseStyle& style : PhaseStyles()) {
    TimePart part{style.name, style.colour, 0};
    for (int phase = 0; phase < v1::Phase_ARRAYSIZE; ++phase) {
      if (StyleOf(static_cast<v1::Phase>(phase)).phase == style.phase)
        part.seconds += simulated.phase_seconds[phase];
    }
    time.parts.push_back(std::move(part));
  }
  time.parts.push_back(
      {"waits for communication", "#9b5fa8", simulated.exposed_communication_seconds});
  time.parts.push_back({"waits for offload", "#7a5230", simulated.exposed_offload_seconds});
  time.parts.push_back({"bubble", "#dfe4e8", simulated.bubble_seconds});
  time.parts.push_back({"loading", "#8d969f", simulated.loading_seconds});
  return time;
}

double Sum(const StageTime& stage) {
  double seconds = 0;
  for (const TimePart& part : stage.parts) seconds += part.seconds;
  return seconds;
}

}  // namespace

std::vector<StageTime> BreakDown(const Prepared& prepared) {
  std::vector<StageTime> stages;
  for (int i = 0; i < static_cast<int>(prepared.programs.size()); ++i) {
    stages.push_back(Of(prepared, i));
  }
  for (size_t part = stages.empty() ? 0 : stages[0].parts.size(); part-- > 0;) {
    const bool none = std::all_of(stages.begin(), stages.end(), [part](const StageTime& stage) {
      return stage.parts[part].seconds <= 0;
    });
    if (!none) continue;
    for (StageTime& stage : stages) stage.parts.erase(stage.parts.begin() + static_cast<int>(part));
  }
  return stages;
}

Picture BreakdownChart(const Prepared& prepared) {
  const std::vector<StageTime> stages = BreakDown(prepared);
  const std::set<int> drawn = EvenlyChosen(static_cast<int>(stages.size()), kStagesMost);
  const double height = drawn.size() > 8 ? 13 : 22;
  std::vector<Swatch> swatches;
  for (const TimePart& part : stages.at(0).parts) swatches.push_back({part.name, part.colour});
  Picture picture = Legend(swatches);
  double y = picture.height + 6;
  for (const int index : drawn) {
    const StageTime& stage = stages[index];
    const double all = std::max(Sum(stage), 1e-12);
    picture.body +=
        TextAt(0, y + height / 2 + 4, Anchor::kStart, absl::StrCat("stage ", stage.stage), "head");
    double x = kLeft;
    for (const TimePart& part : stage.parts) {
      const double width = (kPictureWidth - kLeft) * part.seconds / all;
      const std::string share = absl::StrFormat("%.1f %%", 100 * part.seconds / all);
      picture.body += RectAt(x, y, width, height, absl::StrCat("fill=\"", part.colour, "\""),
                             absl::StrCat(part.name, ": ", SecondsText(part.seconds), ", ", share));
      if (width > TextWidth(share) + 6) {
        const bool dark = part.colour == "#7a5230" || part.colour == "#9b5fa8";
        picture.body += absl::StrFormat(
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"small\"%s>%s</text>\n",
            x + width / 2, y + height / 2 + 3.5, dark ? " style=\"fill:#fff\"" : "", share);
      }
      x += width;
    }
    y += height + 4;
  }
  picture.height = y;
  return picture;
}

}  // namespace terrace
