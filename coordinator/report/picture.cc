// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/picture.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "coordinator/report/alternatives_chart.h"
#include "coordinator/report/breakdown.h"
#include "coordinator/report/memory_chart.h"
#include "coordinator/report/stages.h"
#include "coordinator/report/timeline_chart.h"
#include "proto/drawing/svg.h"

namespace terrace {

int64_t DeviceLimit(const v1::Plan& plan) {
  int64_t limit = 0;
  for (const v1::StageMemory& memory : plan.memory()) {
    if (memory.tier() > v1::DEVICE || memory.limit_bytes() <= 0) continue;
    limit = limit == 0 ? memory.limit_bytes() : std::min(limit, memory.limit_bytes());
  }
  return limit;
}

std::string PlanWords(const v1::Plan& plan) {
  int64_t device_bytes = 0;
  for (const v1::StageMemory& memory : plan.memory()) {
    if (memory.tier() > v1::DEVICE) continue;
    device_bytes = std::max(device_bytes, memory.arena_bytes() + memory.external_bytes());
  }
  const int64_t limit = DeviceLimit(plan);
  return absl::StrCat(
      plan.model().family(), ", ", Grouped(plan.model().parameters()), " parameters, ",
      Grouped(plan.layout().ranks()), plan.layout().ranks() == 1 ? " rank, " : " ranks, ",
      SecondsText(plan.time().step_seconds()), " a step, ", FormatBytes(device_bytes),
      limit > 0 ? absl::StrCat(" of ", FormatBytes(limit)) : "", " on the device");
}

std::string PlanSvg(const Prepared& prepared) {
  constexpr double kGap = 14, kMargin = 28;
  const v1::Plan& plan = prepared.plan;
  const std::string left_out = LeftOutText(prepared);
  std::vector<Picture> parts = {Heading(absl::StrCat("Plan of ", plan.job()), PlanWords(plan)),
                                Heading("Memory over the step", left_out)};
  for (Picture& row : MemoryCharts(prepared)) parts.push_back(std::move(row));
  parts.push_back(Heading("Schedule", left_out));
  parts.push_back(TimelineChart(prepared));
  parts.push_back(Heading("Where the time goes", ""));
  parts.push_back(BreakdownChart(prepared));
  if (plan.alternatives_size() > 0) {
    parts.push_back(Heading("Alternatives", ""));
    parts.push_back(AlternativesChart(CandidatesOf(plan), DeviceLimit(plan)));
  }
  const Picture all = Below(parts, kGap);
  const double width = kPictureWidth + 2 * kMargin, height = all.height + 2 * kMargin;
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"%.0f %.0f %.0f %.0f\" role=\"img\" aria-label=\"Plan of %s\">\n"
      "<style>\n%s</style>\n"
      "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n%s</svg>\n",
      width, height, -kMargin, -kMargin, width, height, EscapeXml(plan.job()), kPictureStyle,
      -kMargin, -kMargin, width, height, all.body);
}

}  // namespace terrace
