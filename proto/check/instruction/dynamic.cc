// SPDX-License-Identifier: Apache-2.0
#include "proto/check/instruction/dynamic.h"

#include <algorithm>

#include "base/status_macros.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/instruction/structure.h"
#include "proto/program/allocation_events.h"
#include "proto/program/caching_need.h"
#include "proto/program/tiers.h"

namespace terrace::check {
namespace {

absl::Status CheckArenaEnd(const v1::Program& program) {
  const int64_t alignment = ArenaAlignment(v1::DEVICE);
  int64_t end = 0;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() != v1::PERSISTENT || TierOf(program, buffer) != v1::DEVICE) continue;
    end = std::max(end, buffer.offset() + buffer.bytes());
  }
  end = (end + alignment - 1) / alignment * alignment;
  if (program.arenas(0).bytes() == end) return absl::OkStatus();
  return Refuse("arena 0: got ", program.arenas(0).bytes(),
                " bytes, with the caching allocator it must end behind the last persistent buffer, "
                "at ",
                end);
}

}  // namespace

absl::Status CheckAllocator(const v1::Program& program) {
  if (program.allocator().empty() || program.allocator() == "planned" || UsesCaching(program))
    return absl::OkStatus();
  return Refuse("allocator: got '", program.allocator(),
                "', must be planned, caching or expandable");
}

absl::Status CheckDynamic(const v1::Program& program) {
  if (!UsesCaching(program)) return absl::OkStatus();
  if (program.arenas().empty())
    return Refuse("allocator: ", program.allocator(), " needs an arena on DEVICE");
  RETURN_IF_ERROR(CheckArenaEnd(program));
  const int64_t segments = SegmentBytesNeeded(program);
  if (segments > kBytesMax) {
    return Refuse("allocator: ", program.allocator(), " would reserve ", segments,
                  " bytes, at most ", kBytesMax);
  }
  const int64_t bytes = program.arenas(0).bytes() + segments + program.external_bytes();
  const int64_t limit = program.device_limit_bytes();
  if (limit == 0 || bytes <= limit) return absl::OkStatus();
  return Refuse("the DEVICE arena, ", segments,
                " bytes of segments of the caching allocator and external_bytes need ", bytes,
                " bytes, device_limit_bytes is ", limit);
}

}  // namespace terrace::check
