// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/same_place.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <optional>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Where a path leads, whatever links and mounts lie on the way: the nearest folder that is there,
// and what is missing below it.
struct Place {
  dev_t device = 0;
  ino_t inode = 0;
  fs::path missing;
  bool operator==(const Place&) const = default;
};

// Nothing for a path that cannot be followed.
std::optional<Place> PlaceOf(fs::path path) {
  Place place;
  struct stat found = {};
  while (stat(path.c_str(), &found) != 0) {
    if ((errno != ENOENT && errno != ENOTDIR) || !path.has_relative_path()) return std::nullopt;
    if (path.has_filename()) place.missing = path.filename() / place.missing;
    path = path.parent_path();
  }
  place.device = found.st_dev;
  place.inode = found.st_ino;
  place.missing = place.missing.lexically_normal();
  if (place.missing == "." || place.missing == "./") place.missing.clear();
  return place;
}

}  // namespace

// One look at each of the others, most of which are there: there may be thousands.
std::string SamePlace(const std::string& directory, const std::vector<std::string>& others) {
  if (!directory.starts_with('/')) return "";
  const std::optional<Place> place = PlaceOf(directory);
  for (const std::string& other : others) {
    if (other == directory || (place && PlaceOf(other) == place)) return other;
  }
  return "";
}

}  // namespace terrace
