// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/need.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text/number_format.h"

namespace terrace {
namespace {

std::string Count(int64_t n, const std::string& thing) {
  return absl::StrCat(n, " ", thing, n == 1 ? "" : "s");
}

// The way out where there are workers, but with devices of the other kind.
std::string OtherDevices(bool cuda) {
  return cuda ? ", which has no CUDA devices: start terrace-worker where nvidia-smi lists one, set "
                "resources.device: cpu, or "
              : ", which has CUDA devices: set resources.device: cuda, start terrace-worker with "
                "--device cpu, or ";
}

std::string AllDrained(absl::Span<const QueueNode> nodes) {
  const std::string who =
      nodes.size() == 1 ? absl::StrCat("worker ", nodes[0].name, " is drained")
                        : absl::StrCat("all ", nodes.size(), " registered workers are drained");
  return absl::StrCat(who, ": take one back into use with `terrace drain ", nodes[0].name,
                      " --disable`, or start more workers");
}

}  // namespace

bool Matches(const Need& need, const QueueNode& node) {
  return !node.drained && need.cuda == node.cuda && node.devices() >= need.devices &&
         node.threads_per_device >= need.threads &&
         (node.device_memory_bytes == 0 || node.device_memory_bytes >= need.device_bytes);
}

uint32_t FreeDevices(const QueueNode& node, int64_t at_ms) {
  if (!node.ready) return 0;
  return static_cast<uint32_t>(
      std::count_if(node.free_at_ms.begin(), node.free_at_ms.end(),
                    [at_ms](int64_t free_at) { return free_at <= at_ms; }));
}

std::string Describe(const Need& need) {
  std::string text = absl::StrCat(Count(need.nodes, "worker"), " with ",
                                  Count(need.devices, need.cuda ? "CUDA device" : "device"));
  if (need.device_bytes > 0) absl::StrAppend(&text, " of ", FormatBytes(need.device_bytes));
  if (need.threads > 0) absl::StrAppend(&text, " and ", Count(need.threads, "thread"), " a device");
  if (need.nodes > 1) absl::StrAppend(&text, " each");
  return text;
}

std::string NoMatchText(const Need& need, size_t matching, absl::Span<const QueueNode> all) {
  std::string text = absl::StrCat("needs ", Describe(need), "; ");
  if (all.empty()) return absl::StrCat(text, "no worker is registered: start terrace-worker");
  std::vector<const QueueNode*> nodes;
  for (const QueueNode& node : all) {
    if (!node.drained) nodes.push_back(&node);
  }
  const size_t drained = all.size() - nodes.size();
  if (nodes.empty()) return absl::StrCat(text, AllDrained(all));
  absl::StrAppend(&text, matching, " of the ", nodes.size(), " registered ",
                  matching == 1 ? "matches" : "match");
  if (drained > 0)
    absl::StrAppend(&text, ", ", drained, " more ", drained == 1 ? "is" : "are", " drained");
  const QueueNode& largest = **std::max_element(
      nodes.begin(), nodes.end(),
      [](const QueueNode* a, const QueueNode* b) { return a->devices() < b->devices(); });
  absl::StrAppend(&text, " (", largest.name, " offers ", Count(largest.devices(), "device"));
  if (largest.device_memory_bytes > 0) {
    absl::StrAppend(&text, " of ", FormatBytes(largest.device_memory_bytes));
  }
  absl::StrAppend(&text, " with ", Count(largest.threads_per_device, "thread"), ")");
  return absl::StrCat(text,
                      need.cuda == largest.cuda || need.either ? ": " : OtherDevices(need.cuda),
                      "start more workers or ask for less under resources");
}

std::string BusyText(const Need& need, absl::Span<const size_t> matching,
                     absl::Span<const QueueNode> nodes) {
  uint32_t devices = 0, free = 0, enough = 0;
  std::string problems;
  for (const size_t index : matching) {
    const QueueNode& node = nodes[index];
    devices += node.devices();
    free += FreeDevices(node);
    if (need.nodes > 1 && !node.problem.empty()) {
      absl::StrAppend(&problems, "; ", node.name, ": ", node.problem);
    } else if (FreeDevices(node) >= need.devices) {
      ++enough;
    }
  }
  std::string text = absl::StrCat(
      "needs ", Describe(need), "; ", free, " of the ", devices, " devices on ",
      Count(static_cast<int64_t>(matching.size()), "matching worker"), " are free now");
  if (need.nodes > 1)
    absl::StrAppend(&text, " (", enough, " of the ", need.nodes, " workers needed have enough)",
                    problems);
  return text;
}

}  // namespace terrace
