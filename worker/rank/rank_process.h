// The life of one rank, in three stages:
//
//   Prepare     program and its check, arenas, dataset, groups, a dry pass; then RANK_READY
//   Initialise  after Go: the newest checkpoint, given weights or random ones
//   Train       worker/train/trainer.h
//
// Prepare does everything that can be slow or fail for lack of something; no memory is asked for
// after it. Used only on the thread that created it; commands arrive on others.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/v1/program.pb.h"
#include "proto/v1/worker.pb.h"
#include "worker/checkpoint/directory_lock.h"
#include "worker/comm/communicator.h"
#include "worker/data/chat/template_process.h"
#include "worker/data/token_dataset.h"
#include "worker/device/backend.h"
#include "worker/device/driver_watch.h"
#include "worker/flight/flight_recorder.h"
#include "worker/rank/program_memory.h"
#include "worker/reporting/commands.h"
#include "worker/reporting/link_server.h"
#include "worker/reporting/reporter.h"
#include "worker/train/agreement.h"
#include "worker/train/checkpointer.h"
#include "worker/vm/vm.h"

namespace terrace {

class RankProcess {
 public:
  // `with_daemon`: serve the link, rendezvous through it and wait for Go; otherwise use
  // config.rendezvous_file and start at once. Borrows all.
  // `templates` renders conversations for a rank that may start no processes.
  RankProcess(const v1::RankConfig& config, bool with_daemon, Commands* commands,
              Reporter* reporter, const Clock* clock,
              std::unique_ptr<TemplateProcess> templates = nullptr)
      : config_(config),
        with_daemon_(with_daemon),
        commands_(commands),
        reporter_(reporter),
        clock_(clock),
        templates_(std::move(templates)) {}
  ~RankProcess();

  // True when it was stopped before the last step. The status carries its reason (failure.h).
  absl::StatusOr<bool> Run();

 private:
  absl::StatusOr<bool> RunStages();
  absl::Status StartLink();
  absl::Status Prepare();
  absl::Status OpenFlightRecorder();
  absl::Status PrepareBackend();
  absl::Status PrepareMemory();
  absl::Status OpenDataset();
  void TellSources() const;
  absl::Status ConnectGroups();
  absl::StatusOr<std::unique_ptr<Communicator>> ConnectAll(std::string name);
  GroupOptions CommonOptions() const;
  RendezvousStore* Store();
  HostLimits Limits() const;
  absl::Status PrepareVm();
  absl::Status CheckMemory();
  absl::StatusOr<int64_t> Initialise();  // the step to start from; sets training_
  absl::StatusOr<int64_t> InitialiseFresh();
  absl::StatusOr<int64_t> StepToResume();
  absl::StatusOr<int64_t> Resume(int64_t step);
  absl::Status PrepareCheckpoints();
  RankState State() const;
  int threads() const {
    return std::max(1, static_cast<int>(std::min(config_.threads(), program_->threads())));
  }

  const v1::RankConfig& config_;
  const bool with_daemon_;
  Commands* const commands_;
  Reporter* const reporter_;
  const Clock* const clock_;
  std::unique_ptr<TemplateProcess> templates_;

  std::unique_ptr<FlightWriter> flight_;  // before the link, whose threads write to it
  std::unique_ptr<LinkServer> link_;
  std::unique_ptr<RendezvousStore> file_store_;
  std::unique_ptr<v1::Program> program_;
  std::unique_ptr<Backend> backend_;
  std::optional<ProgramMemory> memory_;
  std::unique_ptr<TokenDataset> dataset_;
  std::vector<std::unique_ptr<Communicator>> groups_;  // by index in Program.groups
  std::unique_ptr<Communicator> all_ranks_;
  std::optional<Agreement> agreement_;
  std::unique_ptr<Communicator> checkpoint_group_;  // of all ranks
  std::optional<GroupPeers> checkpoint_peers_;
  std::optional<DirectoryLock> directory_lock_;
  std::optional<Checkpointer> checkpointer_;
  std::unique_ptr<Vm> vm_;
  TrainingState training_;  // of the checkpoint that it resumed from
  int64_t external_bytes_ = 0;
  std::optional<DriverWatch> driver_watch_;
};

}  // namespace terrace
