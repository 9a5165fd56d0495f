// SPDX-License-Identifier: Apache-2.0
#include "client/table.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr size_t kGap = 2;

// Characters shown, taking each UTF-8 sequence as one.
size_t Width(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

void AppendRow(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
               std::string* out) {
  for (size_t i = 0; i < cells.size(); ++i) {
    *out += cells[i];
    if (i + 1 < cells.size()) out->append(widths[i] + kGap - Width(cells[i]), ' ');
  }
  *out += '\n';
}

}  // namespace

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (const std::string& header : headers_) widths.push_back(Width(header));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string out;
  AppendRow(headers_, widths, &out);
  for (const auto& row : rows_) AppendRow(row, widths, &out);
  return out;
}

}  // namespace terrace
