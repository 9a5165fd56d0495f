// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/evaluation_service.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/control/submit.h"
#include "coordinator/server/stream_writer.h"
#include "proto/v1/evaluation.grpc.pb.h"

namespace terrace {
namespace {

constexpr double kSecondsByDefault = 120;

// How far it is, whenever the client has read the last; then what was found.
class EvaluationStream final : public StreamWriter<v1::EvaluateReply> {
 public:
  // `busy` is the service's: whether one is under way.
  static EvaluationStream* Start(Control& control, v1::EvaluateRequest request, double seconds_max,
                                 bool* busy) {
    auto stream = std::shared_ptr<EvaluationStream>(new EvaluationStream(control, busy));
    stream->KeepAlive(stream);
    control.loop().Post([stream, request = std::move(request), seconds_max]() mutable {
      stream->Begin(std::move(request), seconds_max);
    });
    return stream.get();
  }

 private:
  EvaluationStream(Control& control, bool* busy)
      : StreamWriter(control.loop()), control_(control), busy_(busy) {}

  void Begin(v1::EvaluateRequest request, double seconds_max) {
    if (*busy_) {
      return End(absl::ResourceExhaustedError(
          "another evaluation is under way, and a coordinator makes one at a time: try again when "
          "it has ended, or evaluate here with --cluster"));
    }
    *busy_ = true;
    if (request.seconds() <= 0) request.set_seconds(kSecondsByDefault);
    shortened_ = request.seconds() > seconds_max;
    request.set_seconds(std::min(request.seconds(), seconds_max));
    seconds_ = request.seconds();
    std::weak_ptr<StreamWriter> weak = weak_from_this();
    const auto on_stream = [weak](auto work) {
      if (auto self = weak.lock()) work(static_cast<EvaluationStream&>(*self));
    };
    Evaluate(
        control_, request, [gone = gone_] { return gone->load(); },
        [on_stream, &loop = control_.loop()](const v1::EvaluationProgress& progress) {
          loop.Post([on_stream, progress] {
            on_stream([&](EvaluationStream& stream) { stream.Tell(progress); });
          });
        },
        [on_stream, busy = busy_](absl::StatusOr<v1::Evaluation> evaluation) {
          *busy = false;
          on_stream([&](EvaluationStream& stream) { stream.Take(std::move(evaluation)); });
        });
  }

  // A client that reads slowly gets the newest only.
  void Tell(const v1::EvaluationProgress& progress) {
    told_ = progress;
    Advance();
  }

  void Take(absl::StatusOr<v1::Evaluation> evaluation) {
    if (!evaluation.ok()) return End(evaluation.status());
    if (shortened_ && !evaluation->complete()) {
      evaluation->add_remarks(absl::StrCat("the coordinator gives an evaluation at most ", seconds_,
                                           " s, by its --plan-seconds"));
    }
    found_ = *std::move(evaluation);
    complete_ = true;
    Advance();
  }

  void Refill() override {
    v1::EvaluateReply reply;
    if (found_) {
      *reply.mutable_evaluation() = *std::move(found_);
      found_.reset();
      told_.reset();
      return Push(std::move(reply));
    }
    if (complete_) return End(absl::OkStatus());
    if (!told_) return;
    *reply.mutable_progress() = *std::move(told_);
    told_.reset();
    Push(std::move(reply));
  }

  void Ended() override { gone_->store(true); }

  Control& control_;
  bool* const busy_;  // used on the loop
  bool complete_ = false, shortened_ = false;
  double seconds_ = 0;
  std::optional<v1::EvaluationProgress> told_;
  std::optional<v1::Evaluation> found_;
  // Shared with the planner's threads, which outlive the stream.
  const std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
};

class EvaluationServiceImpl final : public v1::EvaluationService::CallbackService {
 public:
  EvaluationServiceImpl(Control& control, double seconds_max)
      : control_(control), seconds_max_(seconds_max) {}

  grpc::ServerWriteReactor<v1::EvaluateReply>* Evaluate(
      grpc::CallbackServerContext*, const v1::EvaluateRequest* request) override {
    return EvaluationStream::Start(control_, *request, seconds_max_, &busy_);
  }

 private:
  Control& control_;
  const double seconds_max_;
  bool busy_ = false;  // used on the control loop
};

}  // namespace

std::unique_ptr<grpc::Service> MakeEvaluationService(Control& control, double seconds_max) {
  return std::make_unique<EvaluationServiceImpl>(control, seconds_max);
}

}  // namespace terrace
