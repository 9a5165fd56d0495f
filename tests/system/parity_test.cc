// Every layout against one rank: same seed, same data, losses of twenty steps and every gradient;
// in f32 both against the gradient in double as well. And every rank's memory against the plan's.
//
// All ranks of a layout take turns on one thread, in an order that differs from layout to layout
// (turns.h); some layouts, in the default sample all of them, are trained on threads over Gloo as
// well, and must give the same bits. Layouts whose programs are the same, byte for byte, are
// trained once.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/prepare/memory_report.h"
#include "proto/check/program_check.h"
#include "proto/program/grid.h"
#include "proto/program/program_hash.h"
#include "tests/system/exact_gradients.h"
#include "tests/system/in_process_job.h"
#include "tests/system/layout_data.h"
#include "tests/system/parity_bound.h"
#include "tests/system/parity_cases.h"
#include "tests/system/parity_tally.h"
#include "tests/unit/proto/check/second_addresses.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 20;

const JobData& DataOf(const std::string& family) {
  static auto* all = new std::map<std::string, JobData>;
  const auto it = all->find(family);
  if (it != all->end()) return it->second;
  JobData data = RandomJob(MatrixModel(family), /*rows=*/8, /*length=*/16);
  data.train = MatrixSpec().train();
  data.train.set_steps(kSteps);
  return all->emplace(family, std::move(data)).first->second;
}

constexpr int64_t kPageBytes = 4096;

// One rank with the same global batch.
v1::Layout OneRank(const v1::Layout& layout) {
  v1::Layout one = MatrixLayout();
  one.set_precision(layout.precision());
  one.set_micro_batch(layout.micro_batch());
  one.set_micro_batches(layout.micro_batches() * layout.data_parallel());
  return one;
}

// Values do not depend on where buffers lie; the other system tests execute searched packings. With
// TERRACE_LAYOUTS_PAGES every step buffer lies in pages at second addresses, in another order, but
// for what is computed exactly, whose values have a memory of their own.
std::vector<v1::Program> CompileLayout(const std::string& family, v1::Layout layout,
                                       bool in_one_piece = false) {
  layout.set_threads_per_rank(1);
  auto programs = CompileJob(DataOf(family), layout);
  EXPECT_TRUE(programs.ok()) << Describe(LayoutCase{family, layout}) << ": " << programs.status();
  if (!programs.ok()) return {};
  if (!in_one_piece && std::getenv("TERRACE_LAYOUTS_PAGES") != nullptr) {
    for (v1::Program& program : *programs) MoveToSecondAddresses(kPageBytes, &program);
    EXPECT_EQ(CheckPrograms(*programs), absl::OkStatus()) << Describe(LayoutCase{family, layout});
  }
  return *std::move(programs);
}

JobResult Train(const LayoutCase& c, const std::vector<v1::Program>& programs,
                const RunOptions& options) {
  auto result = TrainPrograms(DataOf(c.family), programs, kSteps, options);
  EXPECT_TRUE(result.ok()) << Describe(c) << ": " << result.status();
  return result.ok() ? *std::move(result) : JobResult{};
}

const JobResult& Reference(const LayoutCase& c) {
  static auto* references = new std::map<std::string, JobResult>;
  const LayoutCase one = {c.family, OneRank(c.layout)};
  const auto it = references->find(Describe(one));
  if (it != references->end()) return it->second;
  const std::vector<v1::Program> programs = CompileLayout(one.family, one.layout);
  return references->emplace(Describe(one), Train(one, programs, {.turns = 0})).first->second;
}

// Of the same global batch. REQUIRES: fp32.
const ExactTensors& Exact(const LayoutCase& c) {
  static auto* gradients = new std::map<std::string, ExactTensors>;
  const LayoutCase one = {c.family, OneRank(c.layout)};
  const auto it = gradients->find(Describe(one));
  if (it != gradients->end()) return it->second;
  const std::vector<v1::Program> programs =
      CompileLayout(one.family, one.layout, /*in_one_piece=*/true);
  auto exact = ExactGradients(DataOf(c.family), programs.at(0));
  EXPECT_TRUE(exact.ok()) << Describe(one) << ": " << exact.status();
  return gradients->emplace(Describe(one), exact.ok() ? *std::move(exact) : ExactTensors{})
      .first->second;
}

std::string HashOf(const LayoutCase& c, const std::vector<v1::Program>& programs) {
  std::string bytes = c.family;
  for (const v1::Program& program : programs) absl::StrAppend(&bytes, SerializeProgram(program));
  return Sha256Hex(bytes);
}

std::string HashOf(const JobResult& result) {
  std::string bytes;
  const auto append = [&bytes](const auto& values) {
    bytes.append(reinterpret_cast<const char*>(values.data()),
                 values.size() * sizeof(values.front()));
  };
  append(result.losses);
  for (const Tensors* tensors :
       {&result.gradients, &result.weights, &result.first_moment, &result.second_moment}) {
    for (const auto& [name, values] : *tensors) append(values);
  }
  return Sha256Hex(bytes);
}

class Parity {
 public:
  explicit Parity(const ParityCases& cases)
      : cases_(cases), tally_(cases.shard, cases.cases.size()) {}

  void Run() {
    for (const ParityCase& c : cases_.cases) {
      const int failures = Failures();
      ExpectParity(c);
      tally_.Done(Failures() > failures);
    }
    tally_.PrintWorst();
    EXPECT_TRUE(tally_.WriteResult()) << "TERRACE_LAYOUTS_RESULT: cannot be written";
  }

