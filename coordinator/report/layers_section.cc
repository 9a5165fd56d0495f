// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/layers_section.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text/number_format.h"
#include "coordinator/report/layers_chart.h"
#include "coordinator/report/stages.h"
#include "proto/drawing/html_table.h"
#include "proto/drawing/page.h"
#include "proto/drawing/svg.h"
#include "proto/report/layer_report.h"

namespace terrace {
namespace {

constexpr size_t kStagesMost = 2;

int64_t HeldBytes(const LayerMemory& memory) {
  int64_t bytes = 0;
  for (const LayerHeld& layer : memory.layers) bytes += Total(layer.bytes);
  return bytes;
}

std::string HotSpotTable(const LayerMemory& memory, const v1::Layout& layout) {
  HtmlTable table("", {false, false, true, true, false});
  table.Head({"hot spot", "class", "bytes", "of it", "what would lower it"});
  for (const HotSpot& spot : HotSpots(memory, layout)) {
    table.Add({EscapeXml(spot.layer), ClassWord(spot.buffer_class), FormatBytes(spot.bytes),
               PercentText(spot.share), spot.advice.empty() ? "-" : EscapeXml(spot.advice)});
  }
  return Wide(table.Finish());
}

std::string Of(const LayerMemory& memory, const v1::Layout& layout, const std::string& when) {
  const std::string stage =
      layout.pipeline_parallel() > 1 ? absl::StrCat("stage ", memory.stage, ", ") : "";
  return absl::StrCat("<p><b>", stage, TierWord(memory.tier), "</b>, ", when, ": ",
                      FormatBytes(HeldBytes(memory)), " are live at <code>",
                      EscapeXml(memory.words), "</code></p>\n",
                      Wide(SvgElement(LayersChart(memory), "Memory by layer and class")));
}

}  // namespace

std::string LayersSection(const Prepared& prepared, const v1::RankMemory& now) {
  const v1::Layout& layout = prepared.plan.layout();
  std::vector<v1::Program> shown;
  for (const int stage : EvenlyChosen(static_cast<int>(prepared.programs.size()), kStagesMost))
    shown.push_back(prepared.programs[stage]);
  const auto planned = LayersOfPrograms(shown);
  if (!planned.ok() || planned->empty()) return "";
  std::vector<Swatch> swatches;
  for (const ClassStyle& style : ClassStyles()) {
    const bool is_there = std::any_of(planned->begin(), planned->end(), [&](const auto& memory) {
      return std::any_of(memory.layers.begin(), memory.layers.end(), [&](const LayerHeld& layer) {
        return layer.bytes[style.buffer_class] > 0;
      });
    });
    if (is_there) swatches.push_back({style.name, style.colour});
  }
  std::string section = absl::StrCat(
      "<section><h2>Memory by layer</h2>\n<p>What the layers hold when a tier holds most. The line "
      "behind a bar: the most that the layer holds at any moment of a step.",
      shown.size() < prepared.programs.size() ? " The first stage and the last are shown." : "",
      "</p>\n", Wide(SvgElement(Legend(swatches), "Classes of memory")));
  for (const LayerMemory& memory : *planned) {
    section += Of(memory, layout, "planned at the peak");
    section += HotSpotTable(memory, layout);
  }
  const auto measured = LayersOfRank(now, prepared.programs, layout);
  if (measured.ok() && !measured->empty()) {
    section += "<h3>Now</h3>\n";
    for (const LayerMemory& memory : *measured)
      section += Of(memory, layout, absl::StrCat("rank ", now.rank(), " now"));
  }
  return section + "</section>\n";
}

}  // namespace terrace
