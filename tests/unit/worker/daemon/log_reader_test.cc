// Logs and traces on their way to the coordinator: all of it, once, however little room there is.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/log_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "worker/daemon/run_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CrowdedLogReaderTest : public testing::Test {
 protected:
  CrowdedLogReaderTest()
      : state_(fs::path(testing::TempDir()) / "log_reader_test"),
        reader_(state_.string(),
                {.send = [this](const v1::WorkerMessage& m) { return Take(m); },
                 .is_live = [this](std::string_view, uint32_t) { return live_; }}) {
    fs::remove_all(state_);
  }
  ~CrowdedLogReaderTest() override { fs::remove_all(state_); }

  void Write(int64_t epoch, std::string (*path_in)(std::string_view), const std::string& text) {
    v1::RankConfig config;
    config.set_job("job-1");
    config.set_epoch(epoch);
    const std::string folder = RunDirectory(state_.string(), config);
    fs::create_directories(folder);
    std::ofstream(path_in(folder), std::ios::binary) << text;
  }
  void Read(bool trace) {
    v1::ReadLog request;
    request.set_request(5);
    request.set_job("job-1");
    request.set_trace(trace);
    reader_.Handle(request);
  }
  // What comes behind that place.
  std::string ReadAfter(const v1::LogPosition& after, bool follow) {
    v1::ReadLog request;
    request.set_request(5);
    request.set_job("job-1");
    request.set_follow(follow);
    *request.mutable_after() = after;
    text_.clear();
    error_.clear();
    reader_.Handle(request);
    return text_;
  }
  bool Take(const v1::WorkerMessage& message) {
    EXPECT_EQ(message.log_text().request(), 5u);
    if (room_ == 0) return false;
    --room_;
    text_ += message.log_text().text();
    if (message.log_text().has_position()) end_ = message.log_text().position();
    ends_ += message.log_text().end() ? 1 : 0;
    error_ += message.log_text().error();
    return true;
  }

  const fs::path state_;
  bool live_ = false;
  int room_ = 1000;  // messages that are taken before there is no room
  std::string text_, error_;
  v1::LogPosition end_;  // the last that was told
  int ends_ = 0;
  LogReader reader_;
};

TEST_F(CrowdedLogReaderTest, WhatFindsNoRoomIsSentWhenThereIsSome) {
  std::string text;
  while (text.size() < 5 * kLogChunkBytes) text += std::to_string(text.size()) + "\n";
  Write(1, LogPath, text);
  room_ = 2;
  Read(/*trace=*/false);
  EXPECT_TRUE(reader_.active());
  reader_.Poll();
  EXPECT_EQ(ends_, 0);
  for (int round = 0; round < 20 && reader_.active(); ++round) {
    room_ = 1;
    reader_.Poll();
  }
  EXPECT_EQ(text_, text);
  EXPECT_EQ(ends_, 1);
  EXPECT_EQ(error_, "");
}

TEST_F(CrowdedLogReaderTest, ALogThatCannotBeReadIsNotTakenForOneThatEnds) {
  v1::RankConfig config;
  config.set_job("job-1");
  config.set_epoch(1);
  fs::create_directories(LogPath(RunDirectory(state_.string(), config)));  // reading a folder fails
  live_ = true;
  for (const bool follow : {false, true}) {
    ReadAfter({}, follow);
    EXPECT_THAT(error_, HasSubstr("rank.log from byte 0 on: Is a directory"));
    EXPECT_FALSE(reader_.active());
  }
  Read(/*trace=*/false);
  EXPECT_THAT(error_, HasSubstr("Is a directory"));
  EXPECT_EQ(ends_, 3);
}

TEST_F(CrowdedLogReaderTest, ATraceIsTheNewestEpochsThatHasOne) {
  Write(1, TracePath, "older");
  Write(2, TracePath, "newer");
  Write(3, LogPath, "a log");
  Read(/*trace=*/true);
  EXPECT_EQ(text_, "newer");
  EXPECT_EQ(ends_, 1);
}

