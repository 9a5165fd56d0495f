// SPDX-License-Identifier: Apache-2.0
#include "base/text/text_table.h"

#include <algorithm>
#include <utility>

namespace terrace {

TextTable::TextTable(std::vector<Column> columns, size_t indent)
    : columns_(std::move(columns)), indent_(indent) {}

void TextTable::Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

void TextTable::AppendTo(std::string* out) const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], std::min(row[i].size(), columns_[i].width_max));
    }
  }
  for (const auto& row : rows_) {
    *out += Line(row, widths);
    *out += '\n';
  }
}

std::string TextTable::Line(const std::vector<std::string>& row,
                            const std::vector<size_t>& widths) const {
  std::string line(indent_, ' ');
  bool first = true;
  for (size_t i = 0; i < row.size(); ++i) {
    if (widths[i] == 0) continue;
    if (!first) line += "  ";
    first = false;
    const size_t pad = widths[i] > row[i].size() ? widths[i] - row[i].size() : 0;
    if (columns_[i].align == Align::kRight) line.append(pad, ' ');
    line += row[i];
    if (columns_[i].align == Align::kLeft) line.append(pad, ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace terrace