 private:
  static int Failures() {
    return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  }

  void ExpectParity(const ParityCase& parity) {
    const LayoutCase& c = parity.layout;
    const std::vector<v1::Program> programs = CompileLayout(c.family, c.layout);
    if (programs.empty()) return;
    const auto [known, first] = results_.emplace(HashOf(c, programs), Describe(c));
    if (!first) {
      tally_.CountSamePrograms();
      EXPECT_FALSE(failed_.contains(known->second)) << Describe(c) << ": as " << known->second;
      return;
    }
    const int failures = Failures();
    ExpectParity(parity, programs);
    if (Failures() > failures) failed_.insert(known->second);
  }

  void ExpectParity(const ParityCase& parity, const std::vector<v1::Program>& programs) {
    const LayoutCase& c = parity.layout;
    const JobResult turns = Train(c, programs, {.turns = static_cast<uint32_t>(parity.index)});
    tally_.CountTrained();
    if (std::any_of(programs.begin(), programs.end(), [](const v1::Program& program) {
          return program.arenas(0).aliases_size() > 0;
        })) {
      tally_.CountPaged();
    }
    const JobResult& one = Reference(c);
    ASSERT_EQ(turns.losses.size(), one.losses.size());
    ExpectSameBits(c, HashOf(turns));
    if (parity.index % cases_.on_threads_every == 0) {
      EXPECT_EQ(HashOf(Train(c, programs, {})), HashOf(turns)) << Describe(c) << " on threads";
      tally_.CountOnThreads();
    }
    ExpectMemory(c, turns);
    ExpectLosses(c, turns, one);
    ExpectGradients(c, turns, one);
  }

  // What the plan says that a rank of the stage takes is what the system has given to each.
  void ExpectMemory(const LayoutCase& c, const JobResult& many) {
    const int64_t page = ::sysconf(_SC_PAGESIZE);
    ASSERT_EQ(many.mapped_bytes.size(), many.programs[0].ranks());
    for (size_t rank = 0; rank < many.mapped_bytes.size(); ++rank) {
      const v1::Grid& grid = many.programs[0].grid();
      const v1::Program& program =
          many.programs[CoordinatesOf(grid, static_cast<uint32_t>(rank)).stage];
      const int64_t planned = ReportMemory(program)[0].arena_bytes();
      EXPECT_EQ(many.mapped_bytes[rank], (planned + page - 1) / page * page)
          << Describe(c) << " rank " << rank << ": the plan says " << planned;
    }
  }

  // As every layout that differs in what may not change a bit.
  void ExpectSameBits(const LayoutCase& c, const std::string& hash) {
    const auto [known, first] = bits_.emplace(BitwiseFamily(c), std::pair(hash, Describe(c)));
    if (first) return;
    EXPECT_EQ(hash, known->second.first)
        << Describe(c) << ": differs from " << known->second.second;
    tally_.CountBitwise();
  }

  void ExpectLosses(const LayoutCase& c, const JobResult& many, const JobResult& one) {
    const double bound = LossBound(c.layout.precision());
    for (size_t i = 0; i < one.losses.size(); ++i) {
      const double error = std::abs(many.losses[i] - one.losses[i]) / one.losses[i];
      EXPECT_LE(error, bound) << Describe(c) << ": loss of step " << i;
      tally_.Note(absl::StrCat(c.layout.precision(), " loss"), error / bound, Describe(c));
      if (!(error <= bound)) break;
    }
  }

  void ExpectGradients(const LayoutCase& c, const JobResult& many, const JobResult& one) {
    const std::string& precision = c.layout.precision();
    const Model& model = DataOf(c.family).model;
    for (const Tensor& tensor : model.tensors) {
      const std::vector<float>& gradient = many.gradients.at(tensor.name);
      const std::vector<float>& of_one = one.gradients.at(tensor.name);
      ExpectGradient(c, tensor, "from one rank's", RelativeError(gradient, of_one),
                     precision == "bf16" || !IsJudgedByExact(tensor));
      if (precision == "bf16") continue;
      const std::vector<double>& exact = Exact(c).at(tensor.name);
      ExpectGradient(c, tensor, "from exact", RelativeError(gradient, exact), true);
      ExpectGradient(c, tensor, "of one rank from exact", RelativeError(of_one, exact), true);
    }
  }

  // What is not held to the bound is noted beside it all the same.
  void ExpectGradient(const LayoutCase& c, const Tensor& tensor, const char* from, double error,
                      bool must) {
    const std::string& precision = c.layout.precision();
    const std::string where = absl::StrCat(Describe(c), " ", tensor.name);
    const double bound = GradientBound(DataOf(c.family).model, tensor, precision);
    if (must) {
      EXPECT_LE(error, bound) << where << " " << from;
    }
    tally_.Note(absl::StrCat(precision, " gradient x", Cancellation(tensor), " ", from),
                error / bound, where);
  }

  const ParityCases& cases_;
  Tally tally_;
  std::map<std::string, std::string> results_;  // hash of programs -> whose they are
  std::set<std::string> failed_;                // descriptions
  std::map<std::string, std::pair<std::string, std::string>> bits_;  // hash, whose it is
};

TEST(ParityTest, EveryLayoutTrainsLikeOneRank) {
  const ParityCases cases = CasesFromEnvironment();
  Parity(cases).Run();
  RecordProperty("cases", static_cast<int>(cases.cases.size()));
}

}  // namespace
}  // namespace terrace
