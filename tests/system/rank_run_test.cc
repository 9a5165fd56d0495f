// terrace-rank as a process: from its configuration to its end, killed, stopped, starved of its
// files, and with a daemon that comes and goes. What is measured is measured from outside.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/model/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/grid.h"
#include "proto/program_hash.h"
#include "proto/v1/worker.pb.h"
#include "worker/link.h"

extern char** environ;

namespace terrace {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kVocabulary = 64;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool WaitUntil(const std::function<bool()>& condition, seconds limit = seconds(30)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

struct JobOptions {
  int64_t steps = 60;
  int64_t checkpoint_every = 10;
  uint32_t ranks = 1;  // data-parallel ones
  uint32_t stages = 1;
  double lr = 1e-3;
  double link_bytes_per_second = 0;  // 0: not slowed
};

// A tiny job in a folder of its own: data, program, one configuration a rank.
class Job {
 public:
  Job(const std::string& name, const JobOptions& options)
      : folder_(fs::path(testing::TempDir()) / ("rank_run_" + name)),
        link_bytes_per_second_(options.link_bytes_per_second) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    WriteTokens();
    FillSpec(options);
    Compile(options);
  }
  ~Job() { fs::remove_all(folder_); }

  v1::JobSpec& spec() { return spec_; }
  const v1::Program& program() const { return programs_.front(); }
  fs::path run_directory(uint32_t rank) const { return folder_ / absl::StrCat("rank", rank); }
  fs::path checkpoint(int64_t step) const {
    return fs::path(spec_.checkpoint().directory()) / absl::StrFormat("step-%08d", step);
  }
  fs::path folder() const { return folder_; }
  std::string log(uint32_t rank) const { return ReadAll(run_directory(rank) / "rank.log"); }

  // Returns the process id.
  pid_t Start(uint32_t rank = 0, bool daemon = false, const std::string& sha256 = "") {
    const fs::path directory = run_directory(rank);
    fs::create_directories(directory);
    fs::remove(directory / "exit.pb");
    v1::RankConfig config;
    config.set_job("tiny-1");
    config.set_epoch(3);
    config.set_rank(rank);
    config.set_ranks(program().ranks());
    config.set_local_ranks(program().ranks());
    const uint32_t stage = CoordinatesOf(program().grid(), rank).stage;
    config.set_program_sha256(sha256.empty() ? Sha256Hex(SerializeProgram(programs_[stage]))
                                             : sha256);
    *config.mutable_spec() = spec_;
    config.set_threads(1);
    config.set_program_path(ProgramPath(stage));
    config.set_run_directory(directory);
    config.set_rendezvous_file(folder_ / "rendezvous");
    config.set_trace_path(directory / "trace.json");
    config.set_trace_steps(2);
    config.set_link_bytes_per_second(link_bytes_per_second_);
    std::ofstream(directory / "config.pb", std::ios::binary) << config.SerializeAsString();
    return Spawn(directory, daemon);
  }

  static int WaitForExit(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int Run() { return WaitForExit(Start()); }

  v1::RankReport Outcome(uint32_t rank = 0) const {
    v1::RankReport report;
    EXPECT_TRUE(report.ParseFromString(ReadAll(run_directory(rank) / "exit.pb"))) << log(rank);
    return report;
  }

 private:
  void WriteTokens() const {
    std::vector<uint16_t> tokens(20'000);
    uint32_t state = 1;
    for (uint16_t& token : tokens)
      token = (state = state * 1664525 + 1013904223) >> 16 & (kVocabulary / 2 - 1);
    std::ofstream file(folder_ / "train.bin", std::ios::binary);
    file.write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * 2));
  }

  void FillSpec(const JobOptions& options) {
    spec_.set_name("tiny");
    spec_.mutable_model()->set_config_json(
        absl::StrCat(R"({"model_type":"gpt2","vocab_size":)", kVocabulary,
                     R"(,"n_positions":32,"n_embd":32,"n_layer":2,"n_head":2})"));
    spec_.mutable_model()->set_init("random");
    spec_.mutable_data()->add_train(folder_ / "train.bin");
    spec_.mutable_data()->set_tokenizer("bytes");
    spec_.mutable_data()->set_sequence_length(32);
    spec_.mutable_data()->set_validation_fraction(0.1);
    spec_.mutable_data()->set_cache(folder_ / "cache");
    v1::TrainSpec* train = spec_.mutable_train();
    train->set_steps(options.steps);
    train->set_global_batch(4);
    train->set_precision("fp32");
    train->set_seed(7);
    train->set_clip_grad_norm(1);
    train->set_eval_batches(2);
    train->set_eval_every_steps(20);
    train->set_log_every_steps(5);
    train->mutable_optimizer()->set_name("adamw");
    train->mutable_optimizer()->set_lr(options.lr);
    train->mutable_optimizer()->set_beta1(0.9);
    train->mutable_optimizer()->set_beta2(0.95);
    train->mutable_optimizer()->set_epsilon(1e-8);
    train->mutable_schedule()->set_name("cosine");
    spec_.mutable_checkpoint()->set_directory(folder_ / "checkpoints");
    spec_.mutable_checkpoint()->set_every_steps(options.checkpoint_every);
    spec_.mutable_checkpoint()->set_keep(3);
    spec_.mutable_checkpoint()->set_resume("auto");
  }

  void Compile(const JobOptions& options) {
    const auto config = ParseModelConfig(spec_.model().config_json(), 32);
    ASSERT_TRUE(config.ok()) << config.status();
    const Model model = BuildModel(*config);
    v1::Layout layout;
    layout.set_data_parallel(options.ranks);
    layout.set_tensor_parallel(1);
    layout.set_pipeline_parallel(options.stages);
    layout.set_schedule("1f1b");
    layout.set_context_parallel(1);
    layout.set_micro_batch(2);
    layout.set_micro_batches(2 / options.ranks);
    layout.set_bucket_bytes(64 << 10);
    layout.set_recompute("none");
    layout.set_precision("fp32");
    layout.set_ranks(options.ranks * options.stages);
    layout.set_nodes(1);
    layout.set_threads_per_rank(1);
    const auto programs = terrace::Compile({.spec = &spec_, .model = &model, .layout = layout});
    ASSERT_TRUE(programs.ok()) << programs.status();
    programs_ = *programs;
    for (size_t stage = 0; stage < programs_.size(); ++stage)
      std::ofstream(ProgramPath(stage), std::ios::binary) << SerializeProgram(programs_[stage]);
  }
  fs::path ProgramPath(size_t stage) const { return folder_ / absl::StrCat("stage", stage, ".pb"); }

  static pid_t Spawn(const fs::path& directory, bool daemon) {
    std::vector<std::string> arguments = {TERRACE_RANK_BINARY, "run", "--config",
                                          directory / "config.pb"};
    if (daemon) arguments.push_back("--daemon");
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const std::string log = directory / "rank.log";
    posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, pointers[0], &files, nullptr, pointers.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    return pid;
  }

  const fs::path folder_;
  const double link_bytes_per_second_;
  v1::JobSpec spec_;
  std::vector<v1::Program> programs_;  // by stage
};

void ExpectSameState(const fs::path& a, const fs::path& b) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string bytes = ReadAll(a / file);
    EXPECT_FALSE(bytes.empty()) << a / file;
    EXPECT_TRUE(bytes == ReadAll(b / file)) << a / file << " differs from " << b / file;
  }
}

