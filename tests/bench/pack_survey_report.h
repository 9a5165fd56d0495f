// What a survey of packings found, and the table and lists that pack_survey prints of it.
//
// In: a stage's gaps to both of its bounds, with pages that to whole pages of the bound, a layout's
// cost of waits, all as parts of what they are compared with. Out: a Markdown table with medians,
// 90 %, largest and counts, and the names of what is farthest off. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace terrace {

struct SurveyedStage {
  std::string name;
  double over_unearned = 0;  // parts of the bound before waits
  double over_own = 0;
  double over_pages = 0;  // over the whole pages of the bound: no arena of pages needs less
};
struct SurveyedWaits {
  std::string name;
  double slower = 0;  // parts of the simulated step
};
struct Survey {
  std::vector<SurveyedStage> stages;
  std::vector<SurveyedWaits> earned;  // layouts with waits that earn reuse
  size_t layouts = 0;
  bool paged = false;          // over_pages is known
  double slowest_seconds = 0;  // to compile a layout, by stage; with --bare to pack a stage
};

// Of values that are sorted.
inline double Quantile(const std::vector<double>& values, double part) {
  return values.empty() ? 0 : values[static_cast<size_t>(part * (values.size() - 1))];
}

template <typename T>
void PrintRow(const char* what, const std::vector<T>& entries, double T::*value) {
  std::vector<double> values;
  for (const T& entry : entries) values.push_back(entry.*value);
  std::sort(values.begin(), values.end());
  const auto over = [&](double limit) {
    return values.end() - std::upper_bound(values.begin(), values.end(), limit);
  };
  std::printf("| %s | %zu | %.2f %% | %.2f %% | %.2f %% | %td | %td |\n", what, values.size(),
              100 * Quantile(values, 0.5), 100 * Quantile(values, 0.9), 100 * Quantile(values, 1),
              over(0.005), over(0.01));
}

template <typename T>
void PrintWorst(const char* title, std::vector<T> entries, double T::*value, double least,
                size_t count) {
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const T& a, const T& b) { return a.*value > b.*value; });
  std::printf("\n%s\n\n", title);
  for (size_t i = 0; i < std::min(count, entries.size()) && entries[i].*value > least; ++i) {
    std::printf("- %s: %.2f %%\n", entries[i].name.c_str(), 100 * (entries[i].*value));
  }
}

// How many of those over 1 % cannot be below, for a page is as large as it is.
inline void PrintPageBound(const Survey& survey) {
  size_t over = 0, least = 0;
  for (const SurveyedStage& stage : survey.stages) {
    if (stage.over_unearned <= 0.01) continue;
    ++over;
    least += stage.over_pages == 0 ? 1 : 0;
  }
  std::printf(
      "\n%zu of the %zu over 1 %% take the whole pages of their bound, the least there is\n", least,
      over);
}

inline void Print(const Survey& survey, size_t worst) {
  std::printf("%zu layouts, %zu stages, at most %.2f s a stage of one layout\n\n", survey.layouts,
              survey.stages.size(), survey.slowest_seconds);
  std::printf(
      "| | of | median | 90 %% | largest | over 0.5 %% | over 1 %% |\n"
      "|---|---|---|---|---|---|---|\n");
  PrintRow("over the bound before waits", survey.stages, &SurveyedStage::over_unearned);
  PrintRow("over the program's own bound", survey.stages, &SurveyedStage::over_own);
  if (survey.paged)
    PrintRow("over the whole pages of the bound", survey.stages, &SurveyedStage::over_pages);
  PrintRow("step time that waits cost", survey.earned, &SurveyedWaits::slower);
  if (survey.paged) PrintPageBound(survey);
  PrintWorst("Over the bound before waits:", survey.stages, &SurveyedStage::over_unearned, 0.005,
             worst);
  PrintWorst("Over their own bound:", survey.stages, &SurveyedStage::over_own, 0.005, worst);
  PrintWorst("Slower by waits:", survey.earned, &SurveyedWaits::slower, 0, worst);
}

}  // namespace terrace
