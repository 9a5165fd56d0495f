// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/worker_service.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/server/rpc.h"
#include "proto/v1/worker.grpc.pb.h"
#include "proto/worker_instance.h"

namespace terrace {
namespace {

// One connected worker. A message is read only when the one before has been handled, so that a
// worker cannot flood the loop. The callbacks post to the loop; everything else runs there.
class WorkerStream final
    : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>,
      public WorkerConnection,
      public std::enable_shared_from_this<WorkerStream> {
 public:
  static WorkerStream* Start(Control& control, const CallGuard& guard,
                             const std::string& coordinator_id, int* unregistered,
                             const grpc::CallbackServerContext& context) {
    auto stream = std::make_shared<WorkerStream>(
        control, guard, coordinator_id, guard.Begin("Connect", context), InstanceOf(context));
    stream->self_ = stream;
    control.loop().Post([stream, unregistered] { stream->Begin(unregistered); });
    return stream.get();
  }

  WorkerStream(Control& control, const CallGuard& guard, const std::string& coordinator_id,
               std::shared_ptr<GuardedCall> call, std::string instance)
      : control_(control),
        guard_(guard),
        coordinator_id_(coordinator_id),
        call_(std::move(call)),
        instance_(std::move(instance)) {}

  void Send(const v1::CoordinatorMessage& message) override {
    if (ended_) return;
    queued_bytes_ += message.ByteSizeLong();
    if (queued_bytes_ > kWorkerBytesQueuedMax) {
      return End(absl::ResourceExhaustedError("the worker does not read what it is sent"));
    }
    queue_.push_back(message);
    WriteNext();
  }

 private:
  static std::string InstanceOf(const grpc::CallbackServerContext& context) {
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find(kWorkerInstanceKey);
    return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
  }

  // `unregistered` is the service's: how many streams have not said who they are.
  void Begin(int* unregistered) {
    if (ended_) return;
    if (*unregistered >= kUnregisteredMax) {
      guard_.gate().Count(Refusal::kSilent);
      return End(absl::UnavailableError(
          "too many streams have not said which worker they are: try again later"));
    }
    unregistered_ = unregistered;
    ++*unregistered_;
    StartRead(&incoming_);
    control_.CallAfter(kRegisterWithin, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr || self->unregistered_ == nullptr) return;
      self->guard_.gate().Count(Refusal::kSilent);
      self->End(
          absl::DeadlineExceededError(absl::StrCat("no worker registered on this stream within ",
                                                   absl::ToInt64Seconds(kRegisterWithin), " s")));
    });
  }
  // It has said who it is, or ended.
  void LeaveUnregistered() {
    if (unregistered_ != nullptr) --*unregistered_;
    unregistered_ = nullptr;
  }

  void CountRefusal(const absl::Status& status) {
    switch (status.code()) {
      case absl::StatusCode::kPermissionDenied:
        guard_.gate().Count(Refusal::kNotPlaced);
        return Note("Say", status);
      case absl::StatusCode::kInvalidArgument:
        return guard_.gate().Count(Refusal::kNonsense);
      case absl::StatusCode::kResourceExhausted:
        return guard_.gate().Count(Refusal::kLimit);
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kAlreadyExists:
        return guard_.gate().Count(Refusal::kNameTaken);
      default:
        return;
    }
  }

  void OnReadDone(bool ok) override {
    control_.loop().Post([self = shared_from_this(), ok] {
      if (self->ended_) return;
      if (!ok) return self->End(absl::OkStatus());
      if (const absl::Status status = self->Handle(); !status.ok()) return self->End(status);
      if (!self->ended_) self->StartRead(&self->incoming_);
    });
  }
  void OnWriteDone(bool ok) override {
    control_.loop().Post([self = shared_from_this(), ok] {
      self->writing_ = false;
      self->queued_bytes_ -= self->queue_.front().ByteSizeLong();
      self->queue_.pop_front();
      if (self->ended_) return self->FinishIfIdle();
      if (!ok) return self->End(absl::OkStatus());
      self->WriteNext();
    });
  }
  void OnCancel() override {
    control_.loop().Post([self = shared_from_this()] { self->End(absl::CancelledError("")); });
  }
  void OnDone() override { self_.reset(); }

