// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/what_fits.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/memory_report.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// "2.3 GiB", "0.4 GiB, host 2.1 GiB".
std::string BytesText(const Evaluated& evaluated) {
  std::string text = FormatBytes(evaluated.device_bytes);
  if (evaluated.host_bytes > 0)
    absl::StrAppend(&text, ", host ", FormatBytes(evaluated.host_bytes));
  if (evaluated.nvme_bytes > 0)
    absl::StrAppend(&text, ", nvme ", FormatBytes(evaluated.nvme_bytes));
  return text;
}

// What was found, and what was not tried.
std::string CheapestText(const Changes& changes) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> named;
  for (const std::string& words : changes.not_tried) {
    if (named.size() < kNamed && !absl::c_linear_search(named, words)) named.push_back(words);
  }
  const size_t more = changes.not_tried.size() - named.size();
  const std::string not_tried =
      named.empty()
          ? ""
          : absl::StrCat(
                " (not tried, for the time that it would take: ", absl::StrJoin(named, ", "),
                more > 0 ? absl::StrCat(" and ", more, " more") : "", ")");
  if (changes.found.empty()) {
    return not_tried.empty()
               ? "no layout, precision or sequence_length fits; "
               : absl::StrCat("none of the changes that were tried fits", not_tried, "; ");
  }
  return absl::StrCat("the cheapest change that fits: ", changes.found[0].words, " (",
                      BytesText(changes.found[0].evaluated), ")", not_tried, "; or ");
}

// Of a layout that was not compiled.
std::string SmallerText(const Searched& searched) {
  if (!searched.smaller.has_value()) return "";
  const Evaluated& nearest = searched.evaluated.front();
  const v1::Layout& layout = searched.smaller->layout;
  return absl::StrCat(
      " (by closed form about ",
      FormatBytes(searched.smaller->memory.total() + nearest.programs[0].external_bytes()),
      " would do with ", absl::StrJoin(Differences(nearest.layout, layout), ", "),
      ", which takes too long to compile only to say so)");
}

std::string AtLeast(const char* resource, int64_t bytes) {
  return absl::StrCat("resources.", resource, " of at least ", (bytes + kMiB - 1) / kMiB, " MiB");
}

// Of a program's host memory, what copies pass through (compiler/staging.h). Bytes that several of
// these buffers have one after the other count once.
int64_t StagingBytes(const v1::Program& program) {
  std::vector<std::pair<int64_t, int64_t>> places;  // begin, end
  for (const v1::Buffer& buffer : program.buffers()) {
    const bool on_host = buffer.arena() < static_cast<uint32_t>(program.arenas_size()) &&
                         program.arenas(static_cast<int>(buffer.arena())).tier() == v1::HOST;
    if (on_host && absl::StartsWith(buffer.name(), "staging."))
      places.emplace_back(buffer.offset(), buffer.offset() + buffer.bytes());
  }
  std::sort(places.begin(), places.end());
  int64_t bytes = 0, counted = 0;  // up to there
  for (const auto& [begin, end] : places) {
    bytes += std::max<int64_t>(0, end - std::max(begin, counted));
    counted = std::max(counted, end);
  }
  return bytes;
}

// No placement helps where these alone are more than the host has.
std::string StagingText(const Evaluated& nearest, int64_t host_limit) {
  int64_t most = 0;
  for (const v1::Program& program : nearest.programs) most = std::max(most, StagingBytes(program));
  if (most <= host_limit) return "";
  return absl::StrCat(" (the buffers that copies pass through alone take ", FormatBytes(most),
                      "; less with a layout.chunk_bytes below ", nearest.layout.chunk_bytes(), ")");
}

// What would have to be larger for the nearest layout.
std::string MoreText(const v1::JobSpec& spec, const Budget& budget, const Searched& searched) {
  const Evaluated& nearest = searched.evaluated.front();
  const TierLimits limits = LimitsOf(spec);
  std::vector<std::string> more;
  if (budget.device_memory_bytes > 0 && nearest.device_bytes > budget.device_memory_bytes) {
    more.push_back(AtLeast("device_memory", nearest.device_bytes) + SmallerText(searched));
  }
  if (limits.host_bytes > 0 && nearest.host_bytes > limits.host_bytes) {
    more.push_back(AtLeast("host_memory", nearest.host_bytes) +
                   StagingText(nearest, limits.host_bytes));
  }
  if (limits.nvme_bytes > 0 && nearest.nvme_bytes > limits.nvme_bytes) {
    more.push_back(AtLeast("nvme.bytes", nearest.nvme_bytes));
  }
  return absl::StrJoin(more, " and ");
}

}  // namespace

absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Searched& searched,
                        const Changes& changes) {
  const Evaluated& nearest = searched.evaluated.front();
  const v1::Binding binding = ReportBinding(nearest, LimitsOf(spec), budget.device_memory_bytes);
  std::vector<std::string> holders;
  for (int i = 0; i < std::min(3, binding.largest_size()); ++i) {
    holders.push_back(
        absl::StrCat(binding.largest(i).name(), " ", FormatBytes(binding.largest(i).bytes())));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "job '", spec.name(), "' needs ", absl::StrJoin(Excesses(spec, budget, nearest), " and "),
      " per rank", nearest.programs.size() > 1 ? absl::StrCat(" of stage ", binding.stage()) : "",
      "; ", CheapestText(changes), MoreText(spec, budget, searched), "; the most is held at ",
      binding.instruction(), ", by ", absl::StrJoin(holders, ", ")));
}

absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Searched& searched,
                        const ChangeLimits& limits) {
  return DoesNotFit(spec, budget, searched, ChangesThatFit(spec, budget, 1, {}, limits));
}

}  // namespace terrace