TEST_F(CrowdedLogReaderTest, AMissingTraceIsToldWithTheKeyThatMakesOne) {
  Write(1, LogPath, "a log");
  Read(/*trace=*/true);
  EXPECT_EQ(text_, "");
  EXPECT_EQ(ends_, 1);
  EXPECT_THAT(error_, HasSubstr("train.trace_steps"));
  EXPECT_FALSE(reader_.active());
}

TEST_F(CrowdedLogReaderTest, AnErrorThatFindsNoRoomIsToldLater) {
  room_ = 0;
  Read(/*trace=*/false);
  EXPECT_TRUE(reader_.active());
  room_ = 1;
  reader_.Poll();
  EXPECT_THAT(error_, HasSubstr("no log of rank 0 of job job-1"));
  EXPECT_EQ(ends_, 1);
  EXPECT_FALSE(reader_.active());
}

TEST_F(CrowdedLogReaderTest, AFollowedLogEndsWhenTheRankIsStartedAgain) {
  Write(1, LogPath, "one\n");
  live_ = true;
  v1::ReadLog request;
  request.set_request(5);
  request.set_job("job-1");
  request.set_follow(true);
  reader_.Handle(request);
  reader_.Poll();
  EXPECT_TRUE(reader_.active());
  Write(2, LogPath, "again\n");
  reader_.Poll();
  EXPECT_FALSE(reader_.active()) << "nobody writes to the first one any more";
  EXPECT_EQ(ends_, 1);
  EXPECT_EQ(text_, "one\n");
}

TEST_F(CrowdedLogReaderTest, AReadingGoesOnBehindAPlaceAndIntoTheLogsOfLaterStarts) {
  Write(1, LogPath, "one\n");
  Read(/*trace=*/false);
  EXPECT_EQ(end_.epoch(), 1);
  EXPECT_EQ(end_.offset(), 4);
  EXPECT_EQ(ReadAfter(end_, /*follow=*/false), "");
  Write(1, LogPath, "one\ntwo\n");
  Write(3, LogPath, "three\n");
  Write(4, LogPath, "four\n");
  EXPECT_EQ(ReadAfter(end_, false), "two\nthree\nfour\n");
  EXPECT_EQ(end_.epoch(), 4);
  EXPECT_EQ(end_.offset(), 5);
  live_ = true;
  EXPECT_EQ(ReadAfter(end_, /*follow=*/true), "");
  EXPECT_TRUE(reader_.active());
  Write(4, LogPath, "four\nfive\n");
  reader_.Poll();
  EXPECT_EQ(text_, "five\n");
  Write(5, LogPath, "six\n");
  reader_.Poll();
  EXPECT_EQ(text_, "five\nsix\n") << "the same reader goes on with the next start";
  live_ = false;
  reader_.Poll();
  EXPECT_FALSE(reader_.active());
  end_.set_epoch(7);
  EXPECT_EQ(ReadAfter(end_, false), "");
  EXPECT_THAT(error_, HasSubstr("since its start 7"));
}

TEST_F(CrowdedLogReaderTest, AReadingOfAPlaceEndsBeforeItIsTooLargeAndTheNextHasTheRest) {
  const std::string line(1023, 'x');
  std::string text;
  while (text.size() < kLogTailBytesMax + 3 * kLogChunkBytes) text += line + "\n";
  Write(1, LogPath, text);
  end_.set_epoch(1);
  end_.set_offset(1024);
  const std::string first = ReadAfter(end_, false);
  EXPECT_EQ(first.size(), static_cast<size_t>(kLogTailBytesMax));
  EXPECT_FALSE(reader_.active());
  EXPECT_EQ(1024 + first.size() + ReadAfter(end_, false).size(), text.size());
}

}  // namespace
}  // namespace terrace
