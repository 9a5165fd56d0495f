// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/control/simulated_workers.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/support/fake_worker.h"

namespace terrace {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(10);
constexpr absl::Duration kDialAgain = absl::Milliseconds(500);
constexpr int kMessageBytesMax = 64 << 20;
// A daemon tells what its ranks hold with every fifth heartbeat or so.
constexpr int64_t kMemoryEvery = 5;
constexpr int64_t kStepsToldMax = 16;  // in one message

std::shared_ptr<grpc::Channel> Dial(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void AddMemory(v1::RankReport* report) {
  v1::RankMemory& memory = *report->mutable_memory();
  memory.set_rank(report->rank());
  memory.set_unix_ms(absl::ToUnixMillis(absl::Now()));
  memory.set_step(report->progress().step());
  memory.set_sequence("train");
  memory.set_external_bytes(64 << 20);
  memory.set_external_allowed_bytes(96 << 20);
  v1::TierMemory& tier = *memory.add_tiers();
  tier.set_tier(v1::DEVICE);
  tier.set_reserved_bytes(int64_t{1} << 30);
  tier.set_predicted_bytes(int64_t{1} << 30);
  for (int of = 1; of <= 4; ++of) {
    v1::LiveClass& live = *tier.add_live();
    live.set_class_(static_cast<v1::BufferClass>(of));
    live.set_bytes(int64_t{100} << 20);
  }
  memory.mutable_allocator()->set_mode("planned");
  memory.mutable_allocator()->set_reserved_bytes(int64_t{1} << 30);
}

}  // namespace

class SimulatedWorker {
 public:
  SimulatedWorker(const SimulatedWorkers::Options& options, std::string name,
                  std::shared_ptr<grpc::Channel> channel, std::atomic<int64_t>* said)
      : options_(options),
        said_(*said),
        fake_(std::move(name), 1),
        stub_(v1::WorkerService::NewStub(std::move(channel))) {}

  // What is due by now. When it is to be asked again.
  absl::Time Tick(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (silent_) return now + absl::Seconds(1);
    if (stream_ == nullptr) {
      if (now < due_) return due_;
      Open();
      return due_ = now + kDialAgain;
    }
    if (registered_ && now >= due_) {
      Report(now);
      due_ = std::max(due_ + period_, now);
    }
    return registered_ ? due_ : now + kDialAgain;
  }

  void Silence() {
    absl::MutexLock lock(&mutex_);
    silent_ = true;
  }
  bool registered() const {
    absl::MutexLock lock(&mutex_);
    return registered_;
  }
  const std::string& name() const { return fake_.name(); }

  void Close() {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    if (stream_ != nullptr) stream_->context.TryCancel();
    mutex_.Await(absl::Condition(
        +[](SimulatedWorker* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return !self->stream_; },
        this));
  }

 private:
  // Lives until the stream has ended.
  struct Stream final : grpc::ClientBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
    explicit Stream(SimulatedWorker* of) : worker(of) {}
    void OnReadDone(bool ok) override {
      if (!ok) return;
      worker->Take(incoming);
      StartRead(&incoming);
    }
    void OnWriteDone(bool ok) override { worker->Written(ok); }
    void OnDone(const grpc::Status& /*status*/) override {
      worker->Lost();
      delete this;
    }
    SimulatedWorker* const worker;
    grpc::ClientContext context;
    v1::CoordinatorMessage incoming;
  };

