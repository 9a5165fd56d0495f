// What the tests of the NVMe tier share: folders of their own, memory on page boundaries with
// reproducible contents, and a way to the file that has no name any more.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "worker/memory/nvme/nvme_file.h"

namespace terrace {

class NvmeFixture : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "nvme_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  NvmeOptions Options(int64_t bytes, int folders = 1) const {
    NvmeOptions options = {.name = "job-rank3", .bytes = bytes};
    for (int i = 0; i < folders; ++i) {
      options.paths.push_back(folder_ + "/" + std::to_string(i));
      std::filesystem::create_directory(options.paths.back());
    }
    return options;
  }

  std::string folder_;
};

inline std::unique_ptr<NvmeFile> MakeNvmeFile(NvmeOptions options) {
  auto file = NvmeFile::Create(std::move(options));
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? std::move(file).value() : nullptr;
}

inline std::unique_ptr<NvmeQueue> MakeNvmeQueue(NvmeFile& file) {
  auto queue = file.NewQueue();
  EXPECT_TRUE(queue.ok()) << queue.status();
  return queue.ok() ? std::move(queue).value() : nullptr;
}

// Memory that Transfer accepts.
inline Arena MakeNvmeMemory(int64_t bytes) {
  auto arena = Arena::Reserve("terrace-nvme-test", bytes);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return std::move(arena).value();
}

inline void FillRandom(std::span<std::byte> bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t value = random();
    std::memcpy(&bytes[i], &value, std::min(sizeof(value), bytes.size() - i));
  }
}

// Opens the unlinked file by its descriptor in this process, as somebody outside would.
inline UniqueFd OpenFromOutside(const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.find("/.terrace-" + name + " (deleted)") == std::string::npos) continue;
    return UniqueFd(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
  }
  return UniqueFd();
}

}  // namespace terrace
