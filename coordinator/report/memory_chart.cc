// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/memory_chart.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "coordinator/report/memory_over_time.h"
#include "coordinator/report/stages.h"

namespace terrace {
namespace {

constexpr size_t kStagesMost = 8;
constexpr double kGap = 24, kLeft = 66, kTop = 46, kBottom = 24, kPlotHeight = 190;
constexpr int kTitles = 80;        // parts of a chart that say what they hold
constexpr double kFarAbove = 2.5;  // a budget higher than this over what is used is off the scale

// Where things are in one chart.
struct Scale {
  double width = 0;
  double top_bytes = 1;
  int columns = 1;
  double X(double column) const { return kLeft + (width - kLeft) * column / columns; }
  double Y(double bytes) const { return kTop + kPlotHeight * (1 - bytes / top_bytes); }
};

std::string AreaPath(const std::vector<ByClass>& columns, const std::vector<int64_t>& floor,
                     v1::BufferClass buffer_class, const Scale& scale) {
  std::string up, down;
  const int count = static_cast<int>(columns.size());
  for (int i = 0; i < count;) {
    int end = i + 1;
    while (end < count && columns[end][buffer_class] == columns[i][buffer_class] &&
           floor[end] == floor[i]) {
      ++end;
    }
    const int64_t top = floor[i] + columns[i][buffer_class];
    absl::StrAppendFormat(&up, "%s%.1f %.1fH%.1f", i == 0 ? "M" : "L", scale.X(i), scale.Y(top),
                          scale.X(end));
    down = absl::StrFormat("L%.1f %.1fH%.1f", scale.X(end), scale.Y(floor[i]), scale.X(i)) + down;
    i = end;
  }
  return absl::StrCat(up, down, "Z");
}

std::string Areas(const MemoryOverTime& memory, const Scale& scale) {
  std::string svg;
  std::vector<int64_t> floor(memory.columns.size(), 0);
  for (const ClassStyle& style : ClassStyles()) {
    bool any = false;
    for (const ByClass& column : memory.columns) any |= column[style.buffer_class] > 0;
    if (!any) continue;
    absl::StrAppend(&svg, "<path class=\"class-", v1::BufferClass_Name(style.buffer_class),
                    "\" fill=\"", style.colour, "\" d=\"",
                    AreaPath(memory.columns, floor, style.buffer_class, scale), "\"/>\n");
    for (size_t i = 0; i < floor.size(); ++i) floor[i] += memory.columns[i][style.buffer_class];
  }
  return svg;
}

// What is under the pointer, at the fullest moment of each part.
std::string Titles(const MemoryOverTime& memory, double seconds, const Scale& scale) {
  std::string svg;
  const int count = static_cast<int>(memory.columns.size());
  const int step = std::max(1, count / kTitles);
  for (int first = 0; first < count; first += step) {
    const int end = std::min(count, first + step);
    const ByClass& most =
        *std::max_element(memory.columns.begin() + first, memory.columns.begin() + end,
                          [](const ByClass& a, const ByClass& b) { return Total(a) < Total(b); });
    std::string title =
        absl::StrCat("at ", SecondsText(seconds * first / count), ": ", FormatBytes(Total(most)));
    for (const ClassStyle& style : ClassStyles()) {
      if (most[style.buffer_class] == 0) continue;
      absl::StrAppend(&title, "\n", style.name, " ", FormatBytes(most[style.buffer_class]));
    }
    svg += RectAt(scale.X(first), kTop, scale.X(end) - scale.X(first), kPlotHeight,
                  "class=\"hover\"", title);
  }
  return svg;
}

std::string Axis(const Scale& scale) {
  std::string svg;
  for (const double bytes : ByteTicks(scale.top_bytes, 4)) {
    const double y = scale.Y(bytes);
    svg += LineFrom(kLeft, y, scale.width, y, "stroke=\"#e3e7ea\"");
    svg += TextAt(kLeft - 8, y + 4, Anchor::kEnd,
                  bytes == 0 ? "0" : FormatBytes(static_cast<int64_t>(bytes)));
  }
  return svg;
}

// The budget; above the picture when it is far from what is used.
std::string Budget(const v1::StageMemory& stage, const Scale& scale) {
  if (stage.limit_bytes() <= 0) return "";
  const double limit = static_cast<double>(stage.limit_bytes());
  const bool above = limit > scale.top_bytes;
  const double y = above ? kTop : scale.Y(limit);
  return LineFrom(kLeft, y, scale.width, y,
                  "class=\"budget\" stroke=\"#c22f2f\" stroke-width=\"1.5\" "
                  "stroke-dasharray=\"7 4\"") +
         absl::StrFormat(
             "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" style=\"fill:#a82424\">budget "
             "%s%s</text>\n",
             scale.width, y - 5, FormatBytes(stage.limit_bytes()),
             above ? ", above this picture" : "");
}

std::string Peak(const v1::StageMemory& stage, const MemoryOverTime& memory, double seconds,
                 const Scale& scale) {
  const double x = scale.X(scale.columns * memory.peak_seconds / seconds);
  const double y = scale.Y(static_cast<double>(memory.peak_bytes + stage.external_bytes()));
  return absl::StrFormat(
      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#fff\" stroke=\"#1b1f24\" "
      "stroke-width=\"1.5\"><title>peak, at %s</title></circle>\n",
      x, y, SecondsText(memory.peak_seconds));
}

std::string Words(const v1::StageMemory& stage, size_t stages) {
  const std::string tier = TierWord(stage.tier());
  return stages > 1 ? absl::StrCat("stage ", stage.stage(), ", ", tier) : tier;
}

Picture Chart(const Prepared& prepared, const v1::StageMemory& stage, int index, double width) {
  const PlayedProgram drawn = DrawnOf(prepared, index);
  const v1::Program& program = drawn.program();
  const double seconds = std::max(prepared.simulation.played_seconds, 1e-12);
  const int columns = width > kPictureWidth / 2 ? 480 : 240;
  MemoryOverTime memory =
      MemoryOf(program, TrainOf(program), prepared.simulation.stages[index].instructions,
               stage.tier(), seconds, columns);
  for (ByClass& column : memory.columns) column[v1::EXTERNAL] = stage.external_bytes();
  const int64_t reserved = stage.arena_bytes() + stage.external_bytes();
  double top = static_cast<double>(std::max<int64_t>(1, reserved));
  if (const auto limit = static_cast<double>(stage.limit_bytes()); limit <= kFarAbove * top) {
    top = std::max(top, limit);
  }
  const Scale scale{.width = width, .top_bytes = top * 1.04, .columns = columns};
  Picture picture{.width = width, .height = kTop + kPlotHeight + kBottom};
  picture.body =
      TextAt(0, 14, Anchor::kStart, Words(stage, prepared.programs.size()), "head") +
      TextAt(kLeft + 70, 14, Anchor::kStart,
             absl::StrCat("live at most ", FormatBytes(memory.peak_bytes + stage.external_bytes()),
                          ", reserved ", FormatBytes(reserved)),
             "ink");
  picture.body += Axis(scale) + Areas(memory, scale);
  picture.body += LineFrom(kLeft, scale.Y(static_cast<double>(reserved)), width,
                           scale.Y(static_cast<double>(reserved)),
                           "class=\"reserved\" stroke=\"#1b1f24\" stroke-dasharray=\"2 3\"");
  picture.body += Budget(stage, scale) + Peak(stage, memory, seconds, scale);
  picture.body += TimeAxis(kLeft, width, kTop + kPlotHeight, seconds, width > 600 ? 8 : 4);
  picture.body += Titles(memory, seconds, scale);
  return picture;
}

// Indices of the stages that are drawn.
std::set<int> Drawn(const Prepared& prepared) {
  const int stages = static_cast<int>(prepared.programs.size());
  std::set<int> drawn = EvenlyChosen(stages, kStagesMost);
  int fullest = 0;
  int64_t most = -1;
  for (const v1::StageMemory& stage : prepared.plan.memory()) {
    if (stage.tier() > v1::DEVICE || stage.arena_bytes() <= most) continue;
    most = stage.arena_bytes();
    fullest = IndexOf(prepared, stage.stage());
  }
  drawn.insert(fullest);
  return drawn;
}

}  // namespace

std::vector<Picture> MemoryCharts(const Prepared& prepared) {
  std::vector<Swatch> swatches;
  for (const ClassStyle& style : ClassStyles()) swatches.push_back({style.name, style.colour});
  std::vector<Picture> rows = {Legend(swatches)};
  const std::set<int> drawn = Drawn(prepared);
  const double width = drawn.size() > 1 ? (kPictureWidth - kGap) / 2 : kPictureWidth;
  for (const v1::Tier tier : {v1::DEVICE, v1::HOST, v1::NVME}) {
    std::vector<Picture> row;
    const auto flush = [&rows, &row] {
      if (!row.empty()) rows.push_back(Beside(row, kGap));
      if (!row.empty()) rows.back().width = kPictureWidth;
      row.clear();
    };
    for (const v1::StageMemory& stage : prepared.plan.memory()) {
      const int index = IndexOf(prepared, stage.stage());
      if (stage.tier() != tier || !drawn.contains(index)) continue;
      row.push_back(Chart(prepared, stage, index, width));
      if (drawn.size() == 1 || row.size() == 2) flush();
    }
    flush();
  }
  if (drawn.size() < prepared.programs.size()) {
    Picture words{.height = 18};
    words.body = TextAt(0, 13, Anchor::kStart,
                        absl::StrCat(drawn.size(), " of ", prepared.programs.size(),
                                     " stages are drawn, the fullest among them."));
    rows.push_back(words);
  }
  return rows;
}

}  // namespace terrace
