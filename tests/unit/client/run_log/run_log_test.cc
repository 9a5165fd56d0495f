// SPDX-License-Identifier: Apache-2.0
#include "client/run_log/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/run_log/checksum.h"
#include "client/run_log/tensorboard.pb.h"
#include "client/run_log/wandb.pb.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class RunLogTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/run_log_test.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    job_.set_id("tiny-1");
    job_.set_submitted_unix_ms(1'700'000'000'000);
    job_.set_finished_unix_ms(1'700'000'009'000);
    job_.mutable_spec()->set_name("tiny");
    job_.set_state(v1::SUCCEEDED);
  }
  void TearDown() override { fs::remove_all(folder_); }

  v1::JobEvent Step(int64_t step, double loss) {
    v1::JobEvent event;
    event.set_unix_ms(job_.submitted_unix_ms() + 1000 * step);
    event.mutable_step()->set_step(step);
    event.mutable_step()->set_loss(loss);
    event.mutable_step()->set_tokens(512);
    return event;
  }
  v1::JobEvent Eval(int64_t step, double loss) {
    v1::JobEvent event;
    event.set_unix_ms(job_.submitted_unix_ms() + 1000 * step + 1);
    event.mutable_eval()->set_step(step);
    event.mutable_eval()->set_loss(loss);
    return event;
  }
  // The one file below the folder whose name has the word.
  std::string Content(const std::string& word) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_regular_file() || name.find(word) == std::string::npos) continue;
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      return text.str();
    }
    return "";
  }
  static std::vector<std::string> Lines(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  std::string folder_;
  v1::Job job_;
};

TEST(ChecksumTest, AgreesWithPublishedValues) {
  EXPECT_EQ(Crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu) << "RFC 3720, B.4";
}

TEST_F(RunLogTest, ATableHasARowAStepAndAnEvaluation) {
  const std::string path = folder_ + "/run.csv";
  auto logs = RunLogs::Open({.csv = path}, job_);
  ASSERT_TRUE(logs.ok()) << logs.status();
  logs->Add(Step(1, 5.5));
  logs->Add(Eval(1, NAN));
  v1::JobEvent activity;
  activity.mutable_activity()->set_text("tokenising");
  logs->Add(activity);
  logs->Finish(job_);
  EXPECT_THAT(Lines(Content("run.csv")), ElementsAre(HasSubstr("unix_ms,step,train/loss,"),
                                                     "1700000001000,1,5.5,0,0,,512,0,0,,,,",
                                                     "1700000001001,1,,,,,,,,nan,0,,"));
}

TEST_F(RunLogTest, AJobThatIsWatchedAgainIsNotWrittenTwiceAndAHalfRowIsCutAway) {
  const std::string path = folder_ + "/run.csv";
  {
    auto logs = RunLogs::Open({.csv = path}, job_);
    logs->Add(Step(1, 5));
    logs->Add(Step(2, 4));
    logs->Finish(job_);
  }
  std::ofstream(path, std::ios::app) << "17000000030";  // and the machine died
  auto logs = RunLogs::Open({.csv = path}, job_);
  ASSERT_TRUE(logs.ok()) << logs.status();
  for (int step = 1; step <= 3; ++step) logs->Add(Step(step, 6 - step));
  logs->Finish(job_);
  EXPECT_THAT(Lines(Content("run.csv")), ElementsAre(HasSubstr("unix_ms"), HasSubstr(",1,5,"),
                                                     HasSubstr(",2,4,"), HasSubstr(",3,3,")));
}

TEST_F(RunLogTest, WhatIsNoTableOfOursIsLeftAlone) {
  const std::string path = folder_ + "/notes.csv";
  std::ofstream(path) << "my notes\n";
  const absl::Status refused = RunLogs::Check({.csv = path});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--csv: " + path));
  EXPECT_EQ(Content("notes"), "my notes\n");
  EXPECT_EQ(RunLogs::Check({.csv = folder_ + "/none/run.csv"}).code(), absl::StatusCode::kNotFound);
}

uint32_t Masked(std::string_view bytes) {
  const uint32_t check = Crc32c(bytes);
  return ((check >> 15) | (check << 17)) + 0xa282ead8u;
}

TEST_F(RunLogTest, TensorBoardRecordsAreWhole) {
  auto logs = RunLogs::Open({.tensorboard = folder_ + "/tb"}, job_);
  ASSERT_TRUE(logs.ok()) << logs.status();
  logs->Add(Step(7, 5.5));
  logs->Finish(job_);
  const std::string text = Content("tfevents");
  std::vector<tensorboard::Event> events;
  for (size_t at = 0; at < text.size();) {
    uint64_t length = 0;
    uint32_t check = 0;
    ASSERT_LE(at + 16, text.size());
    std::memcpy(&length, text.data() + at, 8);
    std::memcpy(&check, text.data() + at + 8, 4);
    EXPECT_EQ(check, Masked(text.substr(at, 8)));
    const std::string data = text.substr(at + 12, length);
    std::memcpy(&check, text.data() + at + 12 + length, 4);
    EXPECT_EQ(check, Masked(data));
    ASSERT_TRUE(events.emplace_back().ParseFromString(data));
    at += 16 + length;
  }
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_EQ(events[1].summary().value(0).tag(), "train/loss");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 5.5f);
}

// Puts records together again that lie over blocks of 32 KiB.
std::vector<wandb::Record> ReadWandb(const std::string& text) {
  std::vector<wandb::Record> records;
  std::string data;
  for (size_t at = 7; at + 7 <= text.size();) {
    if (const size_t room = 32768 - at % 32768; room < 7) {
      at += room;
      continue;
    }
    uint32_t check = 0;
    uint16_t length = 0;
    std::memcpy(&check, text.data() + at, 4);
    std::memcpy(&length, text.data() + at + 4, 2);
    const char type = text[at + 6];
    EXPECT_EQ(check, Crc32(text.substr(at + 6, 1u + length)));
    data += text.substr(at + 7, length);
    at += 7u + length;
    if (type == 2 || type == 3) continue;
    EXPECT_TRUE(records.emplace_back().ParseFromString(data));
    data.clear();
  }
  return records;
}

TEST_F(RunLogTest, AnOfflineRunIsWholeAlsoOverBlocks) {
  job_.mutable_spec()->mutable_model()->set_config_json(std::string(100'000, 'x'));
  auto logs = RunLogs::Open({.wandb = folder_}, job_);
  ASSERT_TRUE(logs.ok()) << logs.status();
  constexpr int kSteps = 500;
  for (int step = 1; step <= kSteps; ++step) logs->Add(Step(step, step == 2 ? NAN : step));
  logs->Finish(job_);
  const std::string text = Content(".wandb");
  EXPECT_EQ(text.substr(0, 7), std::string(":W&B\xE1\xBE\0", 7));
  const std::vector<wandb::Record> records = ReadWandb(text);
  ASSERT_EQ(records.size(), 2u + kSteps + 2u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].num(), static_cast<int64_t>(i) + 1);
  }
  EXPECT_EQ(records[1].run().display_name(), "tiny-1");
  EXPECT_EQ(records[3].history().item(0).value_json(), "\"NaN\"");
  EXPECT_EQ(records[4].history().step().num(), 2);
  EXPECT_EQ(records.back().exit().exit_code(), 0);
  EXPECT_EQ(records.back().exit().runtime(), 9);
}

}  // namespace
}  // namespace terrace
