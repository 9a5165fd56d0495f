// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/alternatives_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "proto/report/layout_text.h"

namespace terrace {
namespace {

constexpr double kHeight = 340, kLeft = 74, kRight = 16, kTop = 16, kBottom = 44;
constexpr double kRadius = 5;
constexpr const char* kBytesCaption = "device memory of a rank";
constexpr double kLabelMost = 300;  // longer labels are numbers only

struct Box {
  double left, top, right, bottom;
  bool Meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// Linear, from 0 where that costs little room.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void Widen() {
    const double edge = std::max((high - low) * 0.08, high * 0.02);
    low = low < high / 3 ? 0 : low - edge;
    high += edge;
  }
  double Share(double value) const { return (value - low) / std::max(high - low, 1e-12); }
};

struct Scale {
  Range seconds, bytes;
  double X(double value) const {
    return kLeft + (kPictureWidth - kLeft - kRight) * seconds.Share(value);
  }
  double Y(double value) const {
    return kTop + (kHeight - kTop - kBottom) * (1 - bytes.Share(value));
  }
};

std::string Axes(const Scale& scale) {
  std::string svg;
  for (const double bytes : ByteTicks(scale.bytes.high, 6)) {
    if (bytes < scale.bytes.low) continue;
    svg += LineFrom(kLeft, scale.Y(bytes), kPictureWidth - kRight, scale.Y(bytes),
                    "stroke=\"#e3e7ea\"");
    svg += TextAt(kLeft - 8, scale.Y(bytes) + 4, Anchor::kEnd,
                  bytes == 0 ? "0" : FormatBytes(static_cast<int64_t>(bytes)));
  }
  const double bottom = kHeight - kBottom;
  svg += LineFrom(kLeft, bottom, kPictureWidth - kRight, bottom, "stroke=\"#9aa3ab\"");
  const double tick_range = scale.seconds.high - scale.seconds.low;
  const std::vector<double> ticks = Ticks(tick_range, 8);
  const double tick = ticks.size() > 1 ? ticks[1] : scale.seconds.high;
  for (double at = std::ceil(scale.seconds.low / tick) * tick; at <= scale.seconds.high;
       at += tick) {
    svg += LineFrom(scale.X(at), bottom, scale.X(at), bottom + 4, "stroke=\"#9aa3ab\"");
    svg += TextAt(scale.X(at), bottom + 17, Anchor::kMiddle, SecondsText(at));
  }
  svg += TextAt(kPictureWidth - kRight, kHeight - 6, Anchor::kEnd, "time of a step");
  return svg + TextAt(kLeft + 6, kTop + 2, Anchor::kStart, kBytesCaption);
}

// Joins the chosen one and the Pareto front, left to right.
std::string Front(absl::Span<const Candidate> candidates, const Scale& scale) {
  std::vector<std::pair<double, double>> points;
  for (const Candidate& one : candidates) {
    if (!one.pareto) continue;
    points.emplace_back(scale.X(one.step_seconds), scale.Y(static_cast<double>(one.device_bytes)));
  }
  if (points.size() < 2) return "";
  std::sort(points.begin(), points.end());
  const std::string path =
      absl::StrJoin(points, "L", [](std::string* out, const std::pair<double, double>& point) {
        absl::StrAppendFormat(out, "%.1f %.1f", point.first, point.second);
      });
  return absl::StrCat("<path fill=\"none\" stroke=\"#3b6fb6\" stroke-opacity=\".45\" d=\"M", path,
                      "\"/>\n");
}

std::string Mark(const Candidate& one, const Scale& scale) {
  const double x = scale.X(one.step_seconds), y = scale.Y(static_cast<double>(one.device_bytes));
  const std::string title = absl::StrCat(
      "<title>",
      EscapeXml(absl::StrCat(one.number == 0 ? "chosen: " : absl::StrCat(one.number, ": "),
                             one.layout, "\n", SecondsText(one.step_seconds), ", ",
                             FormatBytes(one.device_bytes), "\n", one.note)),
      "</title>");
  if (one.number != 0 && !one.fits) {
    return absl::StrFormat(
        "<path stroke=\"#c22f2f\" stroke-width=\"1.8\" fill=\"none\" d=\"M%.1f %.1fl8 8m0 -8l-8 "
        "8\">%s</path>\n",
        x - 4, y - 4, title);
  }
  const char* fill = one.number == 0 ? "#1b1f24" : one.pareto ? "#3b6fb6" : "#fff";
  return absl::StrFormat(
      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\" stroke=\"%s\" "
      "stroke-width=\"1.5\">%s</circle>\n",
      x, y, one.number == 0 ? kRadius + 1.5 : kRadius, fill,
      one.number == 0 ? "#1b1f24" : "#3b6fb6", title);
}

// Where text of this width lies whose line begins at (left, base). Estimates of widths are for
// regular letters, so there is some room.
Box BoxOfText(double left, double base, double width) {
  constexpr double kRoom = 1.15;
  return {left - 2, base - 11, left + kRoom * width + 2, base + 3};
}

// Places labels one after another where nothing else is; the words go first, then the number, which
// goes farther away where points lie close, with a line to its point.
class Labels {
 public:
  Labels(absl::Span<const Candidate> candidates, const Scale& scale) : scale_(scale) {
    for (const Candidate& one : candidates) {
      const double x = scale.X(one.step_seconds);
      const double y = scale.Y(static_cast<double>(one.device_bytes));
      const double radius = one.number == 0 ? kRadius + 1.5 : kRadius;
      taken_.push_back({x - radius, y - radius, x + radius, y + radius});
    }
  }
  // No label goes there.
  void Keep(const Box& box) { taken_.push_back(box); }

