// Where the checkpoint directories of active jobs lead (coordinator/planning/place.h), as planners
// found it, so that a submission need not look at all of them again.
//
// Links and folders change, so a place is believed for a minute, and not any more once somebody
// doubts it. Time is an argument. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace {

inline constexpr int64_t kPlaceBelievedNs = 60'000'000'000;
// Who was asked for a place that is known may not answer: then the next one is.
inline constexpr int64_t kPlaceAskedAgainNs = 10'000'000'000;

class DirectoryPlaces {
 public:
  // One more job, or one less, writes into the directory.
  void Add(std::string_view directory);
  void Remove(std::string_view directory);

  // It may lead elsewhere now.
  void Doubt(std::string_view directory);
  // Directories of which somebody is to find out the place, for Note().
  std::vector<std::string> TakeUnknown(int64_t now_ns);
  // An empty place: it cannot be followed. Ignored of a directory into which no job writes.
  void Note(std::string_view directory, std::string_view place, int64_t now_ns);

  // A directory of that place; empty: none is known.
  std::string_view At(std::string_view place) const;

 private:
  struct Known {
    int jobs = 0;
    std::string place;
    int64_t look_ns = INT64_MIN;  // its place is to be found out by then
  };
  using Directories = std::map<std::string, Known, std::less<>>;

  void LookAt(const std::string& directory, Known* known, int64_t when_ns);
  void ForgetPlace(const std::string& directory, Known* known);

  Directories directories_;
  std::set<std::pair<int64_t, std::string>> looks_;
  std::map<std::string, std::set<std::string>, std::less<>> by_place_;
};

}  // namespace terrace
