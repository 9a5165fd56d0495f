// SPDX-License-Identifier: Apache-2.0
#include "client/memory_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/memory_picture.h"
#include "proto/program_text.h"

namespace terrace {
namespace {

constexpr double kWidth = 1040, kHeight = 300;
constexpr double kLeft = 78, kRight = 12, kTop = 14, kBottom = 44;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr int kTicks = 4;
constexpr double kPhaseTextMin = 60;  // narrower bands have no label

struct ClassColour {
  v1::BufferClass buffer_class;
  const char* colour;
};
// Those that stay lie below. Told apart by people who do not see all colours, and in grey.
constexpr std::array<ClassColour, 7> kColours = {{{v1::PARAMETER, "#3b6fb6"},
                                                  {v1::OPTIMIZER, "#2a9d8f"},
                                                  {v1::GRADIENT, "#e07b39"},
                                                  {v1::ACTIVATION, "#f2c14e"},
                                                  {v1::COMMUNICATION, "#9b5fa8"},
                                                  {v1::INPUT, "#8bbf5f"},
                                                  {v1::WORKSPACE, "#aab2bb"}}};

const char* PhaseColour(v1::Phase phase) {
  switch (phase) {
    case v1::FORWARD:
      return "#dce7f5";
    case v1::BACKWARD:
      return "#fbe3d3";
    case v1::RECOMPUTE:
      return "#f3ead0";
    case v1::OPTIMIZER_STEP:
      return "#d3eee9";
    default:
      return "#eef0f2";
  }
}
std::string PhaseName(v1::Phase phase) {
  switch (phase) {
    case v1::FORWARD:
      return "forward";
    case v1::BACKWARD:
      return "backward";
    case v1::RECOMPUTE:
      return "recompute";
    case v1::OPTIMIZER_STEP:
      return "optimizer";
    default:
      return "";
  }
}

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

// A power of two: ticks read well in binary units.
int64_t TickBytes(int64_t top) {
  int64_t tick = 1;
  while (tick * kTicks < top) tick *= 2;
  return tick;
}

void AddAxis(const Scale& scale, std::string* svg) {
  const int64_t tick = TickBytes(scale.bytes);
  for (int64_t value = 0; value <= scale.bytes; value += tick) {
    const double y = scale.Y(value);
    absl::StrAppendFormat(svg,
                          "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" "
                          "stroke=\"#d9dee3\"/><text x=\"%.0f\" y=\"%.1f\" "
                          "text-anchor=\"end\">%s</text>\n",
                          kLeft, kWidth - kRight, y, y, kLeft - 8, y + 4,
                          value == 0 ? "0" : FormatBytes(value));
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
  for (const ClassColour& style : kColours) {
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

void AddLevel(const Scale& scale, int64_t bytes, const char* name, const char* dash,
              std::string* svg) {
  if (bytes <= 0 || bytes > scale.bytes) return;
  const double y = scale.Y(bytes);
  absl::StrAppendFormat(svg,
                        "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#1b1f24\" "
                        "stroke-dasharray=\"%s\"/><text x=\"%.0f\" y=\"%.1f\" "
                        "text-anchor=\"end\">%s %s</text>\n",
                        kLeft, kWidth - kRight, y, y, dash, kWidth - kRight, y - 4, name,
                        FormatBytes(bytes));
}

void AddPhases(const v1::Sequence& sequence, const Scale& scale, std::string* svg) {
  const auto& instructions = sequence.instructions();
  for (int first = 0; first < instructions.size();) {
    int end = first;
    while (end < instructions.size() && instructions[end].phase() == instructions[first].phase())
      ++end;
    const double left = scale.X(first), width = scale.X(end) - left;
    const std::string name = PhaseName(instructions[first].phase());
    absl::StrAppendFormat(svg,
                          "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"18\" "
                          "fill=\"%s\"><title>%s, instructions %d to %d</title></rect>\n",
                          left, kTop + kPlotHeight + 6, width,
                          PhaseColour(instructions[first].phase()), name, first, end - 1);
    if (width >= kPhaseTextMin) {
      absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n",
                            left + width / 2, kTop + kPlotHeight + 19, name);
    }
    first = end;
  }
}

void AddPeak(const MemoryTimeline::Peak& peak, const Scale& scale, std::string* svg) {
  const double x = scale.X(peak.instruction), y = scale.Y(peak.bytes);
  const bool right = x > kWidth * 0.8;
  absl::StrAppendFormat(svg,
                        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#fff\" "
                        "stroke=\"#1b1f24\" stroke-width=\"1.5\"><title>peak</title></circle>\n"
                        "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"%s\">peak at instruction "
                        "%u</text>\n",
                        x, y, right ? kWidth - kRight : x, kHeight - 4, right ? "end" : "middle",
                        peak.instruction);
}

// Says what is under the pointer, without a script.
void AddHover(const v1::Sequence& sequence, const MemoryTimeline& timeline, v1::Tier tier,
              const Scale& scale, std::string* svg) {
  for (size_t i = 0; i < timeline.points.size(); ++i) {
    const MemoryTimeline::Point& point = timeline.points[i];
    const int64_t end = i + 1 < timeline.points.size()
                            ? static_cast<int64_t>(timeline.points[i + 1].first_instruction)
                            : scale.instructions;
    const v1::Instruction& first = sequence.instructions(static_cast<int>(point.first_instruction));
    std::string title =
        absl::StrCat(InstructionWords(first), "\nlive ", FormatBytes(Total(point.bytes[tier])));
    for (const ClassColour& style : kColours) {
      const int64_t bytes = point.bytes[tier][style.buffer_class];
      if (bytes > 0)
        absl::StrAppend(&title, "\n", ClassName(style.buffer_class), " ", FormatBytes(bytes));
    }
    const double left = scale.X(point.first_instruction);
    absl::StrAppendFormat(svg,
                          "<rect class=\"hover\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" "
                          "height=\"%.0f\"><title>%s</title></rect>\n",
                          left, kTop, scale.X(end) - left, kPlotHeight, EscapeHtml(title));
  }
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string ChartLegend() {
  std::string list = "<ul class=\"legend\">";
  for (const ClassColour& style : kColours) {
    absl::StrAppend(&list, "<li><i style=\"background:", style.colour, "\"></i>",
                    ClassName(style.buffer_class), "</li>");
  }
  return list + "</ul>\n";
}

std::string MemoryChart(const LiveMemory& memory, int sequence, const MemoryTimeline& timeline,
                        v1::Tier tier) {
  const v1::Program& program = memory.program();
  const v1::Sequence& shown = program.sequences(sequence);
  const int64_t arena = memory.ArenaBytes()[tier];
  const Scale scale{.instructions = std::max(1, shown.instructions_size()),
                    .bytes = std::max<int64_t>(1, arena + arena / 16)};
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"Live bytes on %s over one "
      "step\">\n",
      kWidth, kHeight, TierName(tier));
  AddAxis(scale, &svg);
  AddAreas(timeline, tier, scale, &svg);
  AddLevel(scale, arena, "arena", "5 3", &svg);
  AddPhases(shown, scale, &svg);
  AddPeak(timeline.peaks[tier], scale, &svg);
  AddHover(shown, timeline, tier, scale, &svg);
  return svg + "</svg>\n";
}

}  // namespace terrace
