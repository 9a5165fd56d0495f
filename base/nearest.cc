// SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/str_join.h"

namespace terrace {
namespace {

// Longer words are never near anything; hostile ones may not cost a square of megabytes.
constexpr size_t kMaxLength = 128;
constexpr size_t kShown = 3;

// Optimal string alignment distance, three rows at a time.
size_t Distance(std::string_view a, std::string_view b) {
  auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.size() > kMaxLength) return {};
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    if (candidate.size() > kMaxLength) continue;
    const size_t distance = Distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string NearestNames(std::string_view wanted, const std::vector<std::string>& names) {
  std::vector<std::pair<size_t, std::string_view>> ranked;
  ranked.reserve(names.size());
  for (const std::string& name : names) {
    const size_t distance =
        Distance(wanted.substr(0, kMaxLength), std::string_view(name).substr(0, kMaxLength));
    ranked.emplace_back(distance, name);
  }
  const size_t shown = std::min(kShown, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + shown, ranked.end());
  ranked.resize(shown);
  return absl::StrJoin(ranked, ", ",
                       [](std::string* out, const auto& item) { out->append(item.second); });
}

}  // namespace terrace