TEST(RankRunTest, TrainsEvaluatesWritesItsCheckpointAndItsTrace) {
  Job job("end", {.steps = 60});
  ASSERT_EQ(job.Run(), 0) << job.log(0);
  const v1::RankReport outcome = job.Outcome();
  EXPECT_EQ(outcome.state(), v1::RANK_SUCCEEDED);
  EXPECT_FALSE(outcome.stopped_early());
  EXPECT_EQ(outcome.progress().step(), 60);
  EXPECT_EQ(outcome.progress().eval_step(), 60);
  EXPECT_EQ(outcome.progress().checkpoint(), job.checkpoint(60));
  EXPECT_LT(outcome.progress().loss(),
            4.0);  // log(64) = 4.16: it has learned which half of the vocabulary occurs
  const auto trace = nlohmann::json::parse(ReadAll(job.run_directory(0) / "trace.json"));
  EXPECT_GT(trace["traceEvents"].size(), 2u * job.program().sequences(0).instructions_size());
}

TEST(RankRunTest, KilledAtAnyInstantItResumesBitwise) {
  Job whole("whole", {.steps = 300}), killed("killed", {.steps = 300});
  ASSERT_EQ(whole.Run(), 0) << whole.log(0);
  for (const int64_t after : {20, 90, 150}) {
    const pid_t pid = killed.Start();
    ASSERT_TRUE(WaitUntil([&] {
      return fs::exists(killed.checkpoint(after)) ||
             fs::exists(killed.run_directory(0) / "exit.pb");
    })) << killed.log(0);
    kill(pid, SIGKILL);
    Job::WaitForExit(pid);
  }
  ASSERT_EQ(killed.Run(), 0) << killed.log(0);
  EXPECT_THAT(killed.log(0), HasSubstr("resumes after step"));
  ExpectSameState(whole.checkpoint(300), killed.checkpoint(300));
}

