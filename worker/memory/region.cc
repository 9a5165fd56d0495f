// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/region.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"

namespace terrace {

absl::Status Region::Zero(int64_t offset, int64_t bytes) {
  constexpr int64_t kBlockBytes = 1 << 20;
  const std::vector<std::byte> zeros(std::min(bytes, kBlockBytes));
  for (int64_t done = 0; done < bytes; done += kBlockBytes) {
    RETURN_IF_ERROR(
        Write(offset + done, std::span(zeros).first(std::min(kBlockBytes, bytes - done))));
  }
  return absl::OkStatus();
}

}  // namespace terrace
