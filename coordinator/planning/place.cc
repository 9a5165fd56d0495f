// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/place.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace terrace {

std::string PlaceOf(const std::string& path) {
  if (!path.starts_with('/')) return "";
  std::filesystem::path nearest = path;
  std::filesystem::path missing;  // below it
  struct stat found = {};
  while (stat(nearest.c_str(), &found) != 0) {
    if ((errno != ENOENT && errno != ENOTDIR) || !nearest.has_relative_path()) return "";
    if (nearest.has_filename()) missing = nearest.filename() / missing;
    nearest = nearest.parent_path();
  }
  std::string below = missing.lexically_normal().string();
  if (below.ends_with('/')) below.pop_back();
  if (below == ".") below.clear();
  return absl::StrCat(found.st_dev, ":", found.st_ino, ":", below);
}

}  // namespace terrace
