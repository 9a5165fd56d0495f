// SPDX-License-Identifier: Apache-2.0
#include "client/local_cluster.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "client/waiting.h"

namespace terrace {
namespace {

constexpr auto kStartTimeout = std::chrono::seconds(20);
// A worker measures its machine before it registers: within 45 s on a CPU, two minutes on GPUs.
constexpr auto kRegisterTimeout = std::chrono::seconds(180);
constexpr auto kEndTimeout = std::chrono::seconds(2);
constexpr auto kEarlierRunTimeout = std::chrono::seconds(4);
constexpr auto kEarlierRunPause = std::chrono::milliseconds(100);
constexpr auto kPollInterval = std::chrono::milliseconds(5);
constexpr size_t kKeptRuns = 10;
constexpr size_t kShownLogBytes = 2000;

std::string LogTail(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (text.size() > kShownLogBytes) text = "..." + text.substr(text.size() - kShownLogBytes);
  return text;
}

// Workers on one machine share its cores; a single one divides them itself.
int ThreadsOfRank(int given, int nodes, int devices) {
  if (given > 0 || nodes <= 1) return given;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / (nodes * devices));
}

absl::Status Ended(std::string_view what, const BackgroundProcess& process) {
  const auto code = static_cast<ExitCode>(process.exit_status());
  const absl::StatusCode kind = code == ExitCode::kResources ? absl::StatusCode::kResourceExhausted
                                : code == ExitCode::kInvalidInput
                                    ? absl::StatusCode::kInvalidArgument
                                    : absl::StatusCode::kInternal;
  return absl::Status(kind, absl::StrCat("the local ", std::string(what), " ended with status ",
                                         process.exit_status(), "; its log ", process.log_path(),
                                         " ends with:\n", LogTail(process.log_path())));
}

// What ends for want of room could not even log why.
absl::Status CheckRoom(const std::string& state_directory) {
  constexpr size_t kBytes = 16 << 10;
  const std::string probe = state_directory + "/room";
  const absl::Status written = WriteSyncedFile(probe, std::string(kBytes, '\n'));
  std::error_code ignored;
  std::filesystem::remove(probe, ignored);
  return written;
}

}  // namespace

absl::StatusOr<std::string> FreshStateDirectory() {
  namespace fs = std::filesystem;
  const char* xdg = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path base = xdg != nullptr && *xdg     ? fs::path(xdg)
                  : home != nullptr && *home ? fs::path(home) / ".local" / "state"
                                             : fs::temp_directory_path();
  base /= "terrace";
  std::error_code error;
  fs::create_directories(base, error);
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const fs::path fresh = base / absl::StrCat("run-", now.count(), "-", getpid());
  if (!fs::create_directory(fresh, error)) {
    return absl::PermissionDeniedError(absl::StrCat("cannot make ", fresh.string(), ": ",
                                                    error.message(),
                                                    "; name another folder with --state-dir"));
  }
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(base, error)) {
    if (entry.path().filename().string().rfind("run-", 0) == 0) runs.push_back(entry.path());
  }
  std::sort(runs.begin(), runs.end());
  for (size_t i = 0; i + kKeptRuns < runs.size(); ++i) fs::remove_all(runs[i], error);
  return fresh.string();
}

absl::StatusOr<std::string> DeviceOfLocalWorkers(int nodes, const std::string& device) {
  if (nodes <= 1) return device.empty() ? "auto" : device;
  if (device != "cuda") return "cpu";
  return absl::InvalidArgumentError(absl::StrCat(
      "resources.device: cuda with ", nodes,
      " nodes: `terrace run` starts every node on this machine, where each would take the same "
      "GPUs; use resources.nodes: 1 with devices_per_node: the number of GPUs, or start "
      "terrace-worker on each machine and use `terrace submit`"));
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    const std::string& state_directory) {
  auto cluster = std::unique_ptr<LocalCluster>(new LocalCluster(state_directory));
  std::error_code error;
  std::filesystem::create_directories(state_directory, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat("cannot make ", state_directory, ": ",
                                                    error.message(),
                                                    "; name another folder with --state-dir"));
  }
  RETURN_IF_ERROR(CheckRoom(state_directory));
  // What served a run in this folder that was killed ends a moment after it.
  const auto patience = std::chrono::steady_clock::now() + kEarlierRunTimeout;
  absl::StatusOr<int> port = cluster->StartCoordinator();
  while (!port.ok() && cluster->FoundItsStateInUse() &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(kEarlierRunPause);
    port = cluster->StartCoordinator();
  }
  RETURN_IF_ERROR(port.status());
  cluster->options_.coordinator = absl::StrCat("127.0.0.1:", *port);
  ASSIGN_OR_RETURN(cluster->connection_, Connection::Open(cluster->options_));
  return cluster;
}

