// SPDX-License-Identifier: Apache-2.0
#include "tests/system/rank_job.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/model/config.h"
#include "gtest/gtest.h"
#include "proto/program/grid.h"
#include "proto/program/program_hash.h"

extern char** environ;

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr int kVocabulary = 64;

pid_t Spawn(const fs::path& directory, bool daemon) {
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

}  // namespace

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool WaitUntil(const std::function<bool()>& condition, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

RankJob::RankJob(const std::string& name, const RankJobOptions& options)
    : folder_(fs::path(testing::TempDir()) / ("rank_run_" + name)),
      link_bytes_per_second_(options.link_bytes_per_second) {
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  WriteTokens();
  FillSpec(options);
  Compile(options);
}

RankJob::~RankJob() { fs::remove_all(folder_); }

fs::path RankJob::run_directory(uint32_t rank) const {
  return folder_ / absl::StrCat("rank", rank);
}

fs::path RankJob::checkpoint(int64_t step) const {
  return fs::path(spec_.checkpoint().directory()) / absl::StrFormat("step-%08d", step);
}

std::string RankJob::log(uint32_t rank) const { return ReadAll(run_directory(rank) / "rank.log"); }

fs::path RankJob::ProgramPath(size_t stage) const {
  return folder_ / absl::StrCat("stage", stage, ".pb");
}

pid_t RankJob::Start(uint32_t rank, bool daemon, const std::string& sha256) {
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

int RankJob::WaitForExit(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

v1::RankReport RankJob::Outcome(uint32_t rank) const {
  v1::RankReport report;
  EXPECT_TRUE(report.ParseFromString(ReadAll(run_directory(rank) / "exit.pb"))) << log(rank);
  return report;
}

void RankJob::WriteTokens() const {
  std::vector<uint16_t> tokens(20'000);
  uint32_t state = 1;
  for (uint16_t& token : tokens)
    token = (state = state * 1664525 + 1013904223) >> 16 & (kVocabulary / 2 - 1);
  std::ofstream file(folder_ / "train.bin", std::ios::binary);
  file.write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(tokens.size() * 2));
}

void RankJob::FillSpec(const RankJobOptions& options) {
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

void RankJob::Compile(const RankJobOptions& options) {
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

void ExpectSameState(const fs::path& a, const fs::path& b) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string bytes = ReadAll(a / file);
    EXPECT_FALSE(bytes.empty()) << a / file;
    EXPECT_TRUE(bytes == ReadAll(b / file)) << a / file << " differs from " << b / file;
  }
}

}  // namespace terrace
