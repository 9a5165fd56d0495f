// How much of a processor a coordinator takes, and how fast it answers, with thousands of workers
// and jobs: a coordinator as a process, workers as simulated_workers.h has them, and clients.
//
// It fills a cluster with jobs that take all of its devices and a queue behind them, then measures
// in turn: the coordinator at rest, reads, cancels, submissions, the loss of a worker and a
// restart of the coordinator. Every part ends after a time or a count. Figures of processor time
// are the coordinator's own: other load on the machine stretches the latencies, not these.
//
//   build/release/bin/control_load --workers 500 --running 500 --queued 2000 --seconds 20 [-o json]
//
// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/v1/list.grpc.pb.h"
#include "tests/bench/control/figures.h"
#include "tests/bench/control/process_use.h"
#include "tests/bench/control/simulated_workers.h"
#include "tests/system/control_cluster.h"

namespace terrace {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr int kGetsASecond = 20;

struct LoadOptions {
  int workers = 500;
  int running = 500;  // each on workers / running workers
  int queued = 2000;
  int seconds = 20;  // of the coordinator at rest, and of reads; half of it of submissions
  int fill_seconds = 600;
  int heartbeat_ms = 0;
  int workers_per_connection = 1;
  int clients = 8;
  int cancels = 20;
  int distinct = 0;  // 1: no two jobs have the same plan
  std::string output = "table";
};

class Load {
 public:
  explicit Load(const LoadOptions& options) : options_(options) {}

  void Run() {
    cluster_.StartCoordinator();
    Reconnect();
    StartWorkers();
    Fill();
    AtRest();
    Read();
    Cancel();
    Burst();
    LoseWorker();
    Restart();
    Print();
  }

 private:
  void Add(std::string name, double value, std::string unit) {
    figures_.Add(std::move(name), value, std::move(unit));
  }

  ProcessUse Use() { return UseOf(cluster_.coordinator().pid()); }

  // False when it does not become so in time.
  static bool Until(absl::Duration limit, const std::function<bool()>& holds) {
    const absl::Time deadline = absl::Now() + limit;
    while (!holds()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(kPoll);
    }
    return true;
  }

  void StartWorkers() {
    const absl::Time start = absl::Now();
    const ProcessUse before = Use();
    workers_ = std::make_unique<SimulatedWorkers>(
        SimulatedWorkers::Options{.coordinator = absl::StrCat("127.0.0.1:", cluster_.port()),
                                  .workers = options_.workers,
                                  .heartbeat = absl::Milliseconds(options_.heartbeat_ms),
                                  .workers_per_connection = options_.workers_per_connection});
    Until(absl::Minutes(3), [&] { return workers_->Registered() == options_.workers; });
    Add("workers registered", workers_->Registered(), "");
    Add("time to register them", absl::ToDoubleSeconds(absl::Now() - start), "s");
    Add("coordinator for them", Use().cpu_seconds - before.cpu_seconds, "s of a core");
  }

  // A tiny job over as many workers as each of the running ones has.
  std::string Spec(int number) const {
    const int nodes = std::max(1, options_.workers / std::max(1, options_.running));
    return absl::StrFormat(R"(name: load
model:
  config: {model_type: gpt2, vocab_size: 256, n_positions: 64, n_embd: 32, n_layer: 1, n_head: 4,
           activation_function: gelu_new, layer_norm_epsilon: 1.0e-5, initializer_range: 0.02}
data: {train: [text.txt], tokenizer: bytes, sequence_length: 32}
train: {steps: 100000000, global_batch: %d, seed: %d}
checkpoint: {directory: checkpoints/%d}
layout: {dp: %d, tp: 1, pp: 1, micro_batch: 4}
resources: {threads_per_device: 1, devices_per_node: 1, nodes: %d}
)",
                           4 * nodes, options_.distinct > 0 ? number : 1, number, nodes, nodes);
  }

