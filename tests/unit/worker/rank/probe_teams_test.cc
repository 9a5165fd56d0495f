// The OpenMP library reads its settings before main: each measurement is made by this program
// started again, as a death test in its thread-safe style is.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/probe_teams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace terrace {
namespace {

// A team beside another has more threads than cores, for which the library spins less.
int Threads() { return static_cast<int>(std::thread::hardware_concurrency()); }

// With so many rounds.
TeamSpins Measured(const std::string& rounds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = testing::TempDir() + "team_spins_" + rounds;
  setenv("GOMP_SPINCOUNT", rounds.c_str(), 1);
  setenv("OMP_WAIT_POLICY", "active", 1);
  EXPECT_EXIT(
      {
        const TeamSpins spins = MeasureTeamSpins(Threads());
        std::ofstream(path) << spins.one_seconds << " " << spins.two_seconds;
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  TeamSpins spins = {-1, -1};
  std::ifstream(path) >> spins.one_seconds >> spins.two_seconds;
  std::remove(path.c_str());
  return spins;
}

// Of five: a thread that is held up once makes one of them several times as long or as short.
double MedianOf(const std::string& rounds, double TeamSpins::*seconds) {
  std::array<double, 5> all{};
  for (double& one : all) one = Measured(rounds).*seconds;
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

class ProbeTeamsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (Threads() < 2) GTEST_SKIP() << "one core has no team";
  }
};

// What disturbs the machine for as long as a measurement lasts makes sleep look longer, never
// shorter: the least of a few counts.
TEST_F(ProbeTeamsTest, ThreadsThatSleepAtOnceAreToldFromOthers) {
  TeamSpins least = Measured("0");
  // Always as often: this program, started again for the last, comes by the others.
  for (int i = 0; i < 4; ++i) {
    const TeamSpins spins = Measured("0");
    least.one_seconds = std::min(least.one_seconds, spins.one_seconds);
    least.two_seconds = std::min(least.two_seconds, spins.two_seconds);
  }
  EXPECT_EQ(least.one_seconds, 0);
  EXPECT_EQ(least.two_seconds, 0);
}

TEST_F(ProbeTeamsTest, TwiceTheRoundsLastTwiceAsLong) {
  const double once = MedianOf("2000", &TeamSpins::one_seconds);
  EXPECT_GT(once, 5e-6);
  EXPECT_LT(once, 200e-6);
  EXPECT_NEAR(MedianOf("4000", &TeamSpins::one_seconds) / once, 2, 0.5);
}

TEST_F(ProbeTeamsTest, BesideAnotherTeamTheLibrarySpinsForAThousandRounds) {
  const double beside = MedianOf("3000", &TeamSpins::two_seconds);
  EXPECT_NEAR(beside / MedianOf("1000", &TeamSpins::one_seconds), 1, 0.25);
}

}  // namespace
}  // namespace terrace
