// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/drain_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/server/unary_calls.h"
#include "proto/v1/drain.grpc.pb.h"

namespace terrace {
namespace {

// "ipv4:10.0.0.7:51234", with TLS after the name in the caller's certificate.
std::string CallerOf(const grpc::CallbackServerContext& context) {
  const auto tls = context.auth_context();
  std::string name;
  if (tls != nullptr && tls->IsPeerAuthenticated()) {
    for (const grpc::string_ref& value : tls->GetPeerIdentity()) {
      absl::StrAppend(&name, std::string(value.data(), value.size()), " at ");
      break;
    }
  }
  return name + context.peer();
}

class DrainServiceImpl final : public v1::DrainService::CallbackService {
 public:
  DrainServiceImpl(Control& control, RpcObserver observe)
      : control_(control), calls_(control.loop(), std::move(observe)) {}

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override {
    return calls_.OnLoop("Drain", context, [this, request, response, caller = CallerOf(*context)] {
      auto node = control_.reconciler().Drain(*request, caller);
      if (node.ok()) *response->mutable_node() = *std::move(node);
      return node.status();
    });
  }

  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context,
                                    const v1::UndrainRequest* request,
                                    v1::UndrainResponse* response) override {
    return calls_.OnLoop("Undrain", context,
                         [this, request, response, caller = CallerOf(*context)] {
                           auto ended = control_.reconciler().Undrain(request->node(), caller);
                           if (ended.ok()) *response->mutable_ended() = *std::move(ended);
                           return ended.status();
                         });
  }

  grpc::ServerUnaryReactor* ListDrains(grpc::CallbackServerContext* context,
                                       const v1::ListDrainsRequest*,
                                       v1::ListDrainsResponse* response) override {
    return calls_.OnLoop("ListDrains", context, [this, response] {
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

std::unique_ptr<grpc::Service> MakeDrainService(Control& control, RpcObserver observe) {
  return std::make_unique<DrainServiceImpl>(control, std::move(observe));
}

}  // namespace terrace
