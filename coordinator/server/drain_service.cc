// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/drain_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/server/unary_calls.h"
#include "proto/v1/drain.grpc.pb.h"

namespace terrace {
namespace {

class DrainServiceImpl final : public v1::DrainService::CallbackService {
 public:
  DrainServiceImpl(Control& control, const CallGuard& guard)
      : control_(control), calls_(control.loop(), guard) {}

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override {
    return calls_.OnLoop("Drain", context, [this, request, response](GuardedCall& call) {
      call.record.node = request->node();
      if (!request->reason().empty()) call.record.arguments["reason"] = request->reason();
      if (request->has_deadline_ms())
        call.record.arguments["deadline_ms"] = absl::StrCat(request->deadline_ms());
      RETURN_IF_ERROR(calls_.guard().CheckNode(call, request->node()));
      auto node = control_.reconciler().Drain(*request, call.record.caller.ToString());
      if (node.ok()) *response->mutable_node() = *std::move(node);
      return node.status();
    });
  }

  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context,
                                    const v1::UndrainRequest* request,
                                    v1::UndrainResponse* response) override {
    return calls_.OnLoop("Undrain", context, [this, request, response](GuardedCall& call) {
      call.record.node = request->node();
      RETURN_IF_ERROR(calls_.guard().CheckNode(call, request->node()));
      auto ended = control_.reconciler().Undrain(request->node(), call.record.caller.ToString());
      if (ended.ok()) *response->mutable_ended() = *std::move(ended);
      return ended.status();
    });
  }

  grpc::ServerUnaryReactor* ListDrains(grpc::CallbackServerContext* context,
                                       const v1::ListDrainsRequest*,
                                       v1::ListDrainsResponse* response) override {
    return calls_.OnLoop("ListDrains", context, [this, response](GuardedCall&) {
      for (v1::DrainedNode& node : control_.reconciler().Drains())
        *response->add_nodes() = std::move(node);
      return absl::OkStatus();
    });
  }

 private:
  Control& control_;
  const UnaryCalls calls_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDrainService(Control& control, const CallGuard& guard) {
  return std::make_unique<DrainServiceImpl>(control, guard);
}

}  // namespace terrace
