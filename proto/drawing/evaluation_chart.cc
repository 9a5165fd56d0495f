// SPDX-License-Identifier: Apache-2.0
#include "proto/drawing/evaluation_chart.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "proto/report/evaluation_words.h"

namespace terrace {
namespace {

constexpr double kBar = 14, kRow = 20, kGroupGap = 6;
constexpr double kNames = 205;    // where the bars of memory begin
constexpr double kTimes = 640;    // those of time
constexpr double kNumbers = 118;  // right of the longest bar
constexpr double kMemoryWidth = kTimes - kNames - kNumbers - 12;
constexpr double kTimeWidth = kPictureWidth - kTimes - kNumbers;
// A time beyond so many times the one without is drawn as a bar that is cut off.
constexpr double kTimesDrawn = 6;

constexpr char kFitting[] = "fill=\"#3b6fb6\" rx=\"2\"";
constexpr char kTooLarge[] = "fill=\"#c22f2f\" rx=\"2\"";
constexpr char kTime[] = "fill=\"#2a9d8f\" rx=\"2\"";
constexpr char kTimeUnfit[] = "fill=\"#2a9d8f\" fill-opacity=\".4\" rx=\"2\"";
constexpr char kDashed[] = "stroke=\"#8d969f\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\"";

double LongestTime(const std::vector<const v1::EvaluatedRow*>& rows) {
  double most = 1;
  for (const v1::EvaluatedRow* row : rows) most = std::max(most, row->time_ratio());
  return std::min(most, kTimesDrawn);
}

int64_t MostBytes(const v1::Evaluation& evaluation,
                  const std::vector<const v1::EvaluatedRow*>& rows) {
  int64_t most = evaluation.device_limit_bytes();
  for (const v1::EvaluatedRow* row : rows) most = std::max(most, row->device_bytes());
  return std::max<int64_t>(1, most);
}

std::string BytesText(const v1::EvaluatedRow& row) {
  const std::string change = ChangeText(row.memory_ratio());
  return change.empty() ? FormatBytes(row.device_bytes())
                        : absl::StrCat(FormatBytes(row.device_bytes()), ", ", change);
}

std::string TimeText(const v1::EvaluatedRow& row) {
  const std::string change = ChangeText(row.time_ratio());
  const std::string step = SecondsText(row.time().step_seconds());
  return change.empty() ? step : absl::StrCat(step, ", ", change);
}

}  // namespace

Picture TechniquesChart(const v1::Evaluation& evaluation) {
  const std::vector<const v1::EvaluatedRow*> rows = PlannedRows(evaluation);
  const double per_byte = kMemoryWidth / static_cast<double>(MostBytes(evaluation, rows));
  const double per_time = kTimeWidth / LongestTime(rows);
  Picture picture;
  picture.body = TextAt(kNames, 12, Anchor::kStart, "device memory of a rank", "head") +
                 TextAt(kTimes, 12, Anchor::kStart, "time for the same tokens", "head");
  double y = 24;
  std::string group, labels;  // drawn over the lines that cross them
  for (const v1::EvaluatedRow* row : rows) {
    if (row->group() != group) y += kGroupGap;
    group = row->group();
    const double text = y + kBar - 3;
    picture.body += TextAt(0, text, Anchor::kStart, RowName(*row), "ink");
    const double memory = per_byte * static_cast<double>(row->device_bytes());
    picture.body += RectAt(
        kNames, y, memory, kBar, row->fits() ? kFitting : kTooLarge,
        absl::StrCat(RowName(*row), ": ", BytesText(*row), row->fits() ? "" : ", does not fit"));
    labels += TextAt(kNames + memory + 6, text, Anchor::kStart, BytesText(*row), "label");
    const bool is_none = row == &evaluation.none();
    const double ratio = is_none ? 1 : row->time_ratio();
    const double time = per_time * std::min(ratio, kTimesDrawn);
    if (ratio > 0) {
      picture.body += RectAt(kTimes, y, time, kBar, row->fits() ? kTime : kTimeUnfit,
                             absl::StrCat(RowName(*row), ": ", TimeText(*row)));
    }
    labels +=
        TextAt(kTimes + time + 6, text, Anchor::kStart,
               ratio > kTimesDrawn ? absl::StrCat("\xe2\x80\xa6 ", TimeText(*row)) : TimeText(*row),
               "label");
    y += kRow;
  }
  if (evaluation.device_limit_bytes() > 0) {
    const double x = kNames + per_byte * static_cast<double>(evaluation.device_limit_bytes());
    picture.body += LineFrom(x, 18, x, y, kDashed);
    picture.body += TextAt(x, y + 13, Anchor::kMiddle,
                           absl::StrCat("budget ", FormatBytes(evaluation.device_limit_bytes())));
  }
  picture.body += LineFrom(kTimes + per_time, 18, kTimes + per_time, y, kDashed);
  picture.body += TextAt(kTimes + per_time, y + 13, Anchor::kMiddle, "none") + labels;
  picture.height = y + 18;
  return picture;
}

Picture HeldChart(const v1::Evaluation& evaluation) {
  const std::vector<const v1::EvaluatedRow*> rows = {&evaluation.none(), &evaluation.planned()};
  std::vector<Swatch> swatches;
  for (const ClassStyle& style : ClassStyles()) swatches.push_back({style.name, style.colour});
  Picture picture = Legend(swatches);
  const double left = 90, width = kPictureWidth - left - 120;
  const double per_byte = width / static_cast<double>(MostBytes(evaluation, rows));
  double y = picture.height + 10;
  const double top = y - 4;
  std::string labels;  // drawn over the line that may cross them
  for (const v1::EvaluatedRow* row : rows) {
    if (!row->impossible().empty()) continue;
    constexpr double kHeight = 24;
    picture.body += TextAt(0, y + 16, Anchor::kStart, row->name(), "head");
    const std::vector<HeldBytes> held = HeldOf(*row);
    double x = left;
    for (const ClassStyle& style : ClassStyles()) {
      for (const HeldBytes& one : held) {
        if (one.tier != v1::DEVICE || one.buffer_class != style.buffer_class) continue;
        const double part = per_byte * static_cast<double>(one.bytes);
        picture.body += RectAt(x, y, part, kHeight, absl::StrCat("fill=\"", style.colour, "\""),
                               absl::StrCat(style.name, ": ", FormatBytes(one.bytes)));
        x += part;
      }
    }
    labels += TextAt(x + 6, y + 16, Anchor::kStart, FormatBytes(row->device_bytes()), "label");
    y += kHeight + 8;
  }
  if (evaluation.device_limit_bytes() > 0) {
    const double x = left + per_byte * static_cast<double>(evaluation.device_limit_bytes());
    picture.body += LineFrom(x, top, x, y, kDashed);
    picture.body += TextAt(x, y + 12, Anchor::kMiddle,
                           absl::StrCat("budget ", FormatBytes(evaluation.device_limit_bytes())));
    y += 18;
  }
  picture.body += labels;
  picture.height = y;
  return picture;
}

}  // namespace terrace
