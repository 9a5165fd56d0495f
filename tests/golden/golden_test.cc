// Spec in, listings out: each folder NN_name holds a job.yaml and the plan.txt and program.txt (the
// programs of all stages, with the schedule of pipelines) that it must give, to the byte. A change
// of the planner or the compiler shows here as a diff that a person reads.
//
//   golden_test            compares
//   golden_test --update   writes the listings anew; look at `git diff tests/golden` before you
//   commit them
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/prepare/explain.h"
#include "coordinator/prepare/prepare.h"
#include "coordinator/spec/job_spec.h"
#include "proto/report/plan_text.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

bool update = false;

std::vector<fs::path> Folders() {
  std::vector<fs::path> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(TERRACE_GOLDEN_DIR)) {
    if (fs::exists(entry.path() / "job.yaml")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A made-up machine, so that the listings do not depend on the one that runs the test.
Budget PaperMachine(uint32_t ranks) {
  Budget budget = {
      .nodes = 1, .ranks = ranks, .threads_per_rank = 2, .device_memory_bytes = int64_t{1} << 30};
  budget.profile.set_name("paper");
  budget.profile.set_f32_flops_per_second(1e11);
  budget.profile.set_bf16_flops_per_second(1e12);
  budget.profile.set_memory_bytes_per_second(1e10);
  budget.profile.set_link_bytes_per_second(1e9);
  budget.profile.set_link_latency_seconds(1e-4);
  budget.profile.set_instruction_overhead_seconds(1e-6);
  return budget;
}

uint32_t Ranks(const v1::LayoutSpec& layout) {
  uint32_t ranks = 1;
  for (uint32_t degree : {layout.dp(), layout.tp(), layout.pp(), layout.cp()}) {
    ranks *= std::max(1u, degree);
  }
  return ranks;
}

// "line 12: expected ..., got ...": where the first difference is.
std::string FirstDifference(const std::string& expected, const std::string& got) {
  std::istringstream a(expected), b(got);
  std::string x, y;
  for (int line = 1;; ++line) {
    const bool more_a = static_cast<bool>(std::getline(a, x));
    const bool more_b = static_cast<bool>(std::getline(b, y));
    if (!more_a && !more_b) return "same lines, other bytes";
    if (!more_a) x = "(end of file)";
    if (!more_b) y = "(end of file)";
    if (x != y) return "line " + std::to_string(line) + "\n  expected: " + x + "\n  got:      " + y;
  }
}

void CompareOrUpdate(const fs::path& path, const std::string& got) {
  if (update) {
    std::ofstream(path, std::ios::binary) << got;
    return;
  }
  const std::string expected = Read(path);
  EXPECT_TRUE(expected == got) << path << " differs at " << FirstDifference(expected, got)
                               << "\n  golden_test --update writes it anew";
}

class GoldenTest : public testing::TestWithParam<fs::path> {};

TEST_P(GoldenTest, TheListingsOfAJobDoNotChangeUnnoticed) {
  const auto spec = ParseJobSpec(Read(GetParam() / "job.yaml"), "/jobs");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto prepared = Prepare(*spec, PaperMachine(Ranks(spec->layout())));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  CompareOrUpdate(GetParam() / "plan.txt", PlanText(prepared->plan));
  CompareOrUpdate(GetParam() / "program.txt",
                  ExplainText(prepared->plan.layout(), prepared->programs, ""));
}

INSTANTIATE_TEST_SUITE_P(Jobs, GoldenTest, testing::ValuesIn(Folders()),
                         [](const auto& info) { return "job_" + info.param.filename().string(); });

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--update") terrace::update = true;
  }
  return RUN_ALL_TESTS();
}