  std::string Place(const Candidate& one) {
    const std::string number = one.number == 0 ? "chosen" : absl::StrCat(one.number);
    const std::string words = absl::StrCat(number, "  ", one.layout);
    if (one.number != 0 && TextWidth(words) <= kLabelMost) {
      if (std::string label = Try(one, words); !label.empty()) return label;
    }
    if (std::string label = Try(one, number); !label.empty()) return label;
    return TryFarther(one, number);
  }

 private:
  bool IsFree(const Box& box) const {
    return box.left >= kLeft && box.right <= kPictureWidth && box.top >= 0 &&
           box.bottom <= kHeight - kBottom &&
           std::none_of(taken_.begin(), taken_.end(),
                        [&box](const Box& other) { return box.Meets(other); });
  }

  std::string Put(const Candidate& one, const std::string& text, double left, double base) {
    taken_.push_back(BoxOfText(left, base, TextWidth(text)));
    return TextAt(left, base, Anchor::kStart, text, one.number == 0 ? "head" : "ink");
  }

  std::string Try(const Candidate& one, const std::string& text) {
    const double x = scale_.X(one.step_seconds);
    const double y = scale_.Y(static_cast<double>(one.device_bytes));
    const double width = TextWidth(text), away = kRadius + 5;
    const std::array<std::pair<double, double>, 4> places = {{{x + away, y + 4},
                                                              {x - away - width, y + 4},
                                                              {x - width / 2, y - away},
                                                              {x - width / 2, y + away + 10}}};
    for (const auto& [left, base] : places) {
      if (IsFree(BoxOfText(left, base, width))) return Put(one, text, left, base);
    }
    return "";
  }

  // On ever larger rings round the point.
  std::string TryFarther(const Candidate& one, const std::string& text) {
    constexpr double kRing = 14, kTurns = 16, kFarthest = 400;
    const double x = scale_.X(one.step_seconds);
    const double y = scale_.Y(static_cast<double>(one.device_bytes));
    const double width = TextWidth(text);
    for (double away = 2 * kRing; away < kFarthest; away += kRing) {
      for (double turn = 0; turn < kTurns; ++turn) {
        const double angle = 2 * std::numbers::pi * turn / kTurns;
        const double to_x = x + away * std::cos(angle), to_y = y + away * std::sin(angle);
        const double left = to_x - width / 2, base = to_y + 4;
        if (!IsFree(BoxOfText(left, base, width))) continue;
        return LineFrom(x, y, to_x, to_y < y ? base + 3 : base - 11,
                        "stroke=\"#9aa3ab\" stroke-width=\"0.8\"") +
               Put(one, text, left, base);
      }
    }
    return "";
  }

