// A function of the cells of a grid, as its changes from one cell to the next.
//
// Ejections add up what it costs to lie at each offset: a range with a price for every neighbour,
// in any order. The sum is then passed once in the order of the cells; bits say where it may
// change, so that this costs as much as there are ranges and not as there are cells.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace terrace {

// Changes of a function of the cells, added in any order and passed in that of the cells.
class PackChanges {
 public:
  explicit PackChanges(int cells)
      : change_(cells), words_(cells / 64 + 1), groups_(words_.size() / 64 + 1) {}

  void Add(int cell, int64_t change) {
    change_[cell] += change;
    words_[cell / 64] |= uint64_t{1} << cell % 64;
    groups_[cell / 4096] |= uint64_t{1} << cell / 64 % 64;
  }

  // Calls visit(cell, change) and forgets.
  template <typename Visit>
  void Pass(const Visit& visit) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (; groups_[group] != 0; groups_[group] &= groups_[group] - 1) {
        const size_t word = 64 * group + std::countr_zero(groups_[group]);
        for (; words_[word] != 0; words_[word] &= words_[word] - 1) {
          const size_t cell = 64 * word + std::countr_zero(words_[word]);
          if (change_[cell] != 0) visit(static_cast<int>(cell), change_[cell]);
          change_[cell] = 0;
        }
      }
    }
  }

 private:
  std::vector<int64_t> change_;
  std::vector<uint64_t> words_;   // a bit a cell that may have changed
  std::vector<uint64_t> groups_;  // a bit a word
};

}  // namespace terrace
