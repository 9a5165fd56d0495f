// SPDX-License-Identifier: Apache-2.0
#include "base/pipe_text.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class PipeTextTest : public testing::Test {
 protected:
  PipeTextTest() {
    folder_ = (std::filesystem::temp_directory_path() / "terrace-pipe-XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    EXPECT_EQ(pipe(ends_.data()), 0);
  }
  ~PipeTextTest() override {
    close(ends_[0]);
    CloseWriter();
    std::filesystem::remove_all(folder_);
  }

  // As a shell names what `<(...)` gives.
  std::string Path() const { return absl::StrCat("/dev/fd/", ends_[0]); }
  void Write(const std::string& text) {
    EXPECT_EQ(write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void CloseWriter() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }

  std::string folder_;
  std::array<int, 2> ends_;
};

TEST_F(PipeTextTest, APipeIsReadToItsEnd) {
  std::thread writer([this] {
    Write("name: ");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Write("a\n");
    CloseWriter();
  });
  const auto text = ReadTextOrPipe(Path(), 100);
  writer.join();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "name: a\n");
  EXPECT_TRUE(IsPipe(Path()));
  EXPECT_EQ(FolderOf(Path()), std::filesystem::current_path().string());
}

TEST_F(PipeTextTest, StandardInputIsReadToItsEnd) {
  const int before = dup(STDIN_FILENO);
  dup2(ends_[0], STDIN_FILENO);
  Write("name: a\n");
  CloseWriter();
  const auto text = ReadTextOrPipe("-", 100);
  dup2(before, STDIN_FILENO);
  close(before);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "name: a\n");
}

TEST_F(PipeTextTest, OneThatDoesNotEndIsGivenUp) {
  Write("name: ");
  const auto text = ReadTextOrPipe(Path(), 100, absl::Milliseconds(50));
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("did not end within 50ms"));
}

TEST_F(PipeTextTest, OneThatGivesTooMuchIsRefused) {
  Write(std::string(101, 'x'));
  const auto text = ReadTextOrPipe(Path(), 100, absl::Seconds(20));
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("more than 100 bytes"));
}

TEST_F(PipeTextTest, APipeWithoutAWriterIsRefusedAtOnce) {
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const auto text = ReadTextOrPipe(fifo, 100, absl::Minutes(10));
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("nobody writes into it"));
}

TEST_F(PipeTextTest, AFileIsReadAsOne) {
  const std::string path = folder_ + "/job.yaml";
  std::ofstream(path) << "name: a\n";
  EXPECT_FALSE(IsPipe(path));
  EXPECT_EQ(*ReadTextOrPipe(path, 100), "name: a\n");
  EXPECT_EQ(FolderOf(path), folder_);
  EXPECT_EQ(ReadTextOrPipe(folder_ + "/none", 100).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace
