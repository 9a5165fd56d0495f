// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

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

}  // namespace
}  // namespace terrace
