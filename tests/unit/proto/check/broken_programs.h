// The fixture of tests that break the programs of a job and expect the checker to notice.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/mutants.h"
#include "tests/unit/proto/check/order_oracle.h"

namespace terrace {

// All mutants take minutes: TERRACE_ALL_LAYOUTS=1 tries them, otherwise so many of each kind and
// layout, evenly chosen.
inline constexpr size_t kMutantsMax = 24;

inline std::vector<Mutant> Sample(std::vector<Mutant> mutants) {
  if (std::getenv("TERRACE_ALL_LAYOUTS") != nullptr || mutants.size() <= kMutantsMax)
    return mutants;
  std::vector<Mutant> sample;
  for (size_t i = 0; i < kMutantsMax; ++i) {
    sample.push_back(std::move(mutants[i * mutants.size() / kMutantsMax]));
  }
  return sample;
}

class BrokenPrograms : public testing::Test {
 protected:
  absl::Status Try(const Mutant& mutant) {
    v1::Program whole = programs_[mutant.stage];
    mutant.apply(&programs_[mutant.stage]);
    const absl::Status status = CheckPrograms(programs_);
    broken_ = std::move(programs_[mutant.stage]);
    programs_[mutant.stage] = std::move(whole);
    return status;
  }

  void ExpectRefused(const Mutant& mutant) {
    const std::string message(Try(mutant).message());
    EXPECT_NE(message, "") << mutant.what << " goes unnoticed";
    if (message.empty()) return;
    EXPECT_THAT(message,
                testing::AnyOf(testing::HasSubstr("instruction "), testing::HasSubstr("'train'")))
        << mutant.what;
    EXPECT_THAT(message, testing::HasSubstr("buffer ")) << mutant.what;
    EXPECT_THAT(message, testing::HasSubstr("rank ")) << mutant.what;
  }

  void ExpectAllRefused(std::vector<Mutant> mutants) {
    for (const Mutant& mutant : Sample(std::move(mutants))) ExpectRefused(mutant);
  }

  // A wait whose removal leaves something without order must be missed, any other not.
  void ExpectNeededWaitsMissed() {
    std::vector<std::unique_ptr<OrderOracle>> oracles(programs_.size());
    for (const Mutant& mutant : Sample(WithoutAWait(programs_))) {
      std::unique_ptr<OrderOracle>& oracle = oracles[mutant.stage];
      if (oracle == nullptr) {
        const v1::Program& whole = programs_[mutant.stage];
        oracle = std::make_unique<OrderOracle>(whole, SequenceOf(whole, "train"));
      }
      const absl::Status status = Try(mutant);
      if (oracle->IsSafe(SequenceOf(broken_, "train"))) {
        EXPECT_EQ(status, absl::OkStatus()) << mutant.what;
      } else {
        ExpectRefused(mutant);
      }
    }
  }

  Programs programs_;
  v1::Program broken_;  // the stage that Try broke
};

}  // namespace terrace