  // By several clients at once, until `count` are accepted or the time is over. How many were.
  int Submit(int count, absl::Duration limit) {
    const absl::Time deadline = absl::Now() + limit;
    std::atomic<int> begun = 0, accepted = 0;
    std::vector<std::thread> clients;
    for (int i = 0; i < options_.clients; ++i) {
      clients.emplace_back([&] {
        while (begun++ < count && absl::Now() < deadline) {
          v1::SubmitRequest request;
          request.set_yaml(Spec(++submitted_));
          request.set_base_directory(cluster_.folder());
          v1::SubmitResponse response;
          grpc::ClientContext context;
          const grpc::Status status = cluster_.stub().Submit(&context, request, &response);
          accepted += status.ok();
          if (!status.ok()) std::fprintf(stderr, "refused: %s\n", status.error_message().c_str());
        }
      });
    }
    for (std::thread& client : clients) client.join();
    return accepted;
  }

  void Fill() {
    const absl::Time start = absl::Now();
    const int first = std::min(200, options_.running);
    int accepted = Submit(first, absl::Seconds(options_.fill_seconds));
    Add("submissions, first jobs", accepted / absl::ToDoubleSeconds(absl::Now() - start),
        "a second");
    const absl::Time rest = absl::Now();
    const int more =
        Submit(options_.running + options_.queued - first, absl::Seconds(options_.fill_seconds));
    Add("submissions, all others", more / absl::ToDoubleSeconds(absl::Now() - rest), "a second");
    accepted += more;
    Add("jobs", accepted, "");
    Until(absl::Minutes(2), [&] { return Running() >= options_.running; });
    Add("jobs running", Running(), "");
    ids_ = Ids();
    absl::SleepFor(absl::Seconds(5));
  }

  int Running() {
    v1::ListPageRequest request;
    request.add_states(v1::RUNNING);
    request.set_limit(1);
    const v1::ListPageResponse page = List(request);
    return page.counts_size() == 0 ? 0 : static_cast<int>(page.counts(0).jobs());
  }

  v1::ListPageResponse List(const v1::ListPageRequest& request) {
    grpc::ClientContext context;
    v1::ListPageResponse response;
    const grpc::Status status = lists_->ListPage(&context, request, &response);
    if (!status.ok()) std::fprintf(stderr, "ls: %s\n", status.error_message().c_str());
    return response;
  }

  // What `terrace ls` asks for, and with `whole` `terrace ls -o json`. The bytes of all pages.
  size_t ListAll(bool whole, double* seconds) {
    v1::ListPageRequest request;
    request.set_whole(whole);
    request.set_limit(whole ? 500 : 100);
    size_t bytes = 0;
    const absl::Time start = absl::Now();
    do {
      const v1::ListPageResponse page = List(request);
      bytes += page.ByteSizeLong();
      request.set_before(page.next());
    } while (whole && request.before() != 0);
    *seconds = absl::ToDoubleSeconds(absl::Now() - start);
    return bytes;
  }

  // Of all jobs, in order of submission.
  std::vector<std::string> Ids() {
    std::vector<std::string> ids;
    v1::ListPageRequest request;
    request.set_limit(1000);
    do {
      const v1::ListPageResponse page = List(request);
      for (const v1::JobSummary& job : page.summaries()) ids.push_back(job.id());
      request.set_before(page.next());
    } while (request.before() != 0);
    std::reverse(ids.begin(), ids.end());
    return ids;
  }

  void AtRest() {
    const ProcessUse before = Use();
    const int64_t said = workers_->Said();
    absl::SleepFor(absl::Seconds(options_.seconds));
    const ProcessUse after = Use();
    Add("messages of workers", static_cast<double>(workers_->Said() - said) / options_.seconds,
        "a second");
    rest_bytes_a_second_ =
        static_cast<double>(after.written_bytes - before.written_bytes) / options_.seconds;
    Add("coordinator at rest", 100 * (after.cpu_seconds - before.cpu_seconds) / options_.seconds,
        "% of a core");
    Add("written at rest", rest_bytes_a_second_ / 1e6, "MB a second");
    Add("memory of the coordinator", static_cast<double>(after.held_bytes) / 1e6, "MB");
  }

