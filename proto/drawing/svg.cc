// SPDX-License-Identifier: Apache-2.0
#include "proto/drawing/svg.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/strings.h"
#include "base/text/number_format.h"

namespace terrace {
namespace {

// Told apart by people who do not see all colours, and in grey.
constexpr std::array<ClassStyle, 8> kClasses = {{{v1::EXTERNAL, "outside the arena", "#d3d8dd"},
                                                 {v1::PARAMETER, "parameter", "#3b6fb6"},
                                                 {v1::OPTIMIZER, "optimizer", "#2a9d8f"},
                                                 {v1::GRADIENT, "gradient", "#e07b39"},
                                                 {v1::ACTIVATION, "activation", "#f2c14e"},
                                                 {v1::COMMUNICATION, "communication", "#9b5fa8"},
                                                 {v1::INPUT, "input", "#8bbf5f"},
                                                 {v1::WORKSPACE, "workspace", "#8d969f"}}};
// Lighter than the classes: numbers are written on them.
constexpr std::array<PhaseStyle, 5> kPhases = {{{v1::FORWARD, "forward", "#7fabdf"},
                                                {v1::RECOMPUTE, "recompute", "#f0d27a"},
                                                {v1::BACKWARD, "backward", "#ec9a66"},
                                                {v1::OPTIMIZER_STEP, "optimizer", "#5fbcae"},
                                                {v1::PHASE_UNSPECIFIED, "other", "#b4bcc4"}}};
constexpr double kLetter = 6.3;  // average width at 12 px

const char* Word(Anchor anchor) {
  if (anchor == Anchor::kStart) return "start";
  return anchor == Anchor::kMiddle ? "middle" : "end";
}

std::string Moved(const Picture& picture, double x, double y) {
  return absl::StrFormat("<g transform=\"translate(%.1f %.1f)\">\n%s</g>\n", x, y, picture.body);
}

}  // namespace

const char kPictureStyle[] =
    R"(svg text { font: 12px system-ui, "Segoe UI", Roboto, sans-serif; fill: #5b656f; }
svg text.ink { fill: #1b1f24; } svg text.head { fill: #1b1f24; font-weight: 600; }
svg text.small { font-size: 10px; fill: #1b1f24; }
svg text.title { font-size: 17px; font-weight: 600; fill: #1b1f24; }
svg text.label { paint-order: stroke; stroke: #fff; stroke-width: 6px; stroke-linejoin: round; }
rect.hover { fill: #000; fill-opacity: 0; } rect.hover:hover { fill-opacity: .1; }
)";

std::string SvgElement(const Picture& picture, std::string_view label) {
  return absl::StrFormat(
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
      "aria-label=\"%s\">\n%s</svg>\n",
      picture.width, picture.height, EscapeXml(label), picture.body);
}

Picture Beside(absl::Span<const Picture> pictures, double gap) {
  Picture all{.width = 0};
  for (const Picture& picture : pictures) {
    if (all.width > 0) all.width += gap;
    all.body += Moved(picture, all.width, 0);
    all.width += picture.width;
    all.height = std::max(all.height, picture.height);
  }
  return all;
}

Picture Below(absl::Span<const Picture> pictures, double gap) {
  Picture all{.width = 0};
  for (const Picture& picture : pictures) {
    if (all.height > 0) all.height += gap;
    all.body += Moved(picture, 0, all.height);
    all.height += picture.height;
    all.width = std::max(all.width, picture.width);
  }
  return all;
}

Picture Legend(absl::Span<const Swatch> swatches) {
  constexpr double kLine = 20, kSwatch = 11;
  Picture picture{.height = kLine};
  double x = 0;
  for (const Swatch& swatch : swatches) {
    const double width = kSwatch + 6 + TextWidth(swatch.name) + 18;
    if (x + width > kPictureWidth) {
      x = 0;
      picture.height += kLine;
    }
    const double y = picture.height - kLine;
    picture.body +=
        RectAt(x, y + 4, kSwatch, kSwatch, absl::StrCat("rx=\"2\" fill=\"", swatch.colour, "\""));
    picture.body += TextAt(x + kSwatch + 6, y + 14, Anchor::kStart, swatch.name);
    x += width;
  }
  return picture;
}

Picture Heading(std::string_view title, std::string_view words) {
  return {.height = words.empty() ? 24.0 : 42.0,
          .body = TextAt(0, 16, Anchor::kStart, title, "title") +
                  (words.empty() ? "" : TextAt(0, 36, Anchor::kStart, words))};
}

std::span<const ClassStyle> ClassStyles() { return kClasses; }
std::span<const PhaseStyle> PhaseStyles() { return kPhases; }

const PhaseStyle& StyleOf(v1::Phase phase) {
  for (const PhaseStyle& style : kPhases) {
    if (style.phase == phase) return style;
  }
  return kPhases.back();
}

std::string ClassWord(v1::BufferClass buffer_class) {
  for (const ClassStyle& style : kClasses) {
    if (style.buffer_class == buffer_class) return style.name;
  }
  return "gaps";
}

std::string TierWord(v1::Tier tier) { return absl::AsciiStrToLower(v1::Tier_Name(tier)); }

std::string EscapeXml(std::string_view text) {
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
    } else if (static_cast<unsigned char>(c) < 0x20 && c != '\n') {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out;
}

double TextWidth(std::string_view text) { return kLetter * static_cast<double>(text.size()); }

std::string TextAt(double x, double y, Anchor anchor, std::string_view text,
                   std::string_view css_class) {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\"%s%s>%s</text>\n", x, y,
      anchor == Anchor::kStart ? "" : absl::StrCat(" text-anchor=\"", Word(anchor), "\""),
      css_class.empty() ? "" : absl::StrCat(" class=\"", Absl(css_class), "\""), EscapeXml(text));
}

std::string LineFrom(double x1, double y1, double x2, double y2, std::string_view style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2,
                         y2, Absl(style));
}

std::string RectAt(double x, double y, double width, double height, std::string_view style,
                   std::string_view title) {
  const std::string rect =
      absl::StrFormat("<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" %s", x, y, width,
                      height, Absl(style));
  if (title.empty()) return rect + "/>\n";
  return absl::StrCat(rect, "><title>", EscapeXml(title), "</title></rect>\n");
}

std::vector<double> Ticks(double top, int count) {
  const double rough = top / std::max(1, count);
  if (!(rough > 0)) return {0};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double tick = power * 10;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) tick = factor * power;
  }
  std::vector<double> ticks;
  for (int i = 0; i * tick <= top * (1 + 1e-9); ++i) ticks.push_back(i * tick);
  return ticks;
}

std::vector<double> ByteTicks(double top, int count) {
  double tick = 1;
  while (tick * count < top) tick *= 2;
  std::vector<double> ticks;
  for (double value = 0; value <= top; value += tick) ticks.push_back(value);
  return ticks;
}

std::string TimeAxis(double left, double right, double y, double seconds, int ticks) {
  std::string svg = LineFrom(left, y, right, y, "stroke=\"#9aa3ab\"");
  for (const double at : Ticks(seconds, ticks)) {
    const double x = left + (right - left) * at / std::max(seconds, 1e-12);
    svg += LineFrom(x, y, x, y + 4, "stroke=\"#9aa3ab\"");
    const bool last = x + 24 > right;
    svg += TextAt(last ? right : x, y + 17, last ? Anchor::kEnd : Anchor::kMiddle,
                  at == 0 ? "0" : SecondsText(at));
  }
  return svg;
}

}  // namespace terrace
