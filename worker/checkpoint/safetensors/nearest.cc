// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/safetensors/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_join.h"

namespace terrace {
namespace {

constexpr size_t kShown = 3;
constexpr size_t kComparedCharacters =
    128;  // names are shorter; hostile ones may not cost a square of megabytes

size_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kComparedCharacters);
  b = b.substr(0, kComparedCharacters);
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestNames(std::string_view wanted, const std::vector<std::string>& names) {
  std::vector<std::pair<size_t, std::string_view>> ranked;
  ranked.reserve(names.size());
  for (const std::string& name : names) ranked.emplace_back(EditDistance(wanted, name), name);
  const size_t shown = std::min(kShown, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + shown, ranked.end());
  ranked.resize(shown);
  return absl::StrJoin(ranked, ", ",
                       [](std::string* out, const auto& item) { out->append(item.second); });
}

}  // namespace terrace
