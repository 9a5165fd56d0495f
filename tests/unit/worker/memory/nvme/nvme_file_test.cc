// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_file.h"

#include <sys/stat.h>

#include "gmock/gmock.h"
#include "tests/unit/worker/memory/nvme/nvme_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using NvmeFileTest = NvmeFixture;

absl::Status Refusal(NvmeOptions options) { return NvmeFile::Create(std::move(options)).status(); }

TEST_F(NvmeFileTest, IsPreallocatedPrivateAndGoneWithTheProcess) {
  const NvmeOptions options = Options((5 << 20) + 1, 2);
  const auto file = MakeNvmeFile(options);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->data(), nullptr);
  EXPECT_EQ(file->bytes(), (5 << 20) + 1);
  EXPECT_EQ(file->file_bytes(), 2 * ((3 << 20) + 4096));  // six units and a page behind each
  for (const std::string& path : options.paths) EXPECT_TRUE(std::filesystem::is_empty(path));
  struct stat info = {};
  ASSERT_EQ(::fstat(OpenFromOutside("job-rank3-0").get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
  EXPECT_EQ(info.st_size, (3 << 20) + 4096);
  if (file->description().find("not preallocated") == std::string::npos) {
    EXPECT_GE(info.st_blocks * 512, info.st_size);
  }
}

TEST_F(NvmeFileTest, ReadsZerosWhereNothingWasWritten) {
  NvmeOptions options = Options(10000);
  options.verify = true;
  const auto file = MakeNvmeFile(std::move(options));
  std::vector<std::byte> got(10000, std::byte{1});
  ASSERT_EQ(file->Read(0, got), absl::OkStatus());
  EXPECT_EQ(got, std::vector<std::byte>(10000));
}

TEST_F(NvmeFileTest, RangesBeyondTheEndAreRefused) {
  const auto file = MakeNvmeFile(Options(10000));
  std::vector<std::byte> some(10);
  EXPECT_EQ(file->Read(9990, some), absl::OkStatus());
  EXPECT_EQ(file->Read(9991, some).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(file->Write(9991, some).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(file->Write(-1, some).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(NvmeFileTest, RangesLargerThanTheBounceBufferAreMovedInParts) {
  constexpr int64_t kBytes = (20 << 20) + 77;
  const auto file = MakeNvmeFile(Options(kBytes, 2));
  std::vector<std::byte> from(kBytes - 33);
  FillRandom(from, 2);
  ASSERT_EQ(file->Write(33, from), absl::OkStatus());
  std::vector<std::byte> got(kBytes);
  ASSERT_EQ(file->Read(0, got), absl::OkStatus());
  EXPECT_EQ(std::memcmp(got.data() + 33, from.data(), from.size()), 0);
  EXPECT_EQ(std::vector<std::byte>(got.begin(), got.begin() + 33), std::vector<std::byte>(33));
}

TEST_F(NvmeFileTest, WrongOptionsAreNamed) {
  const NvmeOptions right = Options(4096);
  NvmeOptions options = right;
  options.paths = {};
  EXPECT_THAT(Refusal(options).ToString(), HasSubstr("nvme.paths: name at least one folder"));
  options = right;
  options.paths = {"relative"};
  EXPECT_THAT(Refusal(options).ToString(), HasSubstr("\"relative\" is not an absolute path"));
  options.paths.assign(kMaxNvmePaths + 1, right.paths[0]);
  EXPECT_THAT(Refusal(options).ToString(), HasSubstr("nvme.paths: 65 folders, at most 64"));
  options = right;
  options.block_bytes = 5000;
  EXPECT_THAT(Refusal(options).ToString(),
              HasSubstr("nvme.block_bytes: 5000 is not a multiple of 4096"));
  options = right;
  options.queue_depth = kMaxNvmeQueueDepth + 1;
  EXPECT_THAT(Refusal(options).ToString(), HasSubstr("nvme.queue_depth: 1025 is not in 1..1024"));
  options = right;
  options.engine = "aio";
  EXPECT_THAT(Refusal(options).ToString(), HasSubstr("nvme.engine: \"aio\" is none of"));
  options = right;
  options.name = "../escape";
  EXPECT_EQ(Refusal(options).code(), absl::StatusCode::kInvalidArgument);
  options = right;
  options.bytes = 0;
  EXPECT_EQ(Refusal(options).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NvmeFileTest, FoldersThatCannotBeUsedAreNamed) {
  NvmeOptions options = Options(4096);
  options.paths = {folder_ + "/missing"};
  absl::Status status = Refusal(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder_ + "/missing"), HasSubstr("mount the drive or create")));
  options.paths = {"/proc/self/exe"};
  EXPECT_EQ(Refusal(options).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NvmeFileTest, NeedAndFreeSpaceAreNamedBeforeAnythingIsWritten) {
  NvmeOptions options = Options(int64_t{1} << 60, 2);
  const absl::Status status = Refusal(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder_ + "/0 has "), HasSubstr("this rank needs 1048576.0 TiB"),
                    HasSubstr("offload less to nvme")));
}

TEST_F(NvmeFileTest, FoldersOfOneFileSystemShareItsSpace) {
  const NvmeOptions options = Options(4096, 3);
  const auto one = NvmeFreeBytes({options.paths.data(), 1});
  const auto three = NvmeFreeBytes(options.paths);
  ASSERT_TRUE(one.ok() && three.ok());
  EXPECT_GT(*one, 0);
  EXPECT_NEAR(static_cast<double>(*three), static_cast<double>(*one), 0.05 * *one);
  EXPECT_EQ(*NvmeFreeBytes({}), 0);
}

}  // namespace
}  // namespace terrace
