// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/paths/new_file.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string folder = testing::TempDir() + "file_XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Fifo() const {
    const std::string path = Path("fifo");
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    return path;
  }
  std::string folder_;
};

// What was the limit before; a file that grows beyond it is an error.
rlimit LimitFileSize(rlim_t bytes) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit = {.rlim_cur = bytes, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  return before;
}

TEST_F(FileTest, ATextFileIsReadWhole) {
  std::ofstream(Path("text")) << "two\nlines\n";
  EXPECT_EQ(ReadTextFile(Path("text"), 100).value(), "two\nlines\n");
  EXPECT_EQ(ReadTextFile(Path("text"), 9).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTextFile(Path("absent"), 9).status().code(), absl::StatusCode::kNotFound);
}

// Each of these would wait for ever if it opened as usual.
TEST_F(FileTest, AFifoIsRefusedAtOnce) {
  const std::string fifo = Fifo();
  for (const absl::Status& status :
       {ReadTextFile(fifo, 100).status(), MappedFile::Open(fifo).status(),
        OpenRegularFile(fifo).status(), CheckIsFileOrFolder(fifo)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(fifo + ": it is a FIFO, must be a regular"));
  }
  EXPECT_FALSE(CreateFile(fifo).ok());
}

TEST_F(FileTest, WhatElseIsNoFileIsNamed) {
  EXPECT_THAT(std::string(OpenRegularFile("/dev/zero").status().message()), HasSubstr("a device"));
  EXPECT_THAT(std::string(OpenRegularFile(folder_).status().message()), HasSubstr("directory"));
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, Path("socket").c_str(), sizeof address.sun_path - 1);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_THAT(std::string(OpenRegularFile(Path("socket")).status().message()),
              HasSubstr("a socket"));
}

TEST_F(FileTest, LoopsOfLinksAndLongNamesAreFaultsOfInput) {
  std::filesystem::create_symlink("loop", Path("loop"));
  for (const std::string& path : {Path("loop"), Path(std::string(5000, 'x'))}) {
    EXPECT_TRUE(absl::IsInvalidArgument(OpenRegularFile(path).status())) << path.substr(0, 80);
  }
}

TEST_F(FileTest, FilesFoldersAndWhatIsNotThereMayBeGiven) {
  std::ofstream(Path("text")) << "x";
  for (const std::string& path : {Path("text"), folder_, Path("absent")}) {
    EXPECT_TRUE(CheckIsFileOrFolder(path).ok()) << path;
  }
}

TEST_F(FileTest, ANewFileReplacesALinkAndHasItsMode) {
  std::ofstream(Path("precious")) << "precious";
  for (const char* name : {"/file", "/file.new"})
    std::filesystem::create_symlink(Path("precious"), folder_ + name);
  ASSERT_TRUE(ReplaceFile(Path("file"), "text", 0640).ok());
  EXPECT_EQ(ReadTextFile(Path("precious"), 100).value(), "precious");
  EXPECT_EQ(ReadTextFile(Path("file"), 100).value(), "text");
  const auto status = std::filesystem::symlink_status(Path("file"));
  EXPECT_EQ(status.type(), std::filesystem::file_type::regular);
  EXPECT_EQ(static_cast<unsigned>(status.permissions()), 0640u);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(Path("file.new"))));
}

TEST_F(FileTest, AnOutputIsWrittenWholeOrNotAtAll) {
  std::ofstream(Path("page")) << "before";
  std::filesystem::permissions(Path("page"), std::filesystem::perms(0640));
  std::filesystem::create_symlink("page", Path("link"));
  const rlimit before = LimitFileSize(4096);
  const absl::Status status = WriteOutput(Path("link"), std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReadTextFile(Path("page"), 9000).value(), "before");
  ASSERT_TRUE(WriteOutput(Path("link"), "after").ok());
  EXPECT_EQ(ReadTextFile(Path("page"), 9000).value(), "after");
  EXPECT_EQ(static_cast<unsigned>(std::filesystem::status(Path("page")).permissions()), 0640u);
  ASSERT_TRUE(WriteOutput(Path("new"), "new").ok());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("page", "link", "new"));
}

TEST_F(FileTest, AnOutputGoesIntoADeviceOrAPipe) {
  EXPECT_TRUE(WriteOutput("/dev/null", "text").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_TRUE(absl::IsResourceExhausted(WriteOutput("/dev/full", "text")));
  const std::string fifo = Fifo();
  EXPECT_FALSE(WriteOutput(fifo, "text").ok()) << "nobody reads it";
  const UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK));
  ASSERT_TRUE(WriteOutput(fifo, "text").ok());
  char text[8];
  EXPECT_EQ(::read(reader.get(), text, sizeof text), 4);
  EXPECT_FALSE(WriteOutput(folder_, "text").ok());
}

// To root the system lets a file take the place of any of them.
TEST_F(FileTest, ADeviceIsNotReplaced) {
  if (mknod(Path("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0)
    GTEST_SKIP() << "making a device needs root";
  std::ofstream(Path("file")) << "text";
  std::filesystem::create_symlink("null", Path("link"));
  for (const std::string& device : {Path("link"), Path("null")}) {
    const absl::Status status = Rename(Path("file"), device);
    EXPECT_THAT(std::string(status.message()), HasSubstr(device + ": it is a device")) << status;
    EXPECT_THAT(std::string(CheckCanBeReplaced(device).message()), HasSubstr("a device"));
    EXPECT_TRUE(std::filesystem::is_character_file(device));
  }
  EXPECT_TRUE(CheckCanBeReplaced(Path("file")).ok());
  EXPECT_TRUE(CheckCanBeReplaced(Path("absent")).ok());
  EXPECT_THAT(std::string(CheckCanBeReplaced(folder_).message()), HasSubstr("a folder"));
}

TEST_F(FileTest, WhatCannotBeReplacedIsNamed) {
  std::filesystem::create_directory(Path("file"));
  const absl::Status status = ReplaceFile(Path("file"), "text", 0600);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("file")));
  EXPECT_FALSE(std::filesystem::exists(Path("file.new")));
}

}  // namespace
}  // namespace terrace