TEST(RankRunTest, SigtermFinishesTheStepWritesACheckpointAndResumesBitwise) {
  Job whole("whole2", {.steps = 400, .checkpoint_every = 0}),
      stopped("stopped", {.steps = 400, .checkpoint_every = 0});
  ASSERT_EQ(whole.Run(), 0);
  const pid_t pid = stopped.Start();
  ASSERT_TRUE(WaitUntil([&] { return stopped.log(0).find("step 20 of") != std::string::npos; }));
  kill(pid, SIGTERM);
  EXPECT_EQ(Job::WaitForExit(pid), 0);
  const v1::RankReport outcome = stopped.Outcome();
  EXPECT_EQ(outcome.state(), v1::RANK_SUCCEEDED);
  EXPECT_TRUE(outcome.stopped_early());
  EXPECT_EQ(outcome.progress().checkpoint_step(), outcome.progress().step());
  ASSERT_EQ(stopped.Run(), 0) << stopped.log(0);
  ExpectSameState(whole.checkpoint(400), stopped.checkpoint(400));
}

TEST(RankRunTest, TwoRanksEndTogetherAndALostOneIsNoticedQuickly) {
  Job job("two", {.steps = 100'000, .checkpoint_every = 0, .ranks = 2});
  const pid_t first = job.Start(0), second = job.Start(1);
  ASSERT_TRUE(WaitUntil([&] { return job.log(0).find("step 20 of") != std::string::npos; }))
      << job.log(0) << job.log(1);
  kill(second, SIGKILL);
  const auto killed_at = std::chrono::steady_clock::now();
  Job::WaitForExit(second);
  EXPECT_EQ(Job::WaitForExit(first), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, seconds(5));
  EXPECT_EQ(job.Outcome(0).reason(), v1::REASON_RANK_DIED);
}

// Two stages of two ranks. Rank 0 has no connection of a group to rank 3 but through the others.
TEST(RankRunTest, WhenARankOfAPipelineDiesAllEndWithinSecondsAndNameIt) {
  Job job("pipeline", {.steps = 100'000, .checkpoint_every = 0, .ranks = 2, .stages = 2});
  std::vector<pid_t> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) ranks.push_back(job.Start(rank));
  ASSERT_TRUE(WaitUntil([&] { return job.log(0).find("step 20 of") != std::string::npos; }))
      << job.log(0) << job.log(3);
  kill(ranks[3], SIGKILL);
  const auto killed_at = std::chrono::steady_clock::now();
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Job::WaitForExit(ranks[rank]), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, seconds(5));
  Job::WaitForExit(ranks[3]);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.Outcome(rank).reason(), v1::REASON_RANK_DIED);
    EXPECT_THAT(job.Outcome(rank).message(), HasSubstr("rank 3 is lost"));
  }
}

