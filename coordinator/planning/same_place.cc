// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/same_place.h"

#include <filesystem>
#include <system_error>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Without links, and without a slash at the end; the path itself where it cannot be followed.
fs::path Real(const std::string& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(path, error);
  if (error) real = fs::path(path).lexically_normal();
  return real.has_filename() ? real : real.parent_path();
}

}  // namespace

std::string SamePlace(const std::string& directory, const std::vector<std::string>& others) {
  if (!directory.starts_with('/')) return "";
  const fs::path real = Real(directory);
  std::error_code error;
  for (const std::string& other : others) {
    // The latter also sees one folder that is mounted twice.
    if (Real(other) == real || fs::equivalent(other, directory, error)) return other;
  }
  return "";
}

}  // namespace terrace
