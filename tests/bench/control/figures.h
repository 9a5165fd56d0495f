// What a run measured, in order: told when it is known, and all of it at the end.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace terrace {

class Figures {
 public:
  void Add(std::string name, double value, std::string unit) {
    std::fprintf(stderr, "%-40s %14.3f %s\n", name.c_str(), value, unit.c_str());
    figures_.push_back({std::move(name), value, std::move(unit)});
  }
  void AddLatencies(const std::string& name, std::vector<double> seconds) {
    if (seconds.empty()) return;
    std::sort(seconds.begin(), seconds.end());
    const auto at = [&](double share) {
      return seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))] * 1e3;
    };
    Add(name + " p50", at(0.5), "ms");
    Add(name + " p99", at(0.99), "ms");
  }

  void PrintTable() const {
    for (const Figure& figure : figures_)
      std::printf("%-40s %14.3f %s\n", figure.name.c_str(), figure.value, figure.unit.c_str());
  }
  void PrintJson() const {
    std::printf("{");
    const char* separator = "\n";
    for (const Figure& figure : figures_) {
      std::printf("%s  \"%s\": {\"value\": %.6g, \"unit\": \"%s\"}", separator, figure.name.c_str(),
                  figure.value, figure.unit.c_str());
      separator = ",\n";
    }
    std::printf("\n}\n");
  }

 private:
  struct Figure {
    std::string name;
    double value = 0;
    std::string unit;
  };
  std::vector<Figure> figures_;
};

}  // namespace terrace
