// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/layers_chart.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text/number_format.h"
#include "proto/report/layer_report.h"

namespace terrace {
namespace {

constexpr size_t kRowsMost = 40;
constexpr double kLeft = 150, kRight = 230;  // names; bytes
constexpr double kPlotWidth = kPictureWidth - kLeft - kRight;
constexpr double kRow = 20, kBar = 14;

std::string Title(const LayerGroup& group, const ClassStyle& style) {
  return absl::StrCat(group.name, ", ", style.name, ": ",
                      FormatBytes(group.bytes[style.buffer_class]), group.count > 1 ? " each" : "");
}

std::string Bytes(const LayerGroup& group) {
  const int64_t held = Total(group.bytes);
  return absl::StrCat(
      held == 0 ? "-" : FormatBytes(held), group.count > 1 ? " each" : "",
      group.most_bytes > held ? absl::StrCat(", at most ", FormatBytes(group.most_bytes)) : "");
}

std::vector<LayerGroup> Largest(std::vector<LayerGroup> groups) {
  if (groups.size() <= kRowsMost) return groups;
  std::vector<int64_t> sizes;
  for (const LayerGroup& group : groups) sizes.push_back(group.most_bytes);
  std::nth_element(sizes.begin(), sizes.begin() + kRowsMost - 1, sizes.end(), std::greater<>());
  const int64_t least = sizes[kRowsMost - 1];
  std::erase_if(groups, [least](const LayerGroup& group) { return group.most_bytes < least; });
  groups.resize(std::min(groups.size(), kRowsMost));
  return groups;
}

}  // namespace

Picture LayersChart(const LayerMemory& memory) {
  const std::vector<LayerGroup> all = LayerGroups(memory);
  const std::vector<LayerGroup> groups = Largest(all);
  int64_t top = 1;
  for (const LayerGroup& group : groups) top = std::max(top, group.most_bytes);
  const auto width = [top](int64_t bytes) {
    return kPlotWidth * static_cast<double>(bytes) / static_cast<double>(top);
  };
  Picture picture;
  double y = 4;
  for (const LayerGroup& group : groups) {
    const double middle = y + kBar / 2 + 4;
    picture.body += TextAt(kLeft - 8, middle, Anchor::kEnd, group.name);
    double x = kLeft;
    for (const ClassStyle& style : ClassStyles()) {
      const int64_t bytes = group.bytes[style.buffer_class];
      if (bytes == 0) continue;
      picture.body += RectAt(x, y, width(bytes), kBar, absl::StrCat("fill=\"", style.colour, "\""),
                             Title(group, style));
      x += width(bytes);
    }
    const double most = kLeft + width(group.most_bytes);
    picture.body += LineFrom(most, y, most, y + kBar, "stroke=\"#1b1f24\" stroke-width=\"1.5\"");
    picture.body += TextAt(most + 8, middle, Anchor::kStart, Bytes(group));
    y += kRow;
  }
  if (groups.size() < all.size()) {
    picture.body += TextAt(
        kLeft, y + 10, Anchor::kStart,
        absl::StrCat(groups.size(), " of ", all.size(), " rows are drawn, those that hold most"));
    y += kRow;
  }
  picture.height = y + 2;
  return picture;
}

}  // namespace terrace
