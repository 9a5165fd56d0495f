// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/pack.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/pack/orders.h"
#include "coordinator/compiler/pack/problem.h"

namespace terrace {
namespace {

// An arena that is over its lower bound by this share of it at most is good enough: no further
// order is tried.
constexpr double kGoodEnoughOverBound = 0.005;

absl::Status CheckBuffers(absl::Span<const PackBuffer> buffers) {
  for (const PackBuffer& buffer : buffers) {
    if (buffer.bytes < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer '", buffer.name, "': ", buffer.bytes, " bytes, must be at least 1"));
    }
    if (buffer.begin >= buffer.end) {
      return absl::InvalidArgumentError(absl::StrCat("buffer '", buffer.name, "': life [",
                                                     buffer.begin, ", ", buffer.end,
                                                     ") must end after it begins"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Packing> Pack(absl::Span<const PackBuffer> buffers) {
  RETURN_IF_ERROR(CheckBuffers(buffers));
  if (buffers.empty()) return Packing{};
  const PackProblem problem = MakePackProblem(buffers);
  const int64_t bound = problem.lower_bound_bytes;
  PackPlacement best;
  for (const PackStrategy& strategy : PackPortfolio()) {
    PackPlacement placement = PlaceInOrder(problem, MakePackOrder(problem, strategy));
    if (best.offsets.empty() || placement.arena_bytes < best.arena_bytes)
      best = std::move(placement);
    if (static_cast<double>(best.arena_bytes - bound) <=
        kGoodEnoughOverBound * static_cast<double>(bound)) {
      break;
    }
  }
  return Packing{std::move(best.offsets), best.arena_bytes, bound};
}

}  // namespace terrace
