// SPDX-License-Identifier: Apache-2.0
#include "client/memory_chart.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"

namespace terrace {
namespace {

constexpr double kWidth = kPictureWidth, kHeight = 300;
constexpr double kLeft = 78, kRight = 12, kTop = 14, kBottom = 44;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr int kTicks = 4;
constexpr double kPhaseTextMin = 60;  // narrower bands have no label

// Where things are in the picture.
struct Scale {
  int64_t instructions = 1;
  int64_t bytes = 1;  // at the top
  double X(int64_t instruction) const {
    return kLeft +
           kPlotWidth * static_cast<double>(instruction) / static_cast<double>(instructions);
  }
  double Y(int64_t value) const {
    return kTop + kPlotHeight * (1 - static_cast<double>(value) / static_cast<double>(bytes));
  }
};

void AddAxis(const Scale& scale, std::string* svg) {
  for (const double value : ByteTicks(static_cast<double>(scale.bytes), kTicks)) {
    const auto bytes = static_cast<int64_t>(value);
    *svg += LineFrom(kLeft, scale.Y(bytes), kWidth - kRight, scale.Y(bytes), "stroke=\"#d9dee3\"");
    *svg +=
        TextAt(kLeft - 8, scale.Y(bytes) + 4, Anchor::kEnd, bytes == 0 ? "0" : FormatBytes(bytes));
  }
}

// One closed step line a class, on top of those before it.
void AddAreas(const MemoryTimeline& timeline, v1::Tier tier, const Scale& scale, std::string* svg) {
  const size_t count = timeline.points.size();
  std::vector<int64_t> floor(count, 0);
  const auto end_of = [&](size_t i) {
    return i + 1 < count ? static_cast<int64_t>(timeline.points[i + 1].first_instruction)
                         : scale.instructions;
  };
  for (const ClassStyle& style : ClassStyles()) {
    std::string up, down;
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      const int64_t bytes = timeline.points[i].bytes[tier][style.buffer_class];
      any |= bytes > 0;
      const double left = scale.X(timeline.points[i].first_instruction), right = scale.X(end_of(i));
      absl::StrAppendFormat(&up, "%s%.1f %.2fH%.1f", i == 0 ? "M" : "L", left,
                            scale.Y(floor[i] + bytes), right);
      down = absl::StrFormat("L%.1f %.2fH%.1f", right, scale.Y(floor[i]), left) + down;
      floor[i] += bytes;
    }
    if (any) absl::StrAppend(svg, "<path fill=\"", style.colour, "\" d=\"", up, down, "Z\"/>\n");
  }
}

void AddLevel(const Scale& scale, int64_t bytes, const char* name, std::string* svg) {
  if (bytes <= 0 || bytes > scale.bytes) return;
  const double y = scale.Y(bytes);
  *svg += LineFrom(kLeft, y, kWidth - kRight, y, "stroke=\"#1b1f24\" stroke-dasharray=\"5 3\"");
  *svg += TextAt(kWidth - kRight, y - 4, Anchor::kEnd, absl::StrCat(name, " ", FormatBytes(bytes)));
}

void AddPhases(const LiveMemory& memory, int sequence, const Scale& scale, std::string* svg) {
  const auto& instructions = memory.played().program().sequences(sequence).instructions();
  const auto id = [&](int place) {
    return memory.Executed(sequence, static_cast<uint32_t>(place)).instruction->id();
  };
  for (int first = 0; first < instructions.size();) {
    const v1::Phase phase = instructions[first].phase();
    int end = first;
    while (end < instructions.size() && instructions[end].phase() == phase) ++end;
    const double left = scale.X(first), width = scale.X(end) - left;
    const PhaseStyle& style = StyleOf(phase);
    *svg +=
        RectAt(left, kTop + kPlotHeight + 6, width, 18, absl::StrCat("fill=\"", style.colour, "\""),
               absl::StrCat(style.name, ", instructions ", id(first), " to ", id(end - 1)));
    if (width >= kPhaseTextMin) {
      *svg += TextAt(left + width / 2, kTop + kPlotHeight + 19, Anchor::kMiddle, style.name, "ink");
    }
    first = end;
  }
}

void AddPeak(const MemoryTimeline::Peak& peak, const v1::Instruction& at, const Scale& scale,
             std::string* svg) {
  const double x = scale.X(peak.instruction);
  const bool right = x > kWidth * 0.8;
  absl::StrAppendFormat(svg,
                        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#fff\" "
                        "stroke=\"#1b1f24\" stroke-width=\"1.5\"><title>peak</title></circle>\n",
                        x, scale.Y(peak.bytes));
  *svg += TextAt(right ? kWidth - kRight : x, kHeight - 4, right ? Anchor::kEnd : Anchor::kMiddle,
                 absl::StrCat("peak at instruction ", at.id()));
}

// Says what is under the pointer, without a script.
void AddHover(const LiveMemory& memory, int sequence, const MemoryTimeline& timeline, v1::Tier tier,
              const Scale& scale, std::string* svg) {
  for (size_t i = 0; i < timeline.points.size(); ++i) {
    const MemoryTimeline::Point& point = timeline.points[i];
    const int64_t end = i + 1 < timeline.points.size()
                            ? static_cast<int64_t>(timeline.points[i + 1].first_instruction)
                            : scale.instructions;
    std::string title =
        absl::StrCat(InstructionWords(memory.Executed(sequence, point.first_instruction)),
                     "\nlive ", FormatBytes(Total(point.bytes[tier])));
    for (const ClassStyle& style : ClassStyles()) {
      const int64_t bytes = point.bytes[tier][style.buffer_class];
      if (bytes > 0) absl::StrAppend(&title, "\n", style.name, " ", FormatBytes(bytes));
    }
    const double left = scale.X(point.first_instruction);
    *svg += RectAt(left, kTop, scale.X(end) - left, kPlotHeight, "class=\"hover\"", title);
  }
}

}  // namespace

Picture ChartLegend() {
  std::vector<Swatch> swatches;
  for (const ClassStyle& style : ClassStyles()) {
    if (style.buffer_class != v1::EXTERNAL) swatches.push_back({style.name, style.colour});
  }
  return Legend(swatches);
}

std::string MemoryChart(const LiveMemory& memory, int sequence, const MemoryTimeline& timeline,
                        v1::Tier tier) {
  const v1::Sequence& shown = memory.played().program().sequences(sequence);
  const MemoryTimeline::Peak& peak = timeline.peaks[tier];
  const int64_t arena = memory.ArenaBytes()[tier];
  const Scale scale{.instructions = std::max(1, shown.instructions_size()),
                    .bytes = std::max<int64_t>(1, arena + arena / 16)};
  Picture picture{.width = kWidth, .height = kHeight};
  AddAxis(scale, &picture.body);
  AddAreas(timeline, tier, scale, &picture.body);
  AddLevel(scale, arena, "arena", &picture.body);
  AddPhases(memory, sequence, scale, &picture.body);
  AddPeak(peak, *memory.Executed(sequence, peak.instruction).instruction, scale, &picture.body);
  AddHover(memory, sequence, timeline, tier, scale, &picture.body);
  return SvgElement(picture, absl::StrCat("Live bytes on ", TierWord(tier), " over one step"));
}

}  // namespace terrace
