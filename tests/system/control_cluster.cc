// SPDX-License-Identifier: Apache-2.0
#include "tests/system/control_cluster.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr auto kPoll = std::chrono::milliseconds(5);

std::string Binary(const char* name) { return absl::StrCat(TERRACE_BIN_FOLDER, "/", name); }

}  // namespace

bool WaitUntil(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

bool IsAlive(pid_t pid) {
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string number, name, state;
  return (stat >> number >> name >> state) && state != "Z";
}

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  dup2(file, 1);
  dup2(file, 2);
  execv(arguments[0], arguments.data());
  _exit(127);
}

ChildProcess::~ChildProcess() { End(SIGKILL); }

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

int ChildProcess::Wait() {
  if (pid_ > 0) {
    int status = 0;
    waitpid(pid_, &status, 0);
    status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    pid_ = -1;
  }
  return status_;
}

int ChildProcess::End(int signal) {
  Signal(signal);
  return Wait();
}

ControlCluster::ControlCluster() {
  std::string folder = testing::TempDir() + "control_XXXXXX";
  folder_ = mkdtemp(folder.data());
}

ControlCluster::~ControlCluster() {
  coordinator_.reset();
  workers_.clear();
  // Ranks outlive their daemons.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    pid_t pid = 0;
    if (entry.path().filename() != "pid" || !(std::ifstream(entry.path()) >> pid)) continue;
    std::ifstream command(absl::StrCat("/proc/", pid, "/cmdline"), std::ios::binary);
    const std::string line((std::istreambuf_iterator<char>(command)),
                           std::istreambuf_iterator<char>());
    if (line.find(folder_) != std::string::npos) kill(pid, SIGKILL);
  }
  std::filesystem::remove_all(folder_);
}

void ControlCluster::StartCoordinator(const std::vector<std::string>& more) {
  const std::string port_file = folder_ + "/port";
  std::filesystem::remove(port_file);
  std::vector<std::string> command = {Binary("terrace-coordinator"),
                                      "serve",
                                      "--listen",
                                      absl::StrCat("127.0.0.1:", port_),
                                      "--port-file",
                                      port_file,
                                      "--state-dir",
                                      folder_ + "/coordinator"};
  command.insert(command.end(), more.begin(), more.end());
  coordinator_ = std::make_unique<ChildProcess>(command, folder_ + "/coordinator.log");
  ASSERT_TRUE(WaitUntil([&] { return static_cast<bool>(std::ifstream(port_file) >> port_); }));
  stub_ = v1::JobService::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials()));
}

void ControlCluster::StartWorker(const std::string& name, int devices,
                                 const std::vector<std::string>& more) {
  std::vector<std::string> command = {Binary("terrace-worker"),
                                      "--coordinator",
                                      absl::StrCat("127.0.0.1:", port_),
                                      "--name",
                                      name,
                                      "--devices",
                                      absl::StrCat(devices),
                                      "--threads-per-device",
                                      "1",
                                      "--state-dir",
                                      folder_ + "/" + name,
                                      "--rank-binary",
                                      TERRACE_FAKE_RANK};
  command.insert(command.end(), more.begin(), more.end());
  workers_[name] = std::make_unique<ChildProcess>(command, folder_ + "/" + name + ".log");
}

std::string ControlCluster::Spec(const std::string& name, const std::string& words,
                                 int devices) const {
  return absl::StrCat("name: ", name, R"(
model:
  config: {model_type: gpt2, vocab_size: 256, n_positions: 64, n_embd: 32, n_layer: 1, n_head: 4,
           activation_function: gelu_new, layer_norm_epsilon: 1.0e-5, initializer_range: 0.02}
data: {train: [text.txt], tokenizer: bytes, sequence_length: 32}
train: {steps: 1000, global_batch: 4}
checkpoint: {directory: )",
                      name, R"(-checkpoints}
resources: {threads_per_device: 1, devices_per_node: )",
                      devices, "}\nmax_restarts: 2\n# ", words, "\n");
}

std::string ControlCluster::Submit(const std::string& name, const std::string& words, int devices) {
  v1::SubmitRequest request;
  request.set_yaml(Spec(name, words, devices));
  request.set_base_directory(folder_);
  v1::SubmitResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->Submit(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job().id();
}

v1::Job ControlCluster::Get(const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  v1::GetJobResponse response;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  stub_->Get(&context, request, &response);
  return response.job();
}

v1::Job ControlCluster::WaitFor(const std::string& id,
                                const std::function<bool(const v1::Job&)>& holds) {
  v1::Job job;
  EXPECT_TRUE(WaitUntil([&] {
    job = Get(id);
    return holds(job);
  })) << v1::JobState_Name(job.state())
      << " epoch " << job.epoch() << ", " << v1::Reason_Name(job.reason()) << ": " << job.message();
  return job;
}

v1::Job ControlCluster::WaitForState(const std::string& id, v1::JobState state) {
  return WaitFor(id, [state](const v1::Job& job) { return job.state() == state; });
}

pid_t ControlCluster::RankPid(const std::string& worker, const std::string& id, int64_t epoch,
                              uint32_t rank) const {
  pid_t pid = 0;
  std::ifstream(absl::StrCat(folder_, "/", worker, "/runs/", id, "/", epoch, "/", rank, "/pid")) >>
      pid;
  return pid;
}

std::vector<v1::JobEvent> ControlCluster::WatchToEnd(const std::string& id, int64_t after) {
  v1::WatchJobRequest request;
  request.set_id(id);
  request.set_after_sequence(after);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  auto reader = stub_->Watch(&context, request);
  std::vector<v1::JobEvent> events;
  for (v1::JobEvent event; reader->Read(&event);) events.push_back(event);
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return events;
}

}  // namespace terrace
