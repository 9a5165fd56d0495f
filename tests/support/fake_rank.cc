// A rank process without a program: speaks the link as terrace-rank does, counts steps by sleeping,
// and fails when told to.
//
// What it does is in its RankConfig's spec.yaml as "key=value" words: steps, step_ms, crash_at
// (SIGKILL to itself after so many steps), finished (keeps a flight recorder in which each step of
// the program's first sequence stands after so many instructions of its one stream), grow_mib
// (takes so much after the first step), bad_alloc_at (an allocation fails after so many steps),
// reason (fails with that Reason number instead of preparing), rendezvous (sets a key and waits for
// those of all ranks before it is ready), mute (never listens), untold_after (with `finished`:
// later steps are kept in the flight recorder and not told). As `probe` it prints a profile.
//
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "worker/flight/flight_recorder.h"
#include "worker/link/link.h"

namespace terrace {
namespace {

std::map<std::string, std::string> Words(const std::string& text) {
  std::map<std::string, std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return words;
}

class FakeRank {
 public:
  explicit FakeRank(const v1::RankConfig& config)
      : config_(config), words_(Words(config.spec().yaml())) {
    report_.set_job(config.job());
    report_.set_epoch(config.epoch());
    report_.set_rank(config.rank());
  }

  int Run() {
    std::printf("rank %u of %u starts\n", config_.rank(), config_.ranks());
    std::fflush(stdout);
    if (Number("mute") != 0) {
      while (true) pause();
    }
    auto listener = LinkListener::Listen(config_.run_directory() + "/link.sock");
    if (!listener.ok()) return 1;
    std::thread([this, &listener] { Serve(*listener); }).detach();
    SetState(v1::RANK_PREPARING);
    if (Number("reason") != 0) {
      return End(v1::RANK_FAILED, static_cast<v1::Reason>(Number("reason")), "told to fail", false);
    }
    if (words_.contains("finished")) {
      flight_ =
          *FlightWriter::Create(config_.run_directory(), config_.program_sha256(), 1, &clock_);
      flight_->Reserved(v1::DEVICE, 1 << 20);
      flight_->Prepared(1 << 10);
    }
    if (Number("rendezvous") != 0) Meet();
    SetState(v1::RANK_READY);
    while (!go_ && !stop_) Sleep(1);
    SetState(v1::RANK_RUNNING);
    for (int64_t step = 1; step <= Number("steps") && !stop_; ++step) Step(step);
    return End(v1::RANK_SUCCEEDED, v1::REASON_NONE, "", stop_);
  }

