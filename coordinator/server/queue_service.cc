// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/queue_service.h"

#include <utility>

#include "coordinator/server/job_change.h"
#include "coordinator/server/submission.h"
#include "proto/v1/hold.grpc.pb.h"
#include "proto/v1/queue.grpc.pb.h"

namespace terrace {
namespace {

class HoldServiceImpl final : public v1::HoldService::CallbackService {
 public:
  HoldServiceImpl(Control& control, const CallGuard& guard)
      : control_(control), calls_(control.loop(), guard) {}

  grpc::ServerUnaryReactor* SubmitHeld(grpc::CallbackServerContext* context,
                                       const v1::SubmitHeldRequest* request,
                                       v1::SubmitHeldResponse* response) override {
    return PlanAndSubmit({control_, calls_, "SubmitHeld", {.held = true}}, context,
                         request->submission(), response);
  }

 private:
  Control& control_;
  const UnaryCalls calls_;
};

class QueueServiceImpl final : public v1::QueueService::CallbackService {
 public:
  QueueServiceImpl(Control& control, const CallGuard& guard)
      : control_(control), calls_(control.loop(), guard), changes_(control, calls_) {}

  grpc::ServerUnaryReactor* SubmitAfter(grpc::CallbackServerContext* context,
                                        const v1::SubmitAfterRequest* request,
                                        v1::SubmitAfterResponse* response) override {
    Submitted as{.held = request->hold()};
    as.after = request->dependencies();
    return PlanAndSubmit({control_, calls_, "SubmitAfter", std::move(as)}, context,
                         request->submission(), response);
  }

  grpc::ServerUnaryReactor* SubmitMember(grpc::CallbackServerContext* context,
                                         const v1::SubmitMemberRequest* request,
                                         v1::SubmitMemberResponse* response) override {
    Submitted as{.held = request->hold()};
    as.after = request->dependencies();
    as.member = request->member();
    return PlanAndSubmit({control_, calls_, "SubmitMember", std::move(as)}, context,
                         request->submission(), response);
  }

  grpc::ServerUnaryReactor* Requeue(grpc::CallbackServerContext* context,
                                    const v1::RequeueRequest* request,
                                    v1::RequeueResponse* response) override {
    return changes_.Change(
        "Requeue", context, *request, response, request->force(),
        [this, request] { return control_.reconciler().Requeue(request->id(), request->force()); });
  }

  grpc::ServerUnaryReactor* ListShares(grpc::CallbackServerContext* context,
                                       const v1::ListSharesRequest*,
                                       v1::ListSharesResponse* response) override {
    return calls_.OnLoop("ListShares", context, [this, response](GuardedCall&) {
      *response = control_.reconciler().Shares();
      return absl::OkStatus();
    });
  }

 private:
  Control& control_;
  const UnaryCalls calls_;
  const JobChanges changes_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeHoldService(Control& control, const CallGuard& guard) {
  return std::make_unique<HoldServiceImpl>(control, guard);
}

std::unique_ptr<grpc::Service> MakeQueueService(Control& control, const CallGuard& guard) {
  return std::make_unique<QueueServiceImpl>(control, guard);
}

}  // namespace terrace
