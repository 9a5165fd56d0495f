// SPDX-License-Identifier: Apache-2.0
#include "worker/train/agreement.h"

#include <array>
#include <iterator>

#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<Votes> Agreement::Exchange(Votes own) {
  std::array<float, 2> counts = {own.stop ? 1.0f : 0.0f, own.failed ? 1.0f : 0.0f};
  RETURN_IF_ERROR(group_->AllReduce(counts.data(), counts.size(), ReduceType::kF32));
  return Votes{.stop = counts[0] > 0, .failed = counts[1] > 0};
}

absl::StatusOr<bool> Agreement::Any(bool own) {
  float count = own ? 1.0f : 0.0f;
  RETURN_IF_ERROR(group_->AllReduce(&count, 1, ReduceType::kF32));
  return count > 0;
}

absl::StatusOr<std::vector<bool>> Agreement::AnyOfEach(const std::vector<bool>& own) {
  std::vector<float> counts(own.begin(), own.end());
  RETURN_IF_ERROR(group_->AllReduce(counts.data(), std::ssize(counts), ReduceType::kF32));
  std::vector<bool> any;
  for (const float count : counts) any.push_back(count > 0);
  return any;
}

absl::StatusOr<int64_t> Agreement::FromRankZero(int64_t own) {
  RETURN_IF_ERROR(group_->Broadcast(&own, sizeof own, 0));
  return own;
}

}  // namespace terrace