 private:
  int64_t Number(const std::string& key) const {
    auto found = words_.find(key);
    return found == words_.end() ? 0 : std::stoll(found->second);
  }
  static void Sleep(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  void Step(int64_t step) {
    if (flight_ != nullptr) {
      flight_->SetStep(step);
      flight_->Begin(0);
      flight_->progress()[0].finished.store(static_cast<int32_t>(Number("finished")));
    }
    Sleep(Number("step_ms"));
    std::printf("step %ld\n", static_cast<long>(step));
    std::fflush(stdout);
    {
      absl::MutexLock lock(&mutex_);
      report_.mutable_progress()->set_step(step);
      report_.mutable_progress()->set_updated_unix_ms(step);
    }
    if (config_.rank() == 0) TellStep(step);
    SendReport();
    v1::LinkMessage metrics;
    metrics.mutable_metrics()->set_steps(step);
    metrics.mutable_metrics()->set_loss(2.5);
    Send(metrics);
    if (step == Number("crash_at")) kill(getpid(), SIGKILL);
    if (step == Number("bad_alloc_at")) throw std::bad_alloc();
    if (step == 1) grown_.assign(static_cast<size_t>(Number("grow_mib")) << 20, 'x');
  }

  // After untold_after it only keeps steps, as a rank does that is killed before it tells them.
  void TellStep(int64_t step) {
    v1::LinkMessage message;
    v1::JobEvent* event = message.add_events();
    event->set_unix_ms(clock_.UnixMillis());
    event->mutable_step()->set_step(step);
    event->mutable_step()->set_loss(1.0 / static_cast<double>(step));
    if (flight_ != nullptr) flight_->KeepStep(step, event->SerializeAsString());
    if (Number("untold_after") != 0 && step > Number("untold_after")) return;
    event->set_job(config_.job());
    Send(message);
    if (flight_ != nullptr) flight_->SetToldStep(step);
  }

  // Every rank sets its key and waits for all.
  void Meet() {
    v1::LinkMessage set;
    set.mutable_kv_set()->set_job(config_.job());
    set.mutable_kv_set()->set_epoch(config_.epoch());
    set.mutable_kv_set()->set_key(absl::StrCat("rank", config_.rank()));
    set.mutable_kv_set()->set_value("here");
    v1::LinkMessage wait;
    wait.mutable_kv_wait()->set_job(config_.job());
    wait.mutable_kv_wait()->set_epoch(config_.epoch());
    wait.mutable_kv_wait()->set_request(1);
    wait.mutable_kv_wait()->set_timeout_ms(20'000);
    for (uint32_t rank = 0; rank < config_.ranks(); ++rank) {
      wait.mutable_kv_wait()->add_keys(absl::StrCat("rank", rank));
    }
    while (!linked_) Sleep(1);
    Send(set);
    Send(wait);
    while (!met_) Sleep(1);
  }

  void Serve(LinkListener& listener) {
    while (auto accepted = listener.Accept().value_or(nullptr)) {
      std::shared_ptr<LinkConnection> link = std::move(accepted);
      {
        absl::MutexLock lock(&mutex_);
        link_ = link;
      }
      linked_ = true;
      SendReport();
      while (true) {
        const auto message = link->Receive();
        if (!message.ok()) break;
        if (message->has_go()) go_ = true;
        if (message->has_stop()) stop_ = true;
        if (message->has_kv_values()) met_ = message->kv_values().values_size() > 0;
      }
    }
  }

  void SetState(v1::RankState state) {
    {
      absl::MutexLock lock(&mutex_);
      report_.set_state(state);
    }
    SendReport();
  }

  int End(v1::RankState state, v1::Reason reason, const std::string& message, bool early) {
    std::string bytes;
    {
      absl::MutexLock lock(&mutex_);
      report_.set_state(state);
      report_.set_reason(reason);
      report_.set_message(message);
      report_.set_stopped_early(early);
      bytes = report_.SerializeAsString();
    }
    std::ofstream(config_.run_directory() + "/exit.pb", std::ios::binary) << bytes;
    SendReport();
    _exit(state == v1::RANK_SUCCEEDED ? 0 : 1);
  }

  // One after the other: a report that was copied before a change must not arrive after it.
  void SendReport() {
    const absl::MutexLock in_order(&report_order_);
    v1::LinkMessage message;
    {
      absl::MutexLock lock(&mutex_);
      *message.mutable_report() = report_;
    }
    Send(message);
  }

  void Send(const v1::LinkMessage& message) {
    std::shared_ptr<LinkConnection> link;
    {
      absl::MutexLock lock(&mutex_);
      link = link_;
    }
    if (link != nullptr) link->Send(message).IgnoreError();
  }

  const v1::RankConfig config_;
  const std::map<std::string, std::string> words_;
  const SystemClock clock_;
  std::unique_ptr<FlightWriter> flight_;
  std::string grown_;
  absl::Mutex report_order_;
  absl::Mutex mutex_;
  v1::RankReport report_;
  std::shared_ptr<LinkConnection> link_;  // shared: read on one thread, written on others
  std::atomic<bool> go_ = false, stop_ = false, met_ = false, linked_ = false;
};

int Main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "probe") {
    std::puts(R"({"name": "fake", "f32_flops_per_second": 1e11, "bf16_flops_per_second": 2e11,
                  "memory_bytes_per_second": 1e10, "link_bytes_per_second": 1e9, "measured": true})");
    return 0;
  }
  if (mode != "run" || argc < 4) return 2;
  std::ifstream file(argv[3], std::ios::binary);
  v1::RankConfig config;
  if (!config.ParseFromIstream(&file)) return 2;
  return FakeRank(config).Run();
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) { return terrace::Main(argc, argv); }