  void Read() {
    const ProcessUse before = Use();
    const absl::Time start = absl::Now();
    std::vector<double> gets, lists;
    size_t rows_bytes = 0;
    for (int i = 0; i < kGetsASecond * options_.seconds; ++i) {
      const absl::Time due = start + i * absl::Seconds(1) / kGetsASecond;
      absl::SleepFor(due - absl::Now());
      if (i % kGetsASecond == 0) rows_bytes = ListAll(/*whole=*/false, &lists.emplace_back());
      v1::GetJobRequest request;
      request.set_id(ids_[static_cast<size_t>(i) * 7919 % ids_.size()]);
      v1::GetJobResponse response;
      grpc::ClientContext context;
      const absl::Time asked = absl::Now();
      reader_->Get(&context, request, &response);
      gets.push_back(absl::ToDoubleSeconds(absl::Now() - asked));
    }
    Add("coordinator while it is read",
        100 * (Use().cpu_seconds - before.cpu_seconds) / absl::ToDoubleSeconds(absl::Now() - start),
        "% of a core");
    figures_.AddLatencies("get", std::move(gets));
    figures_.AddLatencies("ls", std::move(lists));
    Add("bytes of ls", static_cast<double>(rows_bytes) / 1e3, "kB");
    double seconds = 0;
    Add("bytes of ls of all jobs, whole",
        static_cast<double>(ListAll(/*whole=*/true, &seconds)) / 1e6, "MB");
    Add("ls of all jobs, whole", seconds * 1e3, "ms");
  }

  // Of jobs in the queue, the newest first.
  void Cancel() {
    std::vector<double> seconds;
    const int64_t before = Use().written_bytes;
    const absl::Time start = absl::Now();
    const int count = std::min(options_.cancels, options_.queued);
    for (int i = 0; i < count; ++i) {
      v1::CancelJobRequest request;
      request.set_id(ids_[ids_.size() - 1 - static_cast<size_t>(i)]);
      v1::CancelJobResponse response;
      grpc::ClientContext context;
      const absl::Time asked = absl::Now();
      reader_->Cancel(&context, request, &response);
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - asked));
    }
    absl::SleepFor(absl::Seconds(1));
    const double written = static_cast<double>(Use().written_bytes - before) -
                           rest_bytes_a_second_ * absl::ToDoubleSeconds(absl::Now() - start);
    figures_.AddLatencies("cancel", std::move(seconds));
    Add("written by a cancel", count == 0 ? 0 : std::max(0.0, written) / count / 1e3, "kB");
  }

  void Burst() {
    const ProcessUse before = Use();
    const absl::Time start = absl::Now();
    const absl::Duration limit = absl::Seconds(std::max(1, options_.seconds / 2));
    const int accepted = Submit(100'000, limit);
    const double took = absl::ToDoubleSeconds(absl::Now() - start);
    Add("submissions behind the queue", accepted / took, "a second");
    Add("coordinator for a submission",
        accepted == 0 ? 0 : 1e3 * (Use().cpu_seconds - before.cpu_seconds) / accepted, "ms");
  }

  void LoseWorker() {
    const v1::Job job = cluster_.Get(ids_.front());
    if (job.state() != v1::RUNNING) return;
    const absl::Time start = absl::Now();
    workers_->Silence(job.placement().ranks(0).worker());
    const bool noticed = Until(absl::Seconds(30),
                               [&] { return cluster_.Get(job.id()).restarts() > job.restarts(); });
    if (noticed) Add("loss of a worker noticed", absl::ToDoubleSeconds(absl::Now() - start), "s");
  }

  // Of all jobs that have not ended.
  int64_t Restarts() {
    int64_t restarts = 0;
    v1::ListPageRequest request;
    request.set_limit(1000);
    do {
      const v1::ListPageResponse page = List(request);
      for (const v1::JobSummary& job : page.summaries()) restarts += job.restarts();
      request.set_before(page.next());
    } while (request.before() != 0);
    return restarts;
  }

  void Restart() {
    const int64_t restarts = Restarts();
    cluster_.coordinator().End(SIGKILL);
    const absl::Time start = absl::Now();
    cluster_.StartCoordinator();
    Reconnect();
    const std::string id = cluster_.Get(ids_.front()).id();
    if (id.empty()) return;
    Add("restart to the first answer", absl::ToDoubleSeconds(absl::Now() - start), "s");
    Add("coordinator until then", Use().cpu_seconds, "s of a core");
    Until(absl::Minutes(1), [&] { return workers_->Registered() >= options_.workers - 1; });
    Add("restart to all workers", absl::ToDoubleSeconds(absl::Now() - start), "s");
    Until(absl::Minutes(1), [&] { return Running() >= options_.running - 1; });
    Add("restart to all jobs", absl::ToDoubleSeconds(absl::Now() - start), "s");
    Add("coordinator until then, in all", Use().cpu_seconds, "s of a core");
    Add("jobs begun anew by the restart", static_cast<double>(Restarts() - restarts), "");
  }

  void Reconnect() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", cluster_.port()),
                                                   grpc::InsecureChannelCredentials(), arguments);
    reader_ = v1::JobService::NewStub(channel);
    lists_ = v1::ListService::NewStub(channel);
  }

  void Print() const { options_.output == "json" ? figures_.PrintJson() : figures_.PrintTable(); }

  const LoadOptions options_;
  ControlCluster cluster_;
  std::unique_ptr<v1::JobService::Stub> reader_;  // takes answers of any size
  std::unique_ptr<v1::ListService::Stub> lists_;
  std::unique_ptr<SimulatedWorkers> workers_;  // before the cluster, so that nobody dials again
  std::vector<std::string> ids_;
  std::atomic<int> submitted_ = 0;
  double rest_bytes_a_second_ = 0;
  Figures figures_;
};

