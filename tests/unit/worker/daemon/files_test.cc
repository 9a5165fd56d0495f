// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "proto/program/program_hash.h"
#include "worker/daemon/log_reader.h"
#include "worker/daemon/program_cache.h"
#include "worker/daemon/run_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class FilesTest : public testing::Test {
 protected:
  ~FilesTest() override { std::filesystem::remove_all(state_); }

  v1::RankConfig MakeRun(int64_t epoch, uint32_t rank) {
    v1::RankConfig config;
    config.set_job("a-1");
    config.set_epoch(epoch);
    config.set_rank(rank);
    config.set_run_directory(RunDirectory(state_, config));
    EXPECT_TRUE(MakeRunDirectory(state_, config, RankFiles()).ok());
    return config;
  }
  void WriteLog(const v1::RankConfig& config, const std::string& text) {
    std::ofstream(LogPath(config.run_directory()), std::ios::app) << text;
  }

  static std::string MakeFolder() {
    std::string folder = testing::TempDir() + "daemon_files_XXXXXX";
    return mkdtemp(folder.data());
  }
  const std::string state_ = MakeFolder();
};

// ---- run directories --------------------------------------------------------------------------

TEST_F(FilesTest, RunsAreFoundUntilForgotten) {
  const v1::RankConfig first = MakeRun(1, 0);
  MakeRun(2, 1);
  EXPECT_EQ(ScanRuns(state_).size(), 2);
  MarkForgotten(first.run_directory());
  const auto runs = ScanRuns(state_);
  ASSERT_EQ(runs.size(), 1);
  EXPECT_EQ(runs[0].epoch(), 2);
}

TEST_F(FilesTest, AConfigThatWasNeverWrittenWholeIsNoRun) {
  const v1::RankConfig config = MakeRun(1, 0);
  std::ofstream(ConfigPath(config.run_directory())) << "\xff\xff\xff";
  EXPECT_TRUE(ScanRuns(state_).empty());
}

TEST_F(FilesTest, APidOfAnotherProgramIsNotTheRank) {
  const v1::RankConfig config = MakeRun(1, 0);
  EXPECT_FALSE(FindProcess(config.run_directory()).has_value());
  std::ofstream(PidPath(config.run_directory())) << getpid();
  EXPECT_FALSE(FindProcess(config.run_directory()).has_value());
}

TEST_F(FilesTest, TheLogOfTheNewestEpochIsTheOneToRead) {
  WriteLog(MakeRun(9, 0), "old");
  const v1::RankConfig newest = MakeRun(10, 0);
  WriteLog(newest, "new\nlast line\n");
  EXPECT_EQ(*FindLog(state_, "a-1", 0), LogPath(newest.run_directory()));
  EXPECT_EQ(LastLogLine(newest.run_directory()), "last line");
  EXPECT_EQ(FindLog(state_, "a-1", 7).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FindLog(state_, "..", 0).status().code(), absl::StatusCode::kNotFound);
}

// ---- programs ---------------------------------------------------------------------------------

v1::ProgramChunk Chunk(const std::string& whole, size_t offset, size_t size) {
  v1::ProgramChunk chunk;
  chunk.set_sha256(Sha256Hex(whole));
  chunk.set_offset(static_cast<int64_t>(offset));
  chunk.set_total_bytes(static_cast<int64_t>(whole.size()));
  chunk.set_data(whole.substr(offset, size));
  return chunk;
}

