// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/file_rendezvous.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr std::chrono::milliseconds kPollInterval{2};

std::optional<std::vector<char>> ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::vector<char>(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

FileRendezvous::FileRendezvous(std::string folder) : folder_(std::move(folder)) {
  std::error_code ignored;  // Set reports a folder that cannot be written
  std::filesystem::create_directories(folder_, ignored);
}

std::string FileRendezvous::PathOf(const std::string& key) const {
  return absl::StrCat(folder_, "/", absl::BytesToHexString(key));
}

// Written under another name and renamed: a reader sees all of it or nothing.
absl::Status FileRendezvous::Set(const std::string& key, const std::vector<char>& value) {
  const std::string path = PathOf(key);
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".new");
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file.write(value.data(), static_cast<std::streamsize>(value.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (file && !error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("rendezvous: cannot write in ", folder_));
}

absl::StatusOr<std::vector<std::vector<char>>> FileRendezvous::Wait(
    const std::vector<std::string>& keys, int64_t timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::vector<std::vector<char>> values;
  for (const std::string& key : keys) {
    std::optional<std::vector<char>> value = ReadAll(PathOf(key));
    while (!value) {
      if (std::chrono::steady_clock::now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("rendezvous: nobody has set '", key, "' in ", timeout_ms, " ms"));
      }
      std::this_thread::sleep_for(kPollInterval);
      value = ReadAll(PathOf(key));
    }
    values.push_back(*std::move(value));
  }
  return values;
}

}  // namespace terrace