struct NumberOption {
  const char* name;
  int* value;
  int least, most;
};

// Nothing where an argument is none of these, after saying so.
std::optional<LoadOptions> OptionsOf(const std::vector<std::string>& arguments) {
  LoadOptions options;
  const std::vector<NumberOption> numbers = {
      {"--workers", &options.workers, 1, 16'384},
      {"--running", &options.running, 1, 10'000},
      {"--queued", &options.queued, 0, 10'000},
      {"--seconds", &options.seconds, 1, 600},
      {"--fill-seconds", &options.fill_seconds, 1, 3600},
      {"--heartbeat-ms", &options.heartbeat_ms, 0, 60'000},
      {"--workers-per-connection", &options.workers_per_connection, 1, 256},
      {"--clients", &options.clients, 1, 128},
      {"--cancels", &options.cancels, 0, 1000},
      {"--distinct", &options.distinct, 0, 1}};
  for (size_t i = 0; i + 1 < arguments.size(); i += 2) {
    const std::string& value = arguments[i + 1];
    if (arguments[i] == "-o" && (value == "json" || value == "table")) {
      options.output = value;
      continue;
    }
    const auto option = std::find_if(numbers.begin(), numbers.end(),
                                     [&](const auto& one) { return arguments[i] == one.name; });
    if (option == numbers.end() || !absl::SimpleAtoi(value, option->value) ||
        *option->value < option->least || *option->value > option->most) {
      std::fprintf(stderr, "%s %s: no such option, or no value of it\n", arguments[i].c_str(),
                   value.c_str());
      return std::nullopt;
    }
  }
  if (arguments.size() % 2 == 0) return options;
  std::fprintf(stderr, "%s has no value; options are -o json|table and", arguments.back().c_str());
  for (const NumberOption& one : numbers)
    std::fprintf(stderr, " %s (%d to %d)", one.name, one.least, one.most);
  std::fprintf(stderr, "\n");
  return std::nullopt;
}

// Each worker is a connection.
void AllowManyFiles() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const std::optional<terrace::LoadOptions> options =
      terrace::OptionsOf(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.has_value()) return 2;
  terrace::AllowManyFiles();
  testing::InitGoogleTest();
  terrace::Load(*options).Run();
  return 0;
}
