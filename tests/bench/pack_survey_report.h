// What a survey of packings found, and the table and list that pack_survey prints of it.
//
// In: a stage's bound and what is left over it, as a part. Out: a Markdown table with medians, 90
// %, largest and counts, of all stages and of the large ones, and the names of what is farthest
// off. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace terrace {

struct SurveyedStage {
  std::string name;
  int64_t bound_bytes = 0;
  double over = 0;  // parts of the bound
};
struct Survey {
  std::vector<SurveyedStage> stages;
  size_t layouts = 0;
  double slowest_seconds = 0;  // to pack a stage
};

// Of values that are sorted.
inline double Quantile(const std::vector<double>& values, double part) {
  return values.empty() ? 0 : values[static_cast<size_t>(part * (values.size() - 1))];
}

inline void PrintRow(const char* what, const Survey& survey, int64_t bound_min) {
  std::vector<double> values;
  for (const SurveyedStage& stage : survey.stages) {
    if (stage.bound_bytes >= bound_min) values.push_back(stage.over);
  }
  std::sort(values.begin(), values.end());
  const auto over = [&](double limit) {
    return values.end() - std::upper_bound(values.begin(), values.end(), limit);
  };
  std::printf("| %s | %zu | %.2f %% | %.2f %% | %.2f %% | %td | %td |\n", what, values.size(),
              100 * Quantile(values, 0.5), 100 * Quantile(values, 0.9), 100 * Quantile(values, 1),
              over(0.005), over(0.01));
}

inline void Print(Survey survey, size_t worst) {
  std::printf("%zu layouts, %zu stages, at most %.2f s a stage\n\n", survey.layouts,
              survey.stages.size(), survey.slowest_seconds);
  std::printf(
      "| over the bound | of | median | 90 %% | largest | over 0.5 %% | over 1 %% |\n"
      "|---|---|---|---|---|---|---|\n");
  PrintRow("all stages", survey, 0);
  PrintRow("of 2 GiB or more", survey, int64_t{2} << 30);
  std::stable_sort(survey.stages.begin(), survey.stages.end(),
                   [](const SurveyedStage& a, const SurveyedStage& b) { return a.over > b.over; });
  std::printf("\n");
  for (size_t i = 0; i < std::min(worst, survey.stages.size()); ++i) {
    std::printf("- %s: %.2f %%\n", survey.stages[i].name.c_str(), 100 * survey.stages[i].over);
  }
}

}  // namespace terrace
