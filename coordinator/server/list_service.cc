// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/list_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/life/job_state.h"
#include "coordinator/server/unary_calls.h"
#include "proto/v1/list.grpc.pb.h"

namespace terrace {
namespace {

constexpr int64_t kLimit = 100, kLimitMax = 1000;

absl::StatusOr<JobFilter> FilterOf(const v1::ListPageRequest& request) {
  JobFilter filter{.owner = request.owner(), .array = request.array(), .text = request.text()};
  for (const int state : request.states()) {
    if (!v1::JobState_IsValid(state) || state == v1::JOB_STATE_UNSPECIFIED)
      return absl::InvalidArgumentError(
          absl::StrCat("states: got ", state, ", must be states that a job can be in"));
    filter.states.push_back(static_cast<v1::JobState>(state));
  }
  if (request.all() || !filter.states.empty()) return filter;
  for (int state = v1::JobState_MIN + 1; state <= v1::JobState_MAX; ++state) {
    const auto active = static_cast<v1::JobState>(state);
    if (v1::JobState_IsValid(state) && !HasEnded(active)) filter.states.push_back(active);
  }
  return filter;
}

absl::StatusOr<PageOf> PageOfRequest(const v1::ListPageRequest& request) {
  if (request.limit() < 0 || request.limit() > kLimitMax)
    return absl::InvalidArgumentError(absl::StrCat("limit: got ", request.limit(),
                                                   ", must be from 1 to ", kLimitMax, ", or 0 for ",
                                                   kLimit, "; more jobs are on the next page"));
  if (request.before() < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("before: got ", request.before(), ", must be `next` of the page before"));
  return PageOf{.before = request.before() == 0 ? INT64_MAX : request.before(),
                .limit = request.limit() == 0 ? kLimit : request.limit(),
                .whole = request.whole()};
}

class ListServiceImpl final : public v1::ListService::CallbackService {
 public:
  ListServiceImpl(Control& control, const CallGuard& guard)
      : control_(control), calls_(control.loop(), guard) {}

  grpc::ServerUnaryReactor* ListPage(grpc::CallbackServerContext* context,
                                     const v1::ListPageRequest* request,
                                     v1::ListPageResponse* response) override {
    return calls_.OnLoop("ListPage", context, [this, request, response](GuardedCall&) {
      return Fill(*request, response);
    });
  }

 private:
  absl::Status Fill(const v1::ListPageRequest& request, v1::ListPageResponse* response) {
    ASSIGN_OR_RETURN(const JobFilter filter, FilterOf(request));
    ASSIGN_OR_RETURN(const PageOf page, PageOfRequest(request));
    ASSIGN_OR_RETURN(*response, control_.reconciler().ListPage(filter, page));
    return absl::OkStatus();
  }

  Control& control_;
  const UnaryCalls calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeListService(Control& control, const CallGuard& guard) {
  return std::make_unique<ListServiceImpl>(control, guard);
}

}  // namespace terrace