  absl::Status Handle() {
    if (name_.empty()) return Register();
    if (incoming_.has_log_text()) {
      control_.LogArrived(name_, incoming_.log_text());
      return absl::OkStatus();
    }
    absl::Status status = control_.reconciler().WorkerSaid(name_, session_, incoming_);
    if (!status.ok()) CountRefusal(status);
    return status;
  }

  absl::Status Register() {
    v1::CoordinatorMessage reply;
    reply.mutable_registered()->set_coordinator_id(coordinator_id_);
    v1::Node node = incoming_.register_().node();
    if (node.address().empty()) node.set_address(call_->record.caller.peer);
    session_ = control_.NewSession();
    absl::Status status = guard_.CheckNode(*call_, node.name());
    if (status.ok()) {
      status = control_.reconciler().WorkerRegistered(node, session_, instance_);
      if (!status.ok()) CountRefusal(status);
    }
    call_->record.node = node.name();
    Note("Register", status);
    LeaveUnregistered();
    if (status.ok()) {
      name_ = node.name();
      reply.mutable_registered()->set_heartbeat_ms(control_.reconciler().HeartbeatMs(name_));
      control_.AttachWorker(name_, session_, this);
    } else {
      log::Warn("a worker at ", call_->record.caller.peer, " is refused: ", status.message());
      reply.mutable_registered()->set_error(CleanText(Std(status.message())));
    }
    Send(reply);
    return status;
  }

  void Note(const char* what, const absl::Status& status) {
    call_->record.call = what;
    call_->record.status = status;
    guard_.Note(call_->record);
  }

  void WriteNext() {
    if (writing_ || queue_.empty()) return;
    writing_ = true;
    StartWrite(&queue_.front());
  }

  void End(const absl::Status& status) {
    if (ended_) return;
    ended_ = true;
    LeaveUnregistered();
    status_ = ToGrpc(status);
    if (!name_.empty()) {
      log::Info("worker ", name_, " has disconnected", status.message().empty() ? "" : ": ",
                status.message());
      control_.DetachWorker(name_, session_);
    }
    FinishIfIdle();
  }

  void FinishIfIdle() {
    if (writing_ || finished_) return;
    finished_ = true;
    Finish(status_);
  }

  Control& control_;
  const CallGuard& guard_;
  const std::string coordinator_id_;
  const std::shared_ptr<GuardedCall> call_;
  const std::string instance_;
  std::shared_ptr<WorkerStream> self_;  // until OnDone
  v1::WorkerMessage incoming_;
  std::string name_;             // empty: not registered yet
  int* unregistered_ = nullptr;  // while it is one of them
  uint64_t session_ = 0;
  std::deque<v1::CoordinatorMessage> queue_;  // the front is being written while writing_
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  bool ended_ = false;
  bool finished_ = false;
  grpc::Status status_;
};

class WorkerServiceImpl final : public v1::WorkerService::CallbackService {
 public:
  WorkerServiceImpl(Control& control, const CallGuard& guard, std::string coordinator_id)
      : control_(control), guard_(guard), coordinator_id_(std::move(coordinator_id)) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Connect(
      grpc::CallbackServerContext* context) override {
    return WorkerStream::Start(control_, guard_, coordinator_id_, &unregistered_, *context);
  }

 private:
  Control& control_;
  const CallGuard& guard_;
  const std::string coordinator_id_;
  int unregistered_ = 0;  // used on the control loop
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(Control& control, const CallGuard& guard,
                                                 std::string coordinator_id) {
  return std::make_unique<WorkerServiceImpl>(control, guard, std::move(coordinator_id));
}

}  // namespace terrace
