// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/dynamic.h"

#include <algorithm>

#include "proto/program/allocation_events.h"
#include "proto/program/tiers.h"

namespace terrace {

void MakeDynamic(const std::string& allocator, v1::Program* program) {
  program->set_allocator(allocator);
  v1::Arena* device = program->mutable_arenas(0);
  device->set_bytes(0);
  const int64_t alignment = ArenaAlignment(v1::DEVICE);
  for (v1::Buffer& buffer : *program->mutable_buffers()) {
    if (IsDynamic(*program, buffer)) buffer.set_offset(0);
    if (buffer.arena() != device->id() || buffer.lifetime() != v1::PERSISTENT) continue;
    const int64_t end = (buffer.offset() + buffer.bytes() + alignment - 1) / alignment * alignment;
    device->set_bytes(std::max(device->bytes(), end));
  }
}

}  // namespace terrace
