// Rows of cells printed as aligned columns, for listings. A column is as wide as its widest cell,
// up to a limit: a wider cell pushes the rest of its own line only. A column that is empty
// everywhere is left out. Lines never end in spaces. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace terrace {

class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    Align align = Align::kLeft;
    size_t width_max = 40;
  };

  // `indent` spaces start every line.
  explicit TextTable(std::vector<Column> columns, size_t indent = 0);

  // REQUIRES: no more cells than columns.
  void Add(std::vector<std::string> cells);
  void AppendTo(std::string* out) const;

 private:
  std::string Line(const std::vector<std::string>& row, const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  size_t indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace terrace
