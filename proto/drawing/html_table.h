// Tables of a page, row by row. Cells are markup: who adds them escapes them.
//
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace terrace {

class HtmlTable {
 public:
  // `numeric`: columns that are aligned right.
  HtmlTable(const std::string& css_class, std::vector<bool> numeric);
  void Head(const std::vector<std::string>& cells);
  void Add(const std::vector<std::string>& cells);
  std::string Finish();

 private:
  std::string Row(const std::vector<std::string>& cells, const char* element) const;

  const std::vector<bool> numeric_;
  std::string head_, body_, class_;
};

}  // namespace terrace
