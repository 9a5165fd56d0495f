// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/directory_places.h"

namespace terrace {

void DirectoryPlaces::LookAt(const std::string& directory, Known* known, int64_t when_ns) {
  looks_.erase({known->look_ns, directory});
  known->look_ns = when_ns;
  looks_.emplace(when_ns, directory);
}

void DirectoryPlaces::ForgetPlace(const std::string& directory, Known* known) {
  const auto found = by_place_.find(known->place);
  if (found == by_place_.end()) return;
  found->second.erase(directory);
  if (found->second.empty()) by_place_.erase(found);
  known->place.clear();
}

void DirectoryPlaces::Add(std::string_view directory) {
  if (directory.empty()) return;
  const auto [found, is_new] = directories_.try_emplace(std::string(directory));
  ++found->second.jobs;
  if (is_new) LookAt(found->first, &found->second, INT64_MIN);
}

void DirectoryPlaces::Remove(std::string_view directory) {
  const auto found = directories_.find(directory);
  if (found == directories_.end() || --found->second.jobs > 0) return;
  ForgetPlace(found->first, &found->second);
  looks_.erase({found->second.look_ns, found->first});
  directories_.erase(found);
}

void DirectoryPlaces::Doubt(std::string_view directory) {
  const auto found = directories_.find(directory);
  if (found != directories_.end()) LookAt(found->first, &found->second, INT64_MIN);
}

// One that is not known is asked for by everybody: nobody may go by what it was.
std::vector<std::string> DirectoryPlaces::TakeUnknown(int64_t now_ns) {
  std::vector<std::string> unknown;
  for (const auto& [when_ns, directory] : looks_) {
    if (when_ns > now_ns) break;
    unknown.push_back(directory);
  }
  for (const std::string& directory : unknown) {
    Known& known = directories_.find(directory)->second;
    if (known.look_ns != INT64_MIN) LookAt(directory, &known, now_ns + kPlaceAskedAgainNs);
  }
  return unknown;
}

void DirectoryPlaces::Note(std::string_view directory, std::string_view place, int64_t now_ns) {
  const auto found = directories_.find(directory);
  if (found == directories_.end()) return;
  auto& [name, known] = *found;
  ForgetPlace(name, &known);
  known.place = std::string(place);
  if (!place.empty()) by_place_[known.place].insert(name);
  LookAt(name, &known, now_ns + kPlaceBelievedNs);
}

std::string_view DirectoryPlaces::At(std::string_view place) const {
  const auto found = by_place_.find(place);
  return found == by_place_.end() ? std::string_view() : *found->second.begin();
}

}  // namespace terrace
