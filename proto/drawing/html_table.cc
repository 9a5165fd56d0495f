// SPDX-License-Identifier: Apache-2.0
#include "proto/drawing/html_table.h"

#include "absl/strings/str_cat.h"

namespace terrace {

HtmlTable::HtmlTable(const std::string& css_class, std::vector<bool> numeric)
    : numeric_(std::move(numeric)),
      class_(css_class.empty() ? "" : absl::StrCat(" class=\"", css_class, "\"")) {}

void HtmlTable::Head(const std::vector<std::string>& cells) {
  head_ = absl::StrCat("<thead>", Row(cells, "th"), "</thead>\n");
}

void HtmlTable::Add(const std::vector<std::string>& cells) { body_ += Row(cells, "td"); }

std::string HtmlTable::Finish() {
  return absl::StrCat("<table", class_, ">", head_, "<tbody>\n", body_, "</tbody></table>\n");
}

std::string HtmlTable::Row(const std::vector<std::string>& cells, const char* element) const {
  std::string row = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppend(&row, "<", element, numeric_[i] ? " class=\"n\">" : ">", cells[i], "</",
                    element, ">");
  }
  return row + "</tr>\n";
}

}  // namespace terrace
