// SPDX-License-Identifier: Apache-2.0
// A rank whose state is in a file initialises it, writes it, verifies it and reads it back in
// memory that does not grow with it: measured from outside, by the high-water mark of its process.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "gtest/gtest.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/export/export.h"

namespace terrace {
namespace {

constexpr int64_t kStateBytes = 96 << 20;
constexpr int64_t kMergeAllowedKib = 8 << 10;  // of a matrix of 24 MiB; 6 MiB of it at a time
constexpr int64_t kAllowedKib = 24 << 10;      // blocks of 8 MiB, 6 MiB of an export, the heap

// The bytes of a file.
class FileRegion final : public Region {
 public:
  explicit FileRegion(const std::string& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {}
  ~FileRegion() override { ::close(fd_); }
  std::byte* data() const override { return nullptr; }
  int64_t bytes() const override { return kStateBytes; }
  absl::Status Read(int64_t offset, std::span<std::byte> to) override {
    return Whole(::pread(fd_, to.data(), to.size(), offset), to.size());
  }
  absl::Status Write(int64_t offset, std::span<const std::byte> from) override {
    return Whole(::pwrite(fd_, from.data(), from.size(), offset), from.size());
  }

 private:
  static absl::Status Whole(ssize_t done, size_t asked) {
    return done == static_cast<ssize_t>(asked) ? absl::OkStatus() : absl::DataLossError("short");
  }
  const int fd_;
};

int64_t StatusKib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1));
  }
  return -1;
}

// 0: within the bound. Runs in a process of its own.
int MergeInLittleMemory(const std::string& folder) {
  StateFixture fixture(v1::F32, /*no_address=*/true);
  fixture.Add("w.weight", {4096, 1536});
  fixture.Add("w.lora_A.weight", {8, 1536});
  fixture.Add("w.lora_B.weight", {4096, 8});
  fixture.spec().mutable_model()->mutable_lora()->set_rank(8);
  fixture.spec().mutable_model()->mutable_lora()->set_alpha(16);
  fixture.spec().mutable_model()->set_config_json("{}");
  FileRegion file(folder + "/state");
  Region* const regions[] = {&file};
  const RankState state = {fixture.program(), {}, regions};
  if (!InitialiseWeights(1, state, 2).ok()) return 2;
  const auto written = WriteCheckpoint(folder, {.step = 1, .spec = &fixture.spec()}, state, {});
  if (!written.ok()) return 3;
  const int64_t before = StatusKib("VmHWM");
  const auto merged = MergeCheckpoint(written->path, folder + "/out", "bf16", {}, [](double) {});
  if (!merged.ok() || merged->matrices != 1) return 4;
  const int64_t grown = StatusKib("VmHWM") - before;
  std::fprintf(stderr, "%lld KiB more at most\n", static_cast<long long>(grown));
  return grown <= kMergeAllowedKib ? 0 : 7;
}

// 0: within the bound. Runs in a process of its own.
int LiveInLittleMemory(const std::string& folder) {
  StateFixture fixture(v1::F32, /*no_address=*/true);
  for (int i = 0; i < 4; ++i) fixture.Add("w" + std::to_string(i), {2048, 1024});
  FileRegion file(folder + "/state");
  Region* const regions[] = {&file};
  const RankState state = {fixture.program(), {}, regions};
  const int64_t before = StatusKib("VmRSS");
  if (before <= 0) return 1;
  if (!InitialiseWeights(1, state, 2).ok()) return 2;
  const auto written = WriteCheckpoint(folder, {.step = 1}, state, {});
  if (!written.ok() || written->bytes < kStateBytes) return 3;
  if (!ReadCheckpoint(written->path, state, nullptr).ok()) return 4;
  if (!ReadWeights(written->path, state).ok()) return 5;
  if (!ExportCheckpoint(written->path, folder + "/out", "bf16", {}).ok()) return 6;
  const int64_t grown = StatusKib("VmHWM") - before;
  std::fprintf(stderr, "%lld KiB more at most\n", static_cast<long long>(grown));
  return grown <= kAllowedKib ? 0 : 7;
}

// How a process of its own ends that does `work`.
void ExpectDone(int (*work)(const std::string& folder)) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own memory would be counted";
#endif
  TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work(folder.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(BoundedMemoryTest, AStateInAFilePassesThroughBlocks) { ExpectDone(LiveInLittleMemory); }

TEST(BoundedMemoryTest, AnAdapterIsMergedSomeRowsAtATime) { ExpectDone(MergeInLittleMemory); }

}  // namespace
}  // namespace terrace
