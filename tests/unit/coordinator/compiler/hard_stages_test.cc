// Programs of the survey (tests/bench/pack_survey.cc) with arenas of 2 GiB or more of which orders
// leave 1 to 4 % unused: with pages, on a CPU by default and on a GPU that is too small without, no
// stage is 1 % over the bytes alive at once.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/compiler/compile.h"
#include "proto/check/program_check.h"
#include "tests/bench/pack_cases.h"

namespace terrace {
namespace {

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  const std::vector<SurveyModel> models = Models();
  for (size_t i = 0; i < models.size(); ++i) AddCases(models[i], i, &cases);
  return cases;
}

// Everything that is compiled is checked.
std::vector<v1::Program> Compiled(const std::string& name, const std::string& device,
                                  int64_t device_limit_bytes = 0) {
  static const auto& cases = *new std::vector<Case>(AllCases());
  const auto found = std::find_if(cases.begin(), cases.end(),
                                  [&](const Case& candidate) { return candidate.name == name; });
  EXPECT_NE(found, cases.end());
  if (found == cases.end()) return {};
  const SurveyModel survey_model = Models()[found->model];
  const Model model = ModelOf(survey_model);
  const v1::JobSpec spec = SpecOf(survey_model);
  v1::Layout layout = found->layout;
  layout.set_device(device);
  const auto programs = Compile(
      {.spec = &spec, .model = &model, .layout = layout, .device_limit_bytes = device_limit_bytes});
  EXPECT_TRUE(programs.ok()) << programs.status();
  if (!programs.ok()) return {};
  EXPECT_TRUE(CheckPrograms(*programs).ok()) << CheckPrograms(*programs);
  return *programs;
}

int Paged(const std::vector<v1::Program>& programs) {
  return static_cast<int>(std::count_if(
      programs.begin(), programs.end(),
      [](const v1::Program& program) { return program.arenas(0).aliases_size() > 0; }));
}

int64_t WithinOnePercent(const v1::Arena& arena) {
  return arena.lower_bound_bytes() + arena.lower_bound_bytes() / 100;
}

class HardStagesTest : public testing::TestWithParam<const char*> {};

TEST_P(HardStagesTest, PagesOfTheProcessorLeaveLessThanOnePercent) {
  const std::vector<v1::Program> programs = Compiled(GetParam(), "cpu");
  EXPECT_GT(Paged(programs), 0) << "needs no pages any more";
  for (const v1::Program& program : programs) {
    EXPECT_GE(program.arenas(0).bytes(), int64_t{2} << 30);
    EXPECT_LE(program.arenas(0).bytes(), WithinOnePercent(program.arenas(0)))
        << "stage " << program.stage();
  }
}

TEST_P(HardStagesTest, AGpuTakesPagesWhereItIsTooSmallWithout) {
  const std::vector<v1::Program> roomy = Compiled(GetParam(), "cuda", int64_t{1} << 40);
  EXPECT_EQ(Paged(roomy), 0);
  int64_t limit = 0;  // a byte less than it takes in one piece each
  for (const v1::Program& program : roomy) limit = std::max(limit, program.arenas(0).bytes() - 1);
  const std::vector<v1::Program> tight = Compiled(GetParam(), "cuda", limit);
  EXPECT_GT(Paged(tight), 0);
  for (const v1::Program& program : tight) EXPECT_LE(program.arenas(0).bytes(), limit);
}

INSTANTIATE_TEST_SUITE_P(Survey, HardStagesTest,
                         testing::Values("llama-3.1-8b pp 8 interleaved zero 3 sqrt 2x8",
                                         "llama-3.1-8b pp 8 zb-h1 zero 2 block 2x8",
                                         "llama-3.1-8b pp 8 zbv zero 3 none 1x8"));

}  // namespace
}  // namespace terrace