absl::StatusOr<int> LocalCluster::StartCoordinator() {
  ASSIGN_OR_RETURN(const std::string program, SiblingProgram("terrace-coordinator"));
  const std::string port_file = state_directory_ + "/coordinator.port";
  std::error_code error;
  std::filesystem::remove(port_file, error);
  ASSIGN_OR_RETURN(BackgroundProcess process,
                   BackgroundProcess::Start(
                       program,
                       {"serve", "--listen", "127.0.0.1:0", "--port-file", port_file, "--state-dir",
                        state_directory_ + "/coordinator", "--exit-with-parent"},
                       state_directory_ + "/coordinator.log"));
  coordinator_.clear();
  coordinator_.push_back(std::move(process));
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (true) {
    RETURN_IF_ERROR(CheckAlive());
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::UnavailableError(
          absl::StrCat("the local coordinator did not start within 20 s; see ", state_directory_,
                       "/coordinator.log"));
    }
    std::ifstream in(port_file);
    if (int port = 0; in >> port && port != 0) return port;
    std::this_thread::sleep_for(kPollInterval);
  }
}

bool LocalCluster::FoundItsStateInUse() {
  return !coordinator_.empty() && !coordinator_.front().Running() &&
         coordinator_.front().exit_status() == ToInt(ExitCode::kUnavailable);
}

LocalCluster::~LocalCluster() {
  for (BackgroundProcess& worker : workers_) worker.RequestStop();
  workers_.clear();
}

absl::Status LocalCluster::AddWorkers(int nodes, int devices, int64_t device_memory_bytes,
                                      int threads_per_device, const std::string& device) {
  ASSIGN_OR_RETURN(const std::string kind, DeviceOfLocalWorkers(nodes, device));
  ASSIGN_OR_RETURN(const std::string program, SiblingProgram("terrace-worker"));
  const int threads = ThreadsOfRank(threads_per_device, nodes, devices);
  for (int node = 0; node < nodes; ++node) {
    const std::string name = absl::StrCat("local-", node);
    std::vector<std::string> arguments = {"--coordinator",
                                          address(),
                                          "--name",
                                          name,
                                          "--device",
                                          kind,
                                          "--devices",
                                          absl::StrCat(devices),
                                          "--state-dir",
                                          absl::StrCat(state_directory_, "/", name),
                                          "--metrics-listen",
                                          "127.0.0.1:0",
                                          "--stop-ranks-on-exit",
                                          "--exit-with-parent"};
    if (device_memory_bytes > 0) {
      arguments.insert(arguments.end(), {"--device-memory", absl::StrCat(device_memory_bytes)});
    }
    if (threads > 0)
      arguments.insert(arguments.end(), {"--threads-per-device", absl::StrCat(threads)});
    ASSIGN_OR_RETURN(BackgroundProcess worker,
                     BackgroundProcess::Start(program, arguments,
                                              absl::StrCat(state_directory_, "/", name, ".log")));
    workers_.push_back(std::move(worker));
  }
  const Waiting waiting("waiting for the local workers, which measure this machine first");
  const auto deadline = std::chrono::steady_clock::now() + kRegisterTimeout;
  while (true) {
    RETURN_IF_ERROR(CheckAlive());
    ASSIGN_OR_RETURN(const v1::ListNodesResponse registered, connection_->ListNodes());
    if (registered.nodes_size() >= static_cast<int>(workers_.size())) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::UnavailableError(absl::StrCat("the local workers did not register within ",
                                                 kRegisterTimeout.count(), " s; see the logs in ",
                                                 state_directory_));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

absl::Status LocalCluster::CheckAlive() {
  for (BackgroundProcess& process : coordinator_) {
    if (!process.Running()) return Ended("coordinator", process);
  }
  for (BackgroundProcess& process : workers_) {
    if (!process.Running()) return Ended("worker", process);
  }
  return absl::OkStatus();
}

// The kernel closes a process's connections, and unmaps its memory, before its parent can learn of
// the end: what was just seen to be gone may still count as running.
absl::Status LocalCluster::CauseOf(absl::Status failure) {
  const auto deadline = std::chrono::steady_clock::now() + kEndTimeout;
  while (failure.code() == absl::StatusCode::kUnavailable) {
    RETURN_IF_ERROR(CheckAlive());
    if (std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(kPollInterval);
  }
  return failure;
}

}  // namespace terrace
