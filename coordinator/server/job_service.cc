// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/job_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/control/submit.h"
#include "coordinator/server/job_change.h"
#include "coordinator/server/rpc.h"
#include "coordinator/server/stream_writer.h"
#include "coordinator/server/submission.h"
#include "coordinator/server/unary_calls.h"
#include "proto/v1/job.grpc.pb.h"

namespace terrace {
namespace {

constexpr int64_t kEventsPerRead = 256;
constexpr size_t kLogBytesQueuedMax = 64 << 20;  // of one reader that does not keep up

// Events from the store, read whenever there are new ones: a slow watcher costs no memory here.
class Watch final : public StreamWriter<v1::JobEvent> {
 public:
  static Watch* Start(Control& control, const v1::WatchJobRequest& request) {
    auto watch = std::shared_ptr<Watch>(new Watch(control, request));
    watch->KeepAlive(watch);
    control.loop().Post([watch] { watch->Begin(); });
    return watch.get();
  }

 private:
  Watch(Control& control, const v1::WatchJobRequest& request)
      : StreamWriter(control.loop()),
        control_(control),
        job_(request.id()),
        cursor_(request.after_sequence()) {}

  void Begin() {
    if (const auto job = control_.reconciler().Get(job_); !job.ok()) return End(job.status());
    std::weak_ptr<StreamWriter> weak = weak_from_this();
    const auto id = control_.AddWatcher(job_, [weak] {
      if (auto self = weak.lock()) self->Advance();
    });
    if (!id.ok()) return End(id.status());
    watcher_ = *id;
    Advance();
  }

  void Refill() override {
    // Before the events are read: what happens in between is notified.
    const bool is_over = control_.reconciler().IsOver(job_);
    auto events = control_.store().Events(job_, cursor_, kEventsPerRead);
    if (!events.ok()) return End(events.status());
    if (events->empty() && is_over) return End(absl::OkStatus());
    for (v1::JobEvent& event : *events) {
      cursor_ = event.sequence();
      Push(std::move(event));
    }
  }

  void Ended() override {
    if (watcher_ != 0) control_.RemoveWatcher(watcher_);
  }

  Control& control_;
  const std::string job_;
  int64_t cursor_;
  uint64_t watcher_ = 0;
};

// Chunks of a rank's log as its worker sends them.
class LogStream final : public StreamWriter<v1::LogsChunk> {
 public:
  static LogStream* Start(Control& control, const v1::LogsRequest& request) {
    auto stream = std::shared_ptr<LogStream>(new LogStream(control));
    stream->KeepAlive(stream);
    control.loop().Post([stream, request] { stream->Begin(request); });
    return stream.get();
  }

 private:
  explicit LogStream(Control& control) : StreamWriter(control.loop()), control_(control) {}

  void Begin(const v1::LogsRequest& request) {
    std::weak_ptr<StreamWriter> weak = weak_from_this();
    const auto id = control_.ReadLog(request, [weak](const v1::LogText& text) {
      if (auto self = weak.lock()) static_cast<LogStream*>(self.get())->Take(text);
    });
    if (!id.ok()) return End(id.status());
    reader_ = *id;
  }

  void Take(const v1::LogText& text) {
    if (!text.text().empty() || text.has_position()) {
      queued_bytes_ += text.text().size();
      if (queued_bytes_ > kLogBytesQueuedMax) {
        return End(absl::ResourceExhaustedError("the log grows faster than it is read"));
      }
      v1::LogsChunk chunk;
      chunk.set_text(text.text());
      if (text.has_position()) *chunk.mutable_end() = text.position();
      Push(std::move(chunk));
    }
    if (text.end()) {
      end_ = text.error().empty() ? absl::OkStatus() : absl::NotFoundError(text.error());
      complete_ = true;
    }
    Advance();
  }

  void Refill() override {
    queued_bytes_ = 0;
    if (complete_) End(end_);
  }

