// The file in which pack_survey keeps what it has packed, so that a survey of hours can be done in
// pieces: a line a stage, with the layout, the stage, how many buffers, the arena and its bound in
// bytes, the seconds of packing and a fingerprint of the problem. Equal problems are packed once.
// Of several lines of one stage the last counts.
//
// Not thread-safe, and for one process at a time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace terrace {

struct PackedStage {
  std::string layout;
  int64_t stage = 0;
  int64_t buffers = 0;
  int64_t arena_bytes = 0;
  int64_t bound_bytes = 0;
  double seconds = 0;
  uint64_t problem = 0;

  double over() const {
    return static_cast<double>(arena_bytes) / static_cast<double>(bound_bytes) - 1;
  }
};

class PackLedger {
 public:
  // In memory only, without a path.
  explicit PackLedger(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_);
    PackedStage row;
    for (std::string line; std::getline(file, line);) {
      if (Parse(line, &row)) Remember(row);
    }
  }

  // All stages of a layout, which are written together. False when the file cannot be written.
  bool Add(const std::vector<PackedStage>& rows) {
    for (const PackedStage& row : rows) Remember(row);
    if (path_.empty()) return true;
    std::FILE* file = std::fopen(path_.c_str(), "a");
    if (file == nullptr) return false;
    for (const PackedStage& row : rows) {
      std::fprintf(file, "%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%.3f,%" PRIu64 "\n",
                   row.layout.c_str(), row.stage, row.buffers, row.arena_bytes, row.bound_bytes,
                   row.seconds, row.problem);
    }
    return std::fclose(file) == 0;
  }

  // Whether the layout was packed.
  bool Has(const std::string& layout) const { return layouts_.contains(layout); }

  // A stage with the same problem, or nullptr.
  const PackedStage* Find(uint64_t problem) const {
    const auto found = problems_.find(problem);
    return found == problems_.end() ? nullptr : &found->second;
  }

  std::vector<PackedStage> Rows() const {
    std::vector<PackedStage> rows;
    for (const auto& [layout, stages] : layouts_) {
      for (const auto& [stage, row] : stages) rows.push_back(row);
    }
    return rows;
  }

  size_t layouts() const { return layouts_.size(); }

 private:
  static bool Parse(const std::string& line, PackedStage* row) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    if (fields.size() != 7) return false;
    row->layout = fields[0];
    return absl::SimpleAtoi(fields[1], &row->stage) && absl::SimpleAtoi(fields[2], &row->buffers) &&
           absl::SimpleAtoi(fields[3], &row->arena_bytes) &&
           absl::SimpleAtoi(fields[4], &row->bound_bytes) &&
           absl::SimpleAtod(fields[5], &row->seconds) && absl::SimpleAtoi(fields[6], &row->problem);
  }

  void Remember(const PackedStage& row) {
    layouts_[row.layout][row.stage] = row;
    problems_[row.problem] = row;
  }

  const std::string path_;
  std::map<std::string, std::map<int64_t, PackedStage>> layouts_;
  std::map<uint64_t, PackedStage> problems_;
};

}  // namespace terrace
