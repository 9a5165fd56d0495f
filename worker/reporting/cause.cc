// SPDX-License-Identifier: Apache-2.0
#include "worker/reporting/cause.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/reporting/failure.h"

namespace terrace {
namespace {

constexpr char kCauseKey[] = "cause";
// A rank that ends by itself leaves its cause before its peers can miss it; a store behind a daemon
// takes a moment to pass it on.
constexpr int64_t kCausePatienceMs = 100;

}  // namespace

absl::Status ShareCause(uint32_t rank, const absl::Status& own, RendezvousStore* store) {
  if (own.ok() || store == nullptr) return own;
  if (absl::IsUnavailable(own)) {
    const auto found = store->Wait({kCauseKey}, kCausePatienceMs);
    if (found.ok()) {
      const std::vector<char>& cause = found->front();
      return WithReason(absl::UnavailableError(std::string(cause.begin(), cause.end())),
                        ReasonOf(own));
    }
  }
  const std::string cause = absl::StrCat("rank ", rank, " failed: ", own.message());
  // Without it the others name this rank: less, but not wrong.
  store->Set(kCauseKey, std::vector<char>(cause.begin(), cause.end())).IgnoreError();
  return own;
}

}  // namespace terrace