TEST_F(FilesTest, AProgramInChunksIsThereOnceItIsWhole) {
  ProgramCache cache(state_);
  const std::string program = "0123456789";
  EXPECT_FALSE(*cache.Add(Chunk(program, 0, 6)));
  EXPECT_EQ(cache.Find(Sha256Hex(program)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(*cache.Add(Chunk(program, 6, 4)));
  std::ifstream file(*cache.Find(Sha256Hex(program)));
  std::string text;
  file >> text;
  EXPECT_EQ(text, program);
}

TEST_F(FilesTest, AProgramThatDoesNotHaveItsHashIsRefused) {
  ProgramCache cache(state_);
  v1::ProgramChunk chunk = Chunk("0123456789", 0, 10);
  chunk.set_data("9876543210");
  EXPECT_EQ(cache.Add(chunk).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(cache.Find(chunk.sha256()).ok());
}

TEST_F(FilesTest, ChunksThatDoNotFollowEachOtherAreRefused) {
  ProgramCache cache(state_);
  const std::string program = "0123456789";
  EXPECT_FALSE(*cache.Add(Chunk(program, 0, 2)));
  EXPECT_EQ(cache.Add(Chunk(program, 5, 5)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(*cache.Add(Chunk(program, 6, 4))) << "the rest of what was dropped";
  EXPECT_FALSE(*cache.Add(Chunk(program, 0, 6))) << "it may come again";
  EXPECT_TRUE(*cache.Add(Chunk(program, 6, 4)));
}

TEST_F(FilesTest, AHashThatIsAPathIsRefused) {
  ProgramCache cache(state_);
  EXPECT_EQ(cache.Find("../state").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FilesTest, OnlyTheNewestProgramsAreKept) {
  ProgramCache cache(state_);
  for (size_t i = 0; i < kProgramsKept + 5; ++i) {
    const std::string program = absl::StrCat("program ", i);
    ASSERT_TRUE(*cache.Add(Chunk(program, 0, program.size())));
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(state_ + "/programs")) {
    files += entry.is_regular_file();
  }
  EXPECT_LE(files, kProgramsKept);
}

// ---- logs -------------------------------------------------------------------------------------

class LogReaderTest : public FilesTest {
 protected:
  v1::ReadLog Request(bool follow, int64_t tail_lines = 0) {
    v1::ReadLog request;
    request.set_request(3);
    request.set_job("a-1");
    request.set_follow(follow);
    request.set_tail_lines(tail_lines);
    return request;
  }
  std::string text_, error_;
  bool ended_ = false;
  bool live_ = true;
  LogReader reader_{state_,
                    {.send =
                         [this](const v1::WorkerMessage& message) {
                           EXPECT_EQ(message.log_text().request(), 3);
                           text_ += message.log_text().text();
                           ended_ |= message.log_text().end();
                           error_ += message.log_text().error();
                           return true;
                         },
                     .is_live = [this](std::string_view, uint32_t) { return live_; }}};
};

TEST_F(LogReaderTest, AWholeLogIsSentAndEnds) {
  const std::string text = std::string(static_cast<size_t>(kLogChunkBytes) * 2, 'x') + "\nend\n";
  WriteLog(MakeRun(1, 0), text);
  reader_.Handle(Request(false));
  EXPECT_EQ(text_, text);
  EXPECT_TRUE(ended_);
  EXPECT_FALSE(reader_.active());
}

TEST_F(LogReaderTest, TheTailIsTheLastLines) {
  WriteLog(MakeRun(1, 0), "1\n2\n3\n");
  reader_.Handle(Request(false, 2));
  EXPECT_EQ(text_, "2\n3\n");
}

TEST_F(LogReaderTest, FollowingSendsWhatIsAddedUntilTheRankEnds) {
  const v1::RankConfig run = MakeRun(1, 0);
  WriteLog(run, "1\n");
  reader_.Handle(Request(true));
  EXPECT_FALSE(ended_);
  WriteLog(run, "2\n");
  reader_.Poll();
  EXPECT_EQ(text_, "1\n2\n");
  WriteLog(run, "3\n");
  live_ = false;
  reader_.Poll();
  EXPECT_EQ(text_, "1\n2\n3\n");
  EXPECT_TRUE(ended_);
}

TEST_F(LogReaderTest, ALogThatIsNotHereIsAnError) {
  reader_.Handle(Request(false));
  EXPECT_TRUE(ended_);
  EXPECT_THAT(error_, HasSubstr("no log of rank 0 of job a-1"));
}

TEST_F(LogReaderTest, AReaderThatStopsIsForgotten) {
  WriteLog(MakeRun(1, 0), "1\n");
  reader_.Handle(Request(true));
  v1::ReadLog stop = Request(true);
  stop.set_stop(true);
  reader_.Handle(stop);
  EXPECT_FALSE(reader_.active());
}

}  // namespace
}  // namespace terrace