// Over two ranks each gradient crosses the link once a step.
TEST(RankRunTest, SlowedLinksTakeAsLongAsTheirBytesNeed) {
  constexpr double kBytesPerSecond = 1e6;
  Job job(
      "slow",
      {.steps = 4, .checkpoint_every = 0, .ranks = 2, .link_bytes_per_second = kBytesPerSecond});
  const pid_t first = job.Start(0), second = job.Start(1);
  ASSERT_EQ(Job::WaitForExit(first), 0) << job.log(0);
  ASSERT_EQ(Job::WaitForExit(second), 0) << job.log(1);
  int64_t gradient_bytes = 0;
  for (const v1::StateRange& range : job.program().state())
    if (range.kind() == v1::WEIGHT) gradient_bytes += range.rows() * range.columns() * 4;
  EXPECT_GT(gradient_bytes, 50'000);
  EXPECT_GT(job.Outcome().progress().step_seconds(), gradient_bytes / kBytesPerSecond);
}

TEST(RankRunTest, AProgramOfAnotherStageIsRefused) {
  Job job("stage", {.ranks = 1, .stages = 2});
  fs::copy_file(job.folder() / "stage1.pb", job.folder() / "stage0.pb",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(Job::WaitForExit(job.Start(0, false, Sha256Hex(ReadAll(job.folder() / "stage1.pb")))),
            1);
  EXPECT_THAT(job.Outcome().message(), HasSubstr("rank 0 is in stage 0, its program is that of"));
}

TEST(RankRunTest, AStopOfOneRankStopsAllAtTheSameStep) {
  Job job("stop_two", {.steps = 100'000, .checkpoint_every = 0, .ranks = 2});
  const pid_t first = job.Start(0), second = job.Start(1);
  ASSERT_TRUE(WaitUntil([&] { return job.log(0).find("step 20 of") != std::string::npos; }))
      << job.log(0) << job.log(1);
  kill(second, SIGTERM);
  EXPECT_EQ(Job::WaitForExit(first), 0) << job.log(0);
  EXPECT_EQ(Job::WaitForExit(second), 0) << job.log(1);
  EXPECT_EQ(job.Outcome(0).progress().step(), job.Outcome(1).progress().step());
  EXPECT_TRUE(fs::exists(job.checkpoint(job.Outcome(0).progress().step())));
}

// ---- with a daemon
// -------------------------------------------------------------------------------------------------

std::unique_ptr<LinkConnection> Dial(const Job& job) {
  std::unique_ptr<LinkConnection> connection;
  WaitUntil([&] {
    auto dialled = DialLink((job.run_directory(0) / "link.sock").string());
    if (dialled.ok()) connection = *std::move(dialled);
    return connection != nullptr;
  });
  return connection;
}

// The next report in `state`; everything else is dropped.
v1::RankReport AwaitState(LinkConnection* connection, v1::RankState state) {
  while (true) {
    const auto message = connection->Receive();
    if (!message.ok()) {
      ADD_FAILURE() << message.status();
      return {};
    }
    if (message->report().state() == state) return message->report();
  }
}

v1::LinkMessage Go(int64_t epoch) {
  v1::LinkMessage message;
  message.mutable_go()->set_job("tiny-1");
  message.mutable_go()->set_epoch(epoch);
  return message;
}

// The mapping behind the page that carries the arena's name (worker/memory/arena.h), in another
// process's maps.
int64_t MappedArenaBytes(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find("/memfd:terrace-arena-0") == std::string::npos || !std::getline(maps, line))
      continue;
    const size_t dash = line.find('-');
    return static_cast<int64_t>(std::stoull(line.substr(dash + 1), nullptr, 16) -
                                std::stoull(line, nullptr, 16));
  }
  return -1;
}

int64_t ResidentBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

TEST(RankRunTest, ReservesExactlyWhatTheProgramSaysAndLittleElse) {
  Job job("memory", {});
  const pid_t pid = job.Start(0, /*daemon=*/true);
  const auto daemon = Dial(job);
  ASSERT_NE(daemon, nullptr) << job.log(0);
  const v1::RankReport ready = AwaitState(daemon.get(), v1::RANK_READY);
  ASSERT_EQ(job.program().arenas_size(), 1);
  const int64_t predicted = job.program().arenas(0).bytes(), page = sysconf(_SC_PAGESIZE);
  EXPECT_EQ(MappedArenaBytes(pid), (predicted + page - 1) / page * page);
  EXPECT_EQ(ready.progress().arena_bytes(), predicted);
  EXPECT_LT(ResidentBytes(pid) - predicted, 200 << 20);
  EXPECT_GT(ready.progress().external_bytes(), 1 << 20);
  EXPECT_LT(ready.progress().external_bytes(), 200 << 20);
  kill(pid, SIGTERM);  // before Go: nothing to save
  EXPECT_EQ(Job::WaitForExit(pid), 0);
  EXPECT_TRUE(job.Outcome().stopped_early());
  EXPECT_FALSE(fs::exists(job.checkpoint(0)));
}

TEST(RankRunTest, WaitsForItsOwnGoAndOutlivesItsDaemon) {
  Job job("daemon", {.steps = 100'000, .checkpoint_every = 0});
  const pid_t pid = job.Start(0, /*daemon=*/true);
  auto daemon = Dial(job);
  ASSERT_NE(daemon, nullptr) << job.log(0);
  AwaitState(daemon.get(), v1::RANK_READY);
  ASSERT_TRUE(daemon->Send(Go(2)).ok());  // of an older epoch: not for this process
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_THAT(job.log(0), testing::Not(HasSubstr("RANK_RUNNING")));
  ASSERT_TRUE(daemon->Send(Go(3)).ok());
  AwaitState(daemon.get(), v1::RANK_RUNNING);
  daemon.reset();
  ASSERT_TRUE(WaitUntil([&] { return job.log(0).find("step 50 of") != std::string::npos; }))
      << job.log(0);
  daemon = Dial(job);
  ASSERT_NE(daemon, nullptr);
  EXPECT_GE(AwaitState(daemon.get(), v1::RANK_RUNNING).progress().step(), 1);
  v1::LinkMessage stop;
  stop.mutable_stop()->set_job("tiny-1");
  stop.mutable_stop()->set_epoch(3);
  stop.mutable_stop()->set_checkpoint(true);
  ASSERT_TRUE(daemon->Send(stop).ok());
  const v1::RankReport end = AwaitState(daemon.get(), v1::RANK_SUCCEEDED);
  EXPECT_TRUE(end.stopped_early());
  EXPECT_TRUE(fs::exists(end.progress().checkpoint()));
  EXPECT_EQ(Job::WaitForExit(pid), 0);
}

// ---- what goes wrong
// -------------------------------------------------------------------------------------------------

void ExpectFailure(Job* job, v1::Reason reason, const std::string& part_of_message) {
  EXPECT_EQ(job->Run(), 1);
  const v1::RankReport outcome = job->Outcome();
  EXPECT_EQ(outcome.state(), v1::RANK_FAILED);
  EXPECT_EQ(v1::Reason_Name(outcome.reason()), v1::Reason_Name(reason)) << outcome.message();
  EXPECT_THAT(outcome.message(), HasSubstr(part_of_message));
}

TEST(RankRunTest, MissingDataIsADataError) {
  Job job("no_data", {});
  fs::remove(job.folder() / "train.bin");
  ExpectFailure(&job, v1::REASON_DATA_ERROR, "train.bin");
}

TEST(RankRunTest, AProgramOfAnotherHashIsRefused) {
  Job job("hash", {});
  EXPECT_EQ(Job::WaitForExit(job.Start(0, false, std::string(64, '0'))), 1);
  EXPECT_THAT(job.Outcome().message(), HasSubstr("SHA-256"));
}

TEST(RankRunTest, MissingWeightsAreAWeightsError) {
  Job job("no_weights", {});
  job.spec().mutable_model()->set_init(job.folder() / "absent.safetensors");
  ExpectFailure(&job, v1::REASON_WEIGHTS_ERROR, "absent.safetensors");
}

TEST(RankRunTest, ALossThatIsNotFiniteFailsTheJobAfterTenSteps) {
  Job job("infinite", {.lr = 1e30});
  ExpectFailure(&job, v1::REASON_NON_FINITE_LOSS, "not finite");
}

TEST(RankRunTest, AFullDiskFailsTheJobAndKeepsTheLastCheckpoint) {
  Job job("full_disk", {.steps = 100, .checkpoint_every = 10});
  const fs::path disk = job.spec().checkpoint().directory();
  fs::create_directories(disk);
  // Room for one checkpoint and a half (three copies of 30 k parameters in f32 each).
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=640k") != 0)
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  ExpectFailure(&job, v1::REASON_CHECKPOINT_ERROR, "No space left");
  EXPECT_TRUE(fs::exists(job.checkpoint(10) / "manifest.json"));
  umount(disk.c_str());
}

}  // namespace
}  // namespace terrace
