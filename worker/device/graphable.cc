// SPDX-License-Identifier: Apache-2.0
#include "worker/device/graphable.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "proto/program/allocation_events.h"

namespace terrace {
namespace {

// Empty where the instruction can be captured.
std::string_view Obstacle(const v1::Program& program, const v1::Instruction& instruction,
                          const std::vector<bool>& captured) {
  const v1::StreamKind kind = program.streams(static_cast<int>(instruction.stream())).kind();
  if (instruction.has_transfer()) return "is a message, which a thread of the host waits for";
  if (instruction.has_collective()) {
    const uint32_t group = instruction.collective().group();
    const bool can = kind == v1::COLLECTIVE && group < captured.size() && captured[group];
    return can ? "" : "is communication, which a thread of the host waits for";
  }
  if (RunsOnDeviceQueue(kind)) return "";
  if (kind == v1::NVME_READ || kind == v1::NVME_WRITE)
    return "reads or writes NVMe, which a thread of the host does";
  return "runs on a thread of the host";
}

}  // namespace

bool RunsOnDeviceQueue(v1::StreamKind kind) {
  return kind == v1::COMPUTE || kind == v1::HOST_TO_DEVICE || kind == v1::DEVICE_TO_HOST;
}

bool HasCollectives(const v1::Sequence& sequence) {
  return std::any_of(sequence.instructions().begin(), sequence.instructions().end(),
                     [](const v1::Instruction& one) { return one.has_collective(); });
}

std::string WhyNotGraphable(const v1::Program& program, const v1::Sequence& sequence,
                            const std::vector<bool>& captured) {
  if (UsesCaching(program))
    return absl::StrCat("layout.allocator is ", program.allocator(),
                        ": step buffers lie elsewhere in every step");
  for (const v1::Loop& loop : sequence.loops()) {
    if (loop.trips() == 1) continue;
    return absl::StrCat("instructions ", loop.first(), " to ", loop.first() + loop.count() - 1,
                        " are a loop of ", loop.trips(),
                        " iterations, and a graph would hold each of them");
  }
  bool computes = false;
  for (const v1::Instruction& instruction : sequence.instructions()) {
    if (const std::string_view obstacle = Obstacle(program, instruction, captured);
        !obstacle.empty()) {
      return absl::StrCat("instruction ", instruction.id(), " (", instruction.text(), ") ",
                          Absl(obstacle));
    }
    computes =
        computes || program.streams(static_cast<int>(instruction.stream())).kind() == v1::COMPUTE;
  }
  return computes ? "" : "it computes nothing";
}

}  // namespace terrace
