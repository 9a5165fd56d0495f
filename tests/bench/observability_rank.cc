// What watching a job costs its steps, measured inside one run: a rank that a daemon starts instead
// of terrace-rank, and that executes its steps in turns of two kinds, four a round: one kind, twice
// the other, and the first again; which is the first is random.
//
//   watched  as every rank: the trainer's loop, with flight recorder, slices, times, metrics, log
//            lines and reports over the link, while the processes that watch it run
//   bare     the same VM, agreement included, without all that: a clock that stands still, nothing
//            recorded or reported, and those processes are stopped
//
// Both kinds train the same model on, one after the other, with the same threads over the same
// memory: two VMs differ by up to a percent for as long as they live, depending on where the system
// put their threads' memory. So the counters of streams lie in the recorder in both kinds of turns;
// they would be counted anyway. Written to OBSERVABILITY_OUT: seconds a
// step of both kinds in each round. Nothing of this can be switched on in a job: this program is
// not terrace-rank. tests/bench/observability.py starts it and judges.
//
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "kernels/cpu/registry.h"
#include "proto/program/grid.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/device/groups.h"
#include "worker/rank/environment.h"
#include "worker/rank/memory_report.h"
#include "worker/rank/program_file.h"
#include "worker/rank/program_memory.h"
#include "worker/reporting/commands.h"
#include "worker/reporting/link_server.h"
#include "worker/train/initial_state.h"
#include "worker/train/trainer.h"

