// A program that was changed on its way to a rank, its hash with it: the rank's own check refuses
// to execute it, and says where it is wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/program/program_hash.h"
#include "proto/v1/worker.pb.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/mutate.h"

extern char** environ;

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

// The first stage of two, each of two data-parallel pairs of tensor-parallel ranks.
v1::Program FirstStage() {
  return CompileTiny(
      {.data_parallel = 2, .micro_batches = 2, .tensor_parallel = 2, .pipeline_parallel = 2});
}

// What a rank that is started on the program says at its end.
class Rank {
 public:
  Rank() : folder_(fs::path(testing::TempDir()) / absl::StrCat("tamper-", getpid())) {
    fs::create_directories(folder_);
  }
  ~Rank() { fs::remove_all(folder_); }

  std::string Refuse(const v1::Program& program) const {
    const std::string bytes = SerializeProgram(program);
    std::ofstream(folder_ / "program.pb", std::ios::binary) << bytes;
    v1::RankConfig config;
    config.set_job("tampered-1");
    config.set_epoch(1);
    config.set_ranks(program.ranks());
    config.set_local_ranks(program.ranks());
    config.set_threads(static_cast<int>(program.threads()));
    config.set_program_sha256(Sha256Hex(bytes));
    config.set_program_path(folder_ / "program.pb");
    config.set_run_directory(folder_);
    config.mutable_spec()->mutable_data()->add_train(folder_ / "no-data.bin");
    config.mutable_spec()->mutable_data()->set_sequence_length(12);
    std::ofstream(folder_ / "config.pb", std::ios::binary) << config.SerializeAsString();
    EXPECT_EQ(Run(), 1);
    return Outcome().message();
  }

 private:
  int Run() const {
    const std::string path = folder_ / "config.pb";
    std::vector<std::string> arguments = {TERRACE_RANK_BINARY, "run", "--config", path};
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const std::string log = folder_ / "rank.log";
    posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, pointers[0], &files, nullptr, pointers.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  v1::RankReport Outcome() const {
    std::ifstream file(folder_ / "exit.pb", std::ios::binary);
    v1::RankReport report;
    EXPECT_TRUE(report.ParseFromString(std::string(std::istreambuf_iterator<char>(file), {})));
    return report;
  }

  const fs::path folder_;
};

v1::Buffer* BufferNamed(const std::string& name, v1::Program* program) {
  for (v1::Buffer& buffer : *program->mutable_buffers()) {
    if (buffer.name() == name) return &buffer;
  }
  ADD_FAILURE() << "no buffer " << name;
  return program->mutable_buffers(0);
}

v1::Sequence* Train(v1::Program* program) { return program->mutable_sequences(0); }

int FindInstruction(const v1::Sequence& sequence,
                    const std::function<bool(const v1::Instruction&)>& wanted) {
  for (const v1::Instruction& instruction : sequence.instructions()) {
    if (wanted(instruction)) return static_cast<int>(instruction.id());
  }
  ADD_FAILURE() << "no such instruction";
  return 0;
}

TEST(TamperTest, WhatWasNotChangedIsAccepted) {
  // It gets as far as the data, which is not there.
  EXPECT_THAT(Rank().Refuse(FirstStage()), HasSubstr("no-data.bin"));
}

TEST(TamperTest, AnOffsetIntoOtherMemoryIsRefused) {
  v1::Program program = FirstStage();
  v1::Buffer* weights = BufferNamed("weights.layer0", &program);
  weights->set_offset(weights->offset() ^ 256);
  EXPECT_THAT(Rank().Refuse(program), AllOf(HasSubstr("program.pb"), HasSubstr("weights.layer0")));
}

TEST(TamperTest, AnOffsetOutsideTheArenaIsRefused) {
  v1::Program program = FirstStage();
  v1::Buffer* weights = BufferNamed("weights.layer0", &program);
  weights->set_offset(weights->offset() | int64_t{1} << 40);
  EXPECT_THAT(Rank().Refuse(program), AllOf(HasSubstr("weights.layer0"), HasSubstr("arena")));
}

TEST(TamperTest, AWaitThatIsGoneIsRefused) {
  v1::Program program = FirstStage();
  v1::Sequence* train = Train(&program);
  // The first computation that needs what another stage or rank sends.
  const int reader = FindInstruction(*train, [](const v1::Instruction& instruction) {
    return instruction.has_compute() && !instruction.waits().empty() &&
           instruction.phase() == v1::BACKWARD;
  });
  train->mutable_instructions(reader)->clear_waits();
  EXPECT_THAT(Rank().Refuse(program), AllOf(HasSubstr("program.pb"), HasSubstr("train")));
}

TEST(TamperTest, AReductionThatIsGoneIsRefused) {
  v1::Program program = FirstStage();
  uint32_t data = 0;
  while (program.groups(static_cast<int>(data)).name() != "data") ++data;
  RemoveInstruction(FindInstruction(*Train(&program),
                                    [&](const v1::Instruction& instruction) {
                                      return instruction.collective().kind() == v1::ALL_REDUCE &&
                                             instruction.collective().group() == data;
                                    }),
                    Train(&program));
  EXPECT_THAT(Rank().Refuse(program), HasSubstr("was not summed over"));
}

TEST(TamperTest, AProgramThatIsCutShortIsRefused) {
  v1::Program program = FirstStage();
  v1::Sequence* train = Train(&program);
  RemoveInstruction(train->instructions_size() - 2, train);  // the last update of weights
  EXPECT_THAT(Rank().Refuse(program), HasSubstr("program.pb"));
}

}  // namespace
}  // namespace terrace