  const Scale& scale_;
  std::vector<Box> taken_;
};

}  // namespace

std::vector<Candidate> CandidatesOf(const v1::Plan& plan) {
  std::vector<Candidate> candidates;
  for (const v1::Alternative& other : plan.alternatives()) {
    const std::vector<std::string> differences = Differences(plan.layout(), other.layout());
    candidates.push_back(
        {.number = 1,
         .layout = differences.empty() ? "the same keys" : absl::StrJoin(differences, ", "),
         .step_seconds = other.step_seconds(),
         .device_bytes = other.device_bytes(),
         .host_bytes = other.host_bytes(),
         .nvme_bytes = other.nvme_bytes(),
         .fits = other.fits(),
         .pareto = other.pareto(),
         .compiled = other.compiled(),
         .note = other.note()});
  }
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.step_seconds < b.step_seconds; });
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].number = static_cast<int>(i) + 1;
  Candidate chosen{.layout = LayoutText(plan.layout()),
                   .step_seconds = plan.time().step_seconds(),
                   .fits = plan.fits(),
                   .compiled = true,
                   .note = plan.fits() ? "chosen" : "nearest to fit"};
  for (const v1::StageMemory& memory : plan.memory()) {
    int64_t& most = memory.tier() == v1::NVME   ? chosen.nvme_bytes
                    : memory.tier() == v1::HOST ? chosen.host_bytes
                                                : chosen.device_bytes;
    most = std::max(most, memory.arena_bytes() + memory.external_bytes());
  }
  chosen.pareto = plan.fits() && absl::c_none_of(candidates, [&chosen](const Candidate& other) {
                    return other.fits && other.step_seconds < chosen.step_seconds &&
                           other.device_bytes < chosen.device_bytes;
                  });
  candidates.insert(candidates.begin(), std::move(chosen));
  return candidates;
}

Picture AlternativesChart(absl::Span<const Candidate> candidates, int64_t device_limit_bytes) {
  Scale scale;
  for (const Candidate& one : candidates) {
    scale.seconds.Add(one.step_seconds);
    scale.bytes.Add(static_cast<double>(one.device_bytes));
  }
  const auto limit = static_cast<double>(device_limit_bytes);
  if (limit > 0 && limit < 2.5 * scale.bytes.high) scale.bytes.Add(limit);
  scale.seconds.Widen();
  scale.bytes.Widen();
  Picture picture{.height = kHeight, .body = Axes(scale)};
  Labels labels(candidates, scale);
  labels.Keep(BoxOfText(kLeft + 6, kTop + 2, TextWidth(kBytesCaption)));
  if (limit > scale.bytes.low && limit < scale.bytes.high) {
    picture.body += LineFrom(kLeft, scale.Y(limit), kPictureWidth - kRight, scale.Y(limit),
                             "stroke=\"#c22f2f\" stroke-width=\"1.5\" stroke-dasharray=\"7 4\"");
    const std::string budget = absl::StrCat("budget ", FormatBytes(device_limit_bytes));
    picture.body += absl::StrFormat(
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" style=\"fill:#a82424\">%s</text>\n",
        kPictureWidth - kRight, scale.Y(limit) - 5, budget);
    const double width = TextWidth(budget) * 1.15;
    labels.Keep(BoxOfText(kPictureWidth - kRight - width, scale.Y(limit) - 5, width));
  }
  picture.body += Front(candidates, scale);
  std::string words;
  for (const Candidate& one : candidates) words += labels.Place(one);
  // The chosen one last: nothing lies on it.
  for (size_t i = candidates.size(); i-- > 0;) picture.body += Mark(candidates[i], scale);
  picture.body += words;
  return picture;
}

}  // namespace terrace
