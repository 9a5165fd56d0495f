// Padded text tables: headers, rows, columns as wide as their widest cell (UTF-8 aware enough for
// job names). Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace terrace {

class Table {
 public:
  explicit Table(std::vector<std::string> headers) : headers_(std::move(headers)) {}
  // REQUIRES: as many cells as headers.
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string ToString() const;  // ends with a newline

 private:
  std::vector<std::string> headers_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace terrace
