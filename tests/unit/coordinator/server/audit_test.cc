// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class AuditTest : public testing::Test {
 protected:
  AuditTest() { std::filesystem::create_directories(folder_); }
  ~AuditTest() override { std::filesystem::remove_all(folder_); }

  std::string Text(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/audit_test.", getpid());
  const std::string path_ = folder_ + "/audit.jsonl";
  const AuditRecord record_ = {.call = "Cancel",
                               .job = "a-1",
                               .node = {},
                               .arguments = {{"force", "true"}},
                               .caller = {.shown = Caller::Shown::kCertificate,
                                          .identity = {{{Role::kSubmitter, "alice"}}},
                                          .peer = "ipv4:10.0.0.7:5"},
                               .status = absl::OkStatus()};
};

TEST_F(AuditTest, ALineSaysWhoDidWhatAndWhatCameOfIt) {
  EXPECT_EQ(AuditLine(record_, 1'800'000'000'123),
            "{\"time\":\"2027-01-15T08:00:00.123Z\",\"call\":\"Cancel\",\"job\":\"a-1\","
            "\"arguments\":{\"force\":\"true\"},"
            "\"by\":[{\"role\":\"submitter\",\"name\":\"alice\"}],\"shown\":\"certificate\","
            "\"peer\":\"ipv4:10.0.0.7:5\",\"status\":\"OK\"}\n");
  AuditRecord refused = record_;
  refused.status = absl::PermissionDeniedError("not yours");
  EXPECT_THAT(AuditLine(refused, 0),
              HasSubstr("\"status\":\"PERMISSION_DENIED\",\"message\":\"not yours\""));
}

TEST_F(AuditTest, WhatComesFromOutsideCannotForgeALineOrFillTheDisk) {
  AuditRecord record = record_;
  record.job = "a\n{\"call\":\"Drain\"}\xff" + std::string(1 << 20, 'x');
  const std::string line = AuditLine(record, 0);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_LT(line.size(), 5000u);
  EXPECT_EQ(nlohmann::json::parse(line)["call"], "Cancel");
}

TEST_F(AuditTest, LinesAreAppendedToAFileOfTheOwner) {
  for (int i = 0; i < 2; ++i) {
    const auto log = AuditLog::Open({.path = path_});
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->Write(record_);
  }
  const std::string text = Text("audit.jsonl");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(AuditTest, AFullFileIsKeptUnderAnotherNameAndTheOldestGoes) {
  const auto line = static_cast<int64_t>(AuditLine(record_, 0).size());
  const auto log = AuditLog::Open({.path = path_, .bytes_max = 2 * line, .files_kept = 2});
  ASSERT_TRUE(log.ok());
  AuditRecord record = record_;
  for (int i = 1; i <= 8; ++i) {
    record.job = absl::StrCat("a-", i);
    (*log)->Write(record);
  }
  EXPECT_THAT(Text("audit.jsonl"), HasSubstr("a-8"));
  EXPECT_THAT(Text("audit.jsonl.1"), HasSubstr("a-5"));
  EXPECT_THAT(Text("audit.jsonl.2"), HasSubstr("a-3"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".3"));
}

TEST_F(AuditTest, AFileThatIsMovedAwayIsFollowedByAnother) {
  const auto log = AuditLog::Open({.path = path_});
  (*log)->Write(record_);
  std::filesystem::rename(path_, path_ + ".moved");
  ASSERT_TRUE((*log)->Reopen().ok());
  (*log)->Write(record_);
  EXPECT_NE(Text("audit.jsonl"), "");
  EXPECT_NE(Text("audit.jsonl.moved"), "");
}

TEST_F(AuditTest, WhatIsNoFileIsRefused) {
  EXPECT_EQ(AuditLog::Open({.path = folder_ + "/absent/audit.jsonl"}).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  EXPECT_FALSE(AuditLog::Open({.path = folder_ + "/fifo"}).ok());
}

}  // namespace
}  // namespace terrace