  void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (closing_) return;
    stream_ = new Stream(this);  // deletes itself when it is done
    stub_->async()->Connect(&stream_->context, stream_);
    v1::WorkerMessage hello;
    v1::Node& node = *hello.mutable_register_()->mutable_node();
    node = fake_.node();
    node.set_device("cpu");
    node.set_address("127.0.0.1:1");
    stream_->StartRead(&stream_->incoming);
    Write(std::move(hello));
    stream_->StartCall();
  }

  void Take(const v1::CoordinatorMessage& message) {
    absl::MutexLock lock(&mutex_);
    if (message.has_registered()) {
      registered_ = message.registered().error().empty();
      const absl::Duration asked = absl::Milliseconds(message.registered().heartbeat_ms());
      period_ = options_.heartbeat > absl::ZeroDuration() ? options_.heartbeat : asked;
      due_ = absl::Now();
      return;
    }
    fake_.Handle(message);
    fake_.received.clear();
    for (const v1::RankConfig& config : message.start().ranks())
      fake_.SetAll(config.job(), v1::RANK_READY);
    if (message.has_go()) started_[message.go().job()] = {.since = absl::Now()};
    const bool changes = message.has_start() || message.has_go() || message.has_stop();
    if (changes && registered_ && !silent_) Report(absl::Now());
  }

  void Report(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    v1::WorkerMessage message;
    for (auto& [key, report] : fake_.ranks) {
      if (report.state() == v1::RANK_RUNNING) Progress(now, &report, &message);
    }
    *message.mutable_heartbeat() = fake_.Heartbeat().heartbeat();
    if (++beats_ % kMemoryEvery == 0) {
      for (v1::RankReport& report : *message.mutable_heartbeat()->mutable_ranks())
        AddMemory(&report);
    }
    Write(std::move(message));
  }

  void Progress(absl::Time now, v1::RankReport* report, v1::WorkerMessage* message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Training& training = started_[report->job()];
    const auto step = static_cast<int64_t>((now - training.since) / options_.step);
    const double loss = 10.0 / (1.0 + static_cast<double>(step));
    const double seconds = absl::ToDoubleSeconds(options_.step);
    v1::Progress& progress = *report->mutable_progress();
    progress.set_step(step);
    progress.set_loss(loss);
    progress.set_tokens_per_second(1000);
    progress.set_step_seconds(seconds);
    progress.set_updated_unix_ms(absl::ToUnixMillis(now));
    progress.set_arena_bytes(int64_t{1} << 30);
    v1::RankPlace& place = *report->mutable_place();
    place.set_activity(v1::ACTIVITY_STEP);
    place.set_places(2 * step);
    place.set_step(step);
    place.set_sequence("train");
    place.set_computing_ratio(0.9);
    place.set_waiting_ratio(0.05);
    if (report->rank() != 0) return;
    training.told = std::max(training.told, step - kStepsToldMax);
    while (training.told < step) {
      v1::JobEvent& event = *message->add_events();
      event.set_job(report->job());
      event.set_epoch(report->epoch());
      event.set_unix_ms(absl::ToUnixMillis(now));
      event.mutable_step()->set_step(++training.told);
      event.mutable_step()->set_loss(loss);
      event.mutable_step()->set_tokens_per_second(1000);
      event.mutable_step()->set_step_seconds(seconds);
    }
  }

  void Write(v1::WorkerMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_.push_back(std::move(message));
    ++said_;
    if (queue_.size() == 1) stream_->StartWrite(&queue_.front());
  }

  void Written(bool ok) {
    absl::MutexLock lock(&mutex_);
    if (!ok || stream_ == nullptr) return;
    queue_.pop_front();
    if (!queue_.empty()) stream_->StartWrite(&queue_.front());
  }

  void Lost() {
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    registered_ = false;
    queue_.clear();
    due_ = absl::Now() + kDialAgain;
  }

  struct Training {
    absl::Time since;
    int64_t told = 0;  // steps
  };

  const SimulatedWorkers::Options& options_;
  std::atomic<int64_t>& said_;
  mutable absl::Mutex mutex_;
  FakeWorker fake_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;                 // null: none is open
  std::deque<v1::WorkerMessage> queue_ ABSL_GUARDED_BY(mutex_);      // the front is being written
  std::map<std::string, Training> started_ ABSL_GUARDED_BY(mutex_);  // by job
  absl::Duration period_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  absl::Time due_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t beats_ ABSL_GUARDED_BY(mutex_) = 0;
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

std::string SimulatedWorkers::NameOf(int index) { return absl::StrFormat("sim-%05d", index); }

SimulatedWorkers::SimulatedWorkers(const Options& options) : options_(options) {
  std::shared_ptr<grpc::Channel> channel;
  for (int i = 0; i < options_.workers; ++i) {
    if (i % options_.workers_per_connection == 0) channel = Dial(options_.coordinator);
    workers_.push_back(std::make_unique<SimulatedWorker>(options_, NameOf(i), channel, &said_));
  }
  clock_ = std::thread([this] { Run(); });
}

SimulatedWorkers::~SimulatedWorkers() {
  stopping_ = true;
  clock_.join();
  for (const auto& worker : workers_) worker->Close();
}

int SimulatedWorkers::Registered() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(),
                                        [](const auto& worker) { return worker->registered(); }));
}

void SimulatedWorkers::Silence(const std::string& name) {
  for (const auto& worker : workers_) {
    if (worker->name() == name) worker->Silence();
  }
}

// The first dials are spread over a second, so that heartbeats come evenly, too.
void SimulatedWorkers::Run() {
  using Due = std::pair<absl::Time, size_t>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
  const absl::Time start = absl::Now();
  const absl::Duration apart =
      std::max(absl::Seconds(1), absl::Milliseconds(options_.workers)) / options_.workers;
  for (size_t i = 0; i < workers_.size(); ++i)
    due.emplace(start + apart * static_cast<double>(i), i);
  while (!stopping_) {
    const absl::Time now = absl::Now();
    while (!due.empty() && due.top().first <= now) {
      const size_t index = due.top().second;
      due.pop();
      due.emplace(std::max(workers_[index]->Tick(now), now + kTick), index);
    }
    absl::SleepFor(kTick);
  }
}

}  // namespace terrace