namespace terrace {
namespace {

template <typename T>
T Checked(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status() << "\n";
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// May stand still: then nobody asks the system.
class SwitchedClock final : public Clock {
 public:
  void Stand(bool stands) { stands_.store(stands, std::memory_order_relaxed); }
  int64_t UnixMillis() const override { return Stands() ? 0 : clock_.UnixMillis(); }
  int64_t MonotonicNanos() const override { return Stands() ? 0 : clock_.MonotonicNanos(); }

 private:
  bool Stands() const { return stands_.load(std::memory_order_relaxed); }

  const SystemClock clock_;
  std::atomic<bool> stands_ = false;
};

// Those that watch: this rank's daemon, and others by OBSERVABILITY_STOP.
class Watchers {
 public:
  Watchers() {
    const char* others = std::getenv("OBSERVABILITY_STOP");
    if (others == nullptr) return;  // they run all the time
    pids_.push_back(getppid());
    for (const auto text : absl::StrSplit(others, ',', absl::SkipEmpty())) {
      int pid = 0;
      if (absl::SimpleAtoi(text, &pid)) pids_.push_back(pid);
    }
  }
  ~Watchers() { Signal(SIGCONT); }
  void Signal(int number) const {
    for (const pid_t pid : pids_) kill(pid, number);
  }

 private:
  std::vector<pid_t> pids_;
};

constexpr absl::Duration kSettling = absl::Milliseconds(80);

// As RankProcess prepares a rank, for both kinds of turns.
class Bench {
 public:
  Bench(v1::RankConfig config, Reporter* reporter, Commands* commands)
      : config_(std::move(config)), reporter_(*reporter), commands_(*commands) {
    program_ = Checked(ReadProgram(config_.program_path(), config_.program_sha256()));
    const int threads =
        std::max(1, static_cast<int>(std::min(config_.threads(), program_->threads())));
    const std::string& folder = config_.run_directory();
    flight_ = Checked(FlightWriter::Create(folder, config_.program_sha256(),
                                           static_cast<size_t>(program_->streams_size()), &clock_));
    memory_ = Checked(ProgramMemory::Reserve(*program_, threads));
    RecordMemory(*program_, *memory_, flight_.get());
    dataset_ = Checked(TokenDataset::Open(config_.spec().data(), config_.spec().train(),
                                          program_->rules().vocabulary(), {}));
    groups_ = Checked(ConnectGroups(*program_, config_.rank(), {}, nullptr));
    all_ranks_ = Checked(ConnectGloo({.name = "all_ranks", .rank = 0, .size = 1}, nullptr));
    agreement_.emplace(all_ranks_.get());
    if (const kernels::Status prepared = kernels::cpu::Prepare(threads); !prepared.ok())
      Check(absl::InternalError(prepared.message));
    vm_ = NewVm(threads);
    Check(FillInitialState(*program_, memory_->regions(), threads));
    Check(InitialiseWeights(
        config_.spec().train().seed(),
        {*program_, CoordinatesOf(program_->grid(), config_.rank()), memory_->regions()}, threads));
    flight_->Prepared(0);
    io_.emplace(program_->rules(), *dataset_, /*data_rank=*/0);
  }

  FlightWriter* flight() { return flight_.get(); }

  void MakeTrainer() {
    reporter_.SetFlight(flight_.get());
    trainer_.emplace(
        TrainerParts{.config = &config_,
                     .program = program_.get(),
                     .dataset = dataset_.get(),
                     .vm = vm_.get(),
                     .agreement = &*agreement_,
                     .checkpointer = nullptr,
                     .reporter = &reporter_,
                     .clock = &clock_,
                     .stop = &commands_.stop_flag(),
                     .flight = flight_.get(),
                     .metrics = MemoryMetrics({*program_, *memory_, /*external_bytes=*/0})});
  }

  // Seconds a step of a turn, which follows steps of its kind that nobody times: a signal wakes
  // each thread of those that watch, and what they missed they do at once.
  double Watched(int64_t steps) {
    for (const absl::Time end = absl::Now() + kSettling; absl::Now() < end;) RunWatched(1);
    const int64_t start_ns = clock_.MonotonicNanos();
    RunWatched(steps);
    return PerStep(start_ns, steps);
  }
  double Bare(int64_t steps) {
    vm_clock_.Stand(true);
    for (const absl::Time end = absl::Now() + kSettling; absl::Now() < end;) RunBare(1);
    const int64_t start_ns = clock_.MonotonicNanos();
    RunBare(steps);
    const double seconds = PerStep(start_ns, steps);
    vm_clock_.Stand(false);
    return seconds;
  }
  bool stopped() const { return commands_.stop_flag().load(); }

 private:
  void RunWatched(int64_t steps) {
    program_->mutable_rules()->set_steps(step_ + steps);  // where the trainer's loop ends
    Checked(trainer_->Run(step_));
    step_ += steps;
  }
  void RunBare(int64_t steps) {
    for (const int64_t end = step_ + steps; step_ < end; ++step_) {
      io_->SetStep(step_);
      Check(vm_->Run("train", &*io_));
      Checked(agreement_->Exchange({.stop = commands_.stop_flag().load()}));
    }
  }
  std::unique_ptr<Vm> NewVm(int threads) {
    auto vm = Checked(Vm::Create(*program_,
                                 {.threads = threads,
                                  .arenas = memory_->arenas(),
                                  .groups = groups_,
                                  .rank = config_.rank(),
                                  .flight = flight_.get()},
                                 &vm_clock_, nullptr));
    Check(vm->Warm());
    return vm;
  }
  double PerStep(int64_t start_ns, int64_t steps) const {
    return 1e-9 * static_cast<double>(clock_.MonotonicNanos() - start_ns) /
           static_cast<double>(steps);
  }

  const v1::RankConfig config_;
  Reporter& reporter_;
  Commands& commands_;
  const SystemClock clock_;
  SwitchedClock vm_clock_;
  std::unique_ptr<v1::Program> program_;
  std::unique_ptr<FlightWriter> flight_;
  std::optional<ProgramMemory> memory_;
  std::unique_ptr<TokenDataset> dataset_;
  std::vector<std::unique_ptr<Communicator>> groups_;
  std::unique_ptr<Communicator> all_ranks_;
  std::optional<Agreement> agreement_;
  std::unique_ptr<Vm> vm_;
  std::optional<TrainIo> io_;
  std::optional<Trainer> trainer_;
  int64_t step_ = 0;
};

// The link's own timer never fires; steps are sent when watched turns have lasted for kNewsWait, so
// that messages are as frequent in watched turns, and as long, as in a job.
void Measure(Bench* bench, LinkServer* link, std::FILE* out) {
  const int64_t rounds = Setting("OBSERVABILITY_ROUNDS", 100);
  const int64_t steps = Setting("OBSERVABILITY_STEPS", 4);
  const Watchers watchers;
  std::mt19937 random(1);
  bench->Watched(steps);
  bench->Bare(steps);
  std::fprintf(out, "watched,bare,watched_first\n");
  absl::Duration untold;
  for (int64_t round = 0; round < rounds && !bench->stopped(); ++round) {
    double watched = 0, bare = 0;
    const bool watched_first = random() % 2 == 0;
    // One kind on the outside, the other within: a machine that grows slower, or faster, as the
    // round goes on does so to both alike.
    for (const bool is_watched : {watched_first, !watched_first, !watched_first, watched_first}) {
      watchers.Signal(is_watched ? SIGCONT : SIGSTOP);
      const double seconds = is_watched ? bench->Watched(steps) : bench->Bare(steps);
      (is_watched ? watched : bare) += seconds / 2;
      if (is_watched) untold += kSettling + absl::Seconds(seconds * static_cast<double>(steps));
      if (untold >= kNewsWait) {
        link->Flush(absl::ZeroDuration());
        untold = absl::ZeroDuration();
      }
    }
    std::fprintf(out, "%.9f,%.9f,%d\n", watched, bare, watched_first ? 1 : 0);
  }
}

int Run(const std::string& config_path, char** argv) {
  v1::RankConfig config = Checked(ReadRankConfig(config_path));
  RestartWithEnvironment(argv, std::max<int>(1, config.threads()), /*share_cores=*/false);
  log::Init("rank 0", log::Level::kInfo);
  signal(SIGPIPE, SIG_IGN);
  const char* path = std::getenv("OBSERVABILITY_OUT");
  std::FILE* out = path == nullptr ? nullptr : std::fopen(path, "w");
  if (out == nullptr || config.ranks() != 1) {
    std::cerr << "needs OBSERVABILITY_OUT, a file that can be written, and a job of one rank\n";
    return 2;
  }
  // A trainer that ends a turn takes it for the end of the job.
  config.mutable_spec()->mutable_train()->set_eval_batches(0);
  const SystemClock clock;
  Commands commands;
  Reporter reporter(config, &clock);
  FlightWriter* flight = nullptr;  // there before the first step
  auto link = Checked(LinkServer::Start({.path = config.run_directory() + "/link.sock",
                                         .job = config.job(),
                                         .epoch = config.epoch(),
                                         .rank = config.rank(),
                                         .on_go = [&commands] { commands.Go(); },
                                         .on_stop =
                                             [&commands](bool) {
                                               if (!commands.Stop()) _exit(0);
                                             },
                                         .on_sent =
                                             [&flight](const v1::LinkMessage& message) {
                                               const int64_t step = LastStep(message);
                                               if (step > 0) flight->SetToldStep(step);
                                             },
                                         .news_wait = absl::InfiniteDuration()}));
  reporter.SetLink(link.get());
  reporter.SetState(v1::RANK_PREPARING);
  Bench bench(config, &reporter, &commands);
  flight = bench.flight();
  reporter.SetState(v1::RANK_READY);
  commands.WaitForGo();
  if (!commands.BeginTraining()) return 0;
  reporter.SetState(v1::RANK_RUNNING);
  bench.MakeTrainer();
  Measure(&bench, link.get(), out);
  std::fclose(out);
  reporter.End(absl::OkStatus(), /*stopped_early=*/false, 0);
  _exit(0);  // as terrace-rank does
}

}  // namespace
}  // namespace terrace

// Whatever else the daemon asks of terrace-rank, that answers: OBSERVABILITY_RANK.
int main(int argc, char** argv) {
  if (argc >= 4 && std::strcmp(argv[1], "run") == 0 && std::strcmp(argv[2], "--config") == 0)
    return terrace::Run(argv[3], argv);
  const char* rank = std::getenv("OBSERVABILITY_RANK");
  if (rank == nullptr) {
    std::cerr << "started by tests/bench/observability.py\n";
    return 2;
  }
  execv(rank, argv);
  std::perror(rank);
  return 1;
}
