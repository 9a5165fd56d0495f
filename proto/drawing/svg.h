// Pieces of SVG that can stand alone, inside a page or beside each other in a larger picture, and
// what all pictures agree on: their width, what the colours mean. How numbers are written:
// base/text/number_format.h.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "proto/v1/program.pb.h"

namespace terrace {

inline constexpr double kPictureWidth = 1040;
// What texts in the pictures look like; CSS.
extern const char kPictureStyle[];

// Drawn from (0, 0) to (width, height), without the element around it.
struct Picture {
  double width = kPictureWidth;
  double height = 0;
  std::string body;
};
// As an <svg> element of a page, with what it shows for those who cannot see it.
std::string SvgElement(const Picture& picture, std::string_view label);
Picture Beside(absl::Span<const Picture> pictures, double gap);
Picture Below(absl::Span<const Picture> pictures, double gap);

struct Swatch {
  std::string name;
  std::string colour;
};
Picture Legend(absl::Span<const Swatch> swatches);
// A heading and, dim, what it says.
Picture Heading(std::string_view title, std::string_view words);

struct ClassStyle {
  v1::BufferClass buffer_class;
  const char* name;
  const char* colour;
};
// Those that stay first: they lie below.
std::span<const ClassStyle> ClassStyles();
struct PhaseStyle {
  v1::Phase phase;
  const char* name;
  const char* colour;
};
// The last is what belongs to no phase.
std::span<const PhaseStyle> PhaseStyles();
const PhaseStyle& StyleOf(v1::Phase phase);
std::string ClassWord(v1::BufferClass buffer_class);  // "outside the arena"
std::string TierWord(v1::Tier tier);                  // "nvme"

std::string EscapeXml(std::string_view text);
// About, of the pictures' font.
double TextWidth(std::string_view text);

enum class Anchor { kStart, kMiddle, kEnd };
std::string TextAt(double x, double y, Anchor anchor, std::string_view text,
                   std::string_view css_class = "");
std::string LineFrom(double x1, double y1, double x2, double y2, std::string_view style);
// With what it says under the pointer; none if empty.
std::string RectAt(double x, double y, double width, double height, std::string_view style,
                   std::string_view title = "");

// Round numbers from 0 to `top`, about `count` of them.
std::vector<double> Ticks(double top, int count);
// The same in powers of two: they read well as bytes.
std::vector<double> ByteTicks(double top, int count);
// A scale of seconds from x = left to right below y.
std::string TimeAxis(double left, double right, double y, double seconds, int ticks);

}  // namespace terrace