  void Ended() override {
    if (reader_ == 0) return;
    // Not at once: Ended may run inside the delivery of a chunk to this reader.
    control_.loop().Post([&control = control_, reader = reader_] { control.StopLog(reader); });
  }

  Control& control_;
  uint64_t reader_ = 0;
  size_t queued_bytes_ = 0;
  bool complete_ = false;
  absl::Status end_;
};

class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  JobServiceImpl(Control& control, const CallGuard& guard)
      : control_(control), calls_(control.loop(), guard), changes_(control, calls_) {}

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context,
                                   const v1::SubmitRequest* request,
                                   v1::SubmitResponse* response) override {
    return PlanAndSubmit({control_, calls_, "Submit"}, context, *request, response);
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::GetJobRequest* request,
                                v1::GetJobResponse* response) override {
    return calls_.OnLoop("Get", context, [this, request, response](GuardedCall&) {
      return AnswerWith(control_.reconciler().Get(request->id()), response);
    });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListJobsRequest* request,
                                 v1::ListJobsResponse* response) override {
    return calls_.OnLoop("List", context, [this, request, response](GuardedCall&) {
      auto jobs = control_.reconciler().List(request->all());
      if (!jobs.ok()) return jobs.status();
      for (v1::Job& job : *jobs) *response->add_jobs() = std::move(job);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelJobRequest* request,
                                   v1::CancelJobResponse* response) override {
    return changes_.Change(
        "Cancel", context, *request, response, request->force(),
        [this, request] { return control_.reconciler().Cancel(request->id(), request->force()); });
  }

  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const v1::PauseJobRequest* request,
                                  v1::PauseJobResponse* response) override {
    return changes_.Change("Pause", context, *request, response, request->force(), [this, request] {
      return control_.reconciler().Pause(request->id(), request->force());
    });
  }

  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeJobRequest* request,
                                   v1::ResumeJobResponse* response) override {
    return changes_.Change("Resume", context, *request, response, /*force=*/false,
                           [this, request] { return control_.reconciler().Resume(request->id()); });
  }

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto finish = calls_.Finisher(calls_.guard().Begin("Explain", *context), reactor);
    terrace::Explain(
        control_, *request, [context] { return context->IsCancelled(); },
        [response, finish](absl::StatusOr<v1::ExplainResponse> explained) {
          if (explained.ok()) *response = *std::move(explained);
          finish(explained.status());
        });
    return reactor;
  }

  grpc::ServerUnaryReactor* GetMemory(grpc::CallbackServerContext* context,
                                      const v1::GetMemoryRequest* request,
                                      v1::GetMemoryResponse* response) override {
    return calls_.OnLoop("GetMemory", context, [this, request, response](GuardedCall&) {
      auto memory = control_.reconciler().Memory(request->id());
      if (memory.ok()) *response = *std::move(memory);
      return memory.status();
    });
  }

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const v1::ListNodesRequest*,
                                      v1::ListNodesResponse* response) override {
    return calls_.OnLoop("ListNodes", context, [this, response](GuardedCall&) {
      for (v1::Node& node : control_.reconciler().Nodes()) *response->add_nodes() = std::move(node);
      return absl::OkStatus();
    });
  }

  grpc::ServerWriteReactor<v1::JobEvent>* Watch(grpc::CallbackServerContext*,
                                                const v1::WatchJobRequest* request) override {
    return terrace::Watch::Start(control_, *request);
  }

  grpc::ServerWriteReactor<v1::LogsChunk>* Logs(grpc::CallbackServerContext*,
                                                const v1::LogsRequest* request) override {
    return LogStream::Start(control_, *request);
  }

 private:
  Control& control_;
  const UnaryCalls calls_;
  const JobChanges changes_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(Control& control, const CallGuard& guard) {
  return std::make_unique<JobServiceImpl>(control, guard);
}

}  // namespace terrace
