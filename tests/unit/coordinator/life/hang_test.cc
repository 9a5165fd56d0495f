// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kBoundMs = 10'000;
constexpr int64_t kNowMs = 1'000'000;

// All in step 7, standing for 12 s, asleep.
RankView Standing(uint32_t rank) {
  RankView view{.rank = rank, .worker = absl::StrCat("w", rank), .presence = Presence::kReported};
  view.report.set_state(v1::RANK_RUNNING);
  view.report.set_pid(static_cast<int32_t>(100 + rank));
  v1::RankPlace& place = *view.report.mutable_place();
  place.set_standing_ms(12'000);
  place.set_places(70);
  place.set_activity(v1::ACTIVITY_STEP);
  place.set_step(7);
  place.set_sequence("train");
  place.set_process(v1::PROCESS_WAITING);
  place.set_process_words("sleeps");
  return view;
}
RankView InExchange(uint32_t rank, const std::string& group, int64_t finished, bool arrived) {
  RankView view = Standing(rank);
  v1::GroupPlace* place = view.report.mutable_place()->add_groups();
  place->set_group(group);
  place->set_finished(finished);
  place->set_arrived(arrived);
  if (arrived) place->set_instruction(absl::StrCat(40 + finished, " all_reduce"));
  return view;
}
RankView Computing(uint32_t rank, const std::string& group, int64_t finished) {
  RankView view = InExchange(rank, group, finished, /*arrived=*/false);
  view.report.mutable_place()->set_instruction("12 matmul, layer 3");
  return view;
}
RankView Stopped(RankView view) {
  view.report.mutable_place()->set_process(v1::PROCESS_STOPPED);
  view.report.mutable_place()->set_process_words("is stopped by a signal");
  return view;
}

v1::Hang Hang(const std::vector<RankView>& ranks) {
  const auto found = FindHang(ranks, kBoundMs, kNowMs);
  EXPECT_TRUE(found.has_value());
  return found.has_value() ? found->hang : v1::Hang();
}
bool IsQuiet(const std::vector<RankView>& ranks) {
  return !FindHang(ranks, kBoundMs, kNowMs).has_value();
}

TEST(HangTest, TheBoundIsTenSecondsOrThreeSteps) {
  EXPECT_EQ(StandingMs(0.1, true), 10'000);
  EXPECT_EQ(StandingMs(20, true), 60'000);
  EXPECT_EQ(StandingMs(0.1, false), 60'000) << "the first step may take long";
  EXPECT_EQ(StandingMs(100, false), 300'000);
}

TEST(HangTest, AStoppedRankIsNamedWithWhoWaitsForIt) {
  const v1::Hang hang =
      Hang({InExchange(0, "data.0", 2, true), Stopped(Computing(1, "data.0", 2))});
  EXPECT_THAT(hang.ranks(), ElementsAre(1));
  EXPECT_EQ(hang.worker(), "w1");
  EXPECT_EQ(hang.pid(), 101);
  EXPECT_EQ(hang.process(), v1::PROCESS_STOPPED);
  EXPECT_EQ(hang.since_unix_ms(), kNowMs - 12'000);
  EXPECT_EQ(hang.message(),
            "rank 1 on w1 (process 101) is stopped by a signal, at instruction 12 matmul, layer 3 "
            "of step 7 (train); rank 0 waits for it at instruction 42 all_reduce of step 7 "
            "(train)");
  EXPECT_EQ(HangLabel(hang), "stopped");
}

TEST(HangTest, AStoppedRankIsNamedWhileOthersStillMove) {
  RankView other = Standing(0);
  other.report.mutable_place()->set_standing_ms(0);
  RankView stopped = Stopped(Computing(1, "data.0", 2));
  stopped.report.mutable_place()->set_standing_ms(kStoppedMs);
  EXPECT_THAT(Hang({other, stopped}).ranks(), ElementsAre(1));
  stopped.report.mutable_place()->set_standing_ms(kStoppedMs - 1);
  EXPECT_TRUE(IsQuiet({other, stopped})) << "a debugger may stop it for a moment";
  stopped.report.mutable_place()->set_standing_ms(kStoppedMs);
  stopped.report.set_state(v1::RANK_PREPARING);
  EXPECT_THAT(Hang({other, stopped}).ranks(), ElementsAre(1)) << "also before it trains";
}

TEST(HangTest, NothingIsToldWhileAnyRankMoves) {
  RankView moves = Computing(1, "data.0", 2);
  moves.report.mutable_place()->set_standing_ms(kBoundMs - 1);
  EXPECT_TRUE(IsQuiet({InExchange(0, "data.0", 2, true), moves}));
  moves.report.mutable_place()->set_standing_ms(kBoundMs);
  EXPECT_FALSE(IsQuiet({InExchange(0, "data.0", 2, true), moves}));
}

TEST(HangTest, NothingIsToldOfRanksThatDoNotTrainYetOrHaveEnded) {
  RankView loads = Standing(0);
  loads.report.mutable_place()->set_activity(v1::ACTIVITY_PREPARING);
  loads.report.mutable_place()->set_standing_ms(3'000'000);
  EXPECT_TRUE(IsQuiet({loads}));
  RankView prepares = Standing(0);
  prepares.report.set_state(v1::RANK_READY);
  EXPECT_TRUE(IsQuiet({prepares, Computing(1, "data.0", 2)}));
  RankView over = Standing(0);
  over.report.set_state(v1::RANK_SUCCEEDED);
  EXPECT_TRUE(IsQuiet({over}));
  EXPECT_THAT(Hang({over, Computing(1, "data.0", 2)}).ranks(), ElementsAre(1));
  RankView older = Standing(0);
  older.report.clear_place();  // of a worker that tells none
  EXPECT_TRUE(IsQuiet({older}));
}

TEST(HangTest, ALongCheckpointIsNoHang) {
  RankView saves = Standing(0);
  saves.report.mutable_place()->set_activity(v1::ACTIVITY_CHECKPOINT);
  saves.report.mutable_place()->clear_sequence();
  saves.report.mutable_place()->set_standing_ms(kCheckpointStandingMs - 1);
  EXPECT_TRUE(IsQuiet({saves}));
  saves.report.mutable_place()->set_standing_ms(kCheckpointStandingMs);
  EXPECT_THAT(Hang({saves}).message(), HasSubstr("a checkpoint, after step 7"));
}

TEST(HangTest, WhoDoesSomethingOfItsOwnIsWhoOthersWaitFor) {
  RankView reads = Computing(2, "data.0", 2);
  reads.report.mutable_place()->set_process(v1::PROCESS_IN_IO);
  reads.report.mutable_place()->set_process_words("waits for a drive or a file system (nfs)");
  const v1::Hang hang =
      Hang({InExchange(0, "data.0", 2, true), InExchange(1, "data.0", 2, true), reads});
  EXPECT_THAT(hang.ranks(), ElementsAre(2));
  EXPECT_EQ(hang.message(),
            "rank 2 on w2 (process 102) does nothing any more: it stands at instruction 12 matmul, "
            "layer 3 of step 7 (train) and waits for a drive or a file system (nfs); ranks 0, 1 "
            "wait for it, the first at instruction 42 all_reduce of step 7 (train)");
  EXPECT_EQ(HangLabel(hang), "in_io");
}

TEST(HangTest, WhoIsOutsideOfTheStepHoldsUpWhoAgrees) {
  RankView agrees = Standing(0);
  agrees.report.mutable_place()->set_activity(v1::ACTIVITY_AGREEING);
  agrees.report.mutable_place()->clear_sequence();
  agrees.report.mutable_place()->set_places(73);
  RankView between = agrees;
  between.rank = 1;
  between.report.mutable_place()->set_activity(v1::ACTIVITY_BETWEEN);
  between.report.mutable_place()->set_places(72);
  const v1::Hang hang = Hang({agrees, between});
  EXPECT_THAT(hang.ranks(), ElementsAre(1));
  EXPECT_THAT(hang.message(), HasSubstr("the agreement of all ranks after step 7"));
}

TEST(HangTest, WhoIsBehindInAGroupIsFoundThroughThoseWhoWaitForOneAnother) {
  // Rank 0 waits for 1 in their group; 1 for 2 in another; 2 has come to neither, nor does it
  // execute anything: the program does not say why.
  RankView middle = InExchange(1, "data.0", 4, false);
  v1::GroupPlace* tensor = middle.report.mutable_place()->add_groups();
  tensor->set_group("tensor.1");
  tensor->set_finished(9);
  tensor->set_arrived(true);
  tensor->set_instruction("30 all_gather");
  RankView last = InExchange(2, "tensor.1", 9, false);
  const v1::Hang hang = Hang({InExchange(0, "data.0", 4, true), middle, last});
  EXPECT_THAT(hang.ranks(), ElementsAre(2));
  EXPECT_FALSE(hang.connection());
}

TEST(HangTest, WhoHasFinishedFewerExchangesOfAGroupIsBehind) {
  const v1::Hang hang = Hang({InExchange(0, "data.0", 5, true), InExchange(1, "data.0", 4, true)});
  EXPECT_TRUE(hang.connection()) << "rank 0 has left the exchange that rank 1 stands in";
  EXPECT_EQ(hang.place(), "instruction 44 all_reduce of step 7 (train)");
}

TEST(HangTest, WhereNobodyIsBehindItIsTheConnection) {
  const v1::Hang hang = Hang({InExchange(0, "data.0", 4, true), InExchange(1, "data.0", 4, true)});
  EXPECT_TRUE(hang.connection());
  EXPECT_THAT(hang.ranks(), ElementsAre(0, 1));
  EXPECT_EQ(hang.message(),
            "nothing comes through between ranks 0, 1: rank 0 on w0 (process 100) stands at "
            "instruction 44 all_reduce of step 7 (train); look at the "
            "network between w0, w1");
  EXPECT_EQ(HangLabel(hang), "connection");
}

TEST(HangTest, AnAgreementThatSomeHaveLeftIsTheConnectionToo) {
  RankView agrees = Standing(1);
  agrees.report.mutable_place()->set_activity(v1::ACTIVITY_AGREEING);
  agrees.report.mutable_place()->clear_sequence();
  agrees.report.mutable_place()->set_places(69);
  const v1::Hang hang = Hang({InExchange(0, "data.0", 0, true), agrees});
  EXPECT_TRUE(hang.connection());
  EXPECT_THAT(hang.ranks(), ElementsAre(0, 1));
}

TEST(HangTest, WithinAGraphOnlyTheStepIsKnown) {
  const v1::Hang hang = Hang({Standing(0), Standing(1)});
  EXPECT_FALSE(hang.connection());
  EXPECT_THAT(hang.ranks(), ElementsAre(0, 1));
  EXPECT_EQ(hang.place(), "step 7");
}

TEST(HangTest, ManyRanksAreToldInPart) {
  std::vector<RankView> ranks;
  for (uint32_t rank = 0; rank < 40; ++rank) ranks.push_back(InExchange(rank, "data.0", 4, true));
  ranks.push_back(Computing(40, "data.0", 4));
  const v1::Hang hang = Hang(ranks);
  EXPECT_EQ(hang.waiting_size(), kHangRanksTold);
  EXPECT_THAT(hang.message(), HasSubstr("15 and 24 others wait for it"));
}

TEST(HangTest, WhatAWorkerSaysStaysOneHarmlessLine) {
  RankView rank = Stopped(Computing(0, "data.0", 1));
  rank.report.mutable_place()->set_instruction("1 a\x1b[31m\n" + std::string(5000, 'x'));
  const v1::Hang hang = Hang({rank});
  EXPECT_THAT(hang.message(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(hang.message(), Not(HasSubstr("\n")));
  EXPECT_LT(hang.message().size(), 1000);
}

TEST(HangTest, AHangIsTheSameUntilItsRanksItsStepOrTheStopChange) {
  const v1::Hang hang = Hang({Stopped(Computing(1, "data.0", 2))});
  v1::Hang other = hang;
  other.set_since_unix_ms(1);
  other.set_process_words("is stopped by a debugger");
  EXPECT_TRUE(IsSameHang(hang, other));
  other.set_step(8);
  EXPECT_FALSE(IsSameHang(hang, other));
  other = hang;
  other.set_process(v1::PROCESS_WAITING);
  EXPECT_FALSE(IsSameHang(hang, other));
  other = hang;
  other.add_ranks(5);
  EXPECT_FALSE(IsSameHang(hang, other));
}

// ---- slow ranks -------------------------------------------------------------------------------

RankView Works(uint32_t rank, double computing, double waiting) {
  RankView view = Standing(rank);
  view.report.mutable_place()->set_computing_ratio(computing);
  view.report.mutable_place()->set_waiting_ratio(waiting);
  return view;
}
std::vector<uint32_t> Slow(const std::vector<RankView>& ranks,
                           const std::vector<uint32_t>& stages) {
  std::vector<uint32_t> slow;
  for (const v1::SlowRank& one : FindSlow(ranks, stages, kNowMs)) slow.push_back(one.rank());
  return slow;
}

TEST(SlowTest, ARankThatOthersOfItsStageWaitForIsSlow) {
  const std::vector<RankView> ranks = {Works(0, 0.6, 0.35), Works(1, 0.61, 0.33),
                                       Works(2, 0.9, 0.02), Works(3, 0.6, 0.35)};
  EXPECT_THAT(Slow(ranks, {0, 0, 0, 0}), ElementsAre(2));
  const v1::SlowRank slow = FindSlow(ranks, std::vector<uint32_t>{0, 0, 0, 0}, kNowMs)[0];
  EXPECT_EQ(SlowText(slow),
            "rank 2 on w2 is slow: it computes 90 % of the time, the others 60 %, and these wait "
            "35 % of the time in exchanges");
}

TEST(SlowTest, StagesMayDifferByPlan) {
  EXPECT_TRUE(Slow({Works(0, 0.5, 0.4), Works(1, 0.9, 0.02)}, {0, 1}).empty());
}

TEST(SlowTest, ALittleMoreIsNotSlowNorIsWhoNobodyWaitsFor) {
  EXPECT_TRUE(Slow({Works(0, 0.6, 0.3), Works(1, 0.74, 0.1)}, {0, 0}).empty());
  EXPECT_TRUE(Slow({Works(0, 0.6, 0.05), Works(1, 0.9, 0.02)}, {0, 0}).empty());
  EXPECT_TRUE(Slow({Works(0, 0.01, 0.9), Works(1, 0.05, 0.9)}, {0, 0}).empty());
  EXPECT_TRUE(Slow({Works(0, 0.6, 0.3), Works(1, 0, 0)}, {0, 0}).empty()) << "not known yet";
}

}  // namespace
}  // namespace terrace
