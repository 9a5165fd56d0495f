// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/rank_process.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/reworded.h"
#include "base/status_macros.h"
#include "kernels/cpu/registry.h"
#include "proto/program/caching_need.h"
#include "proto/program/grid.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/directory_lock.h"
#include "worker/comm/file_rendezvous.h"
#include "worker/device/groups.h"
#include "worker/memory/host_share.h"
#include "worker/rank/memory_report.h"
#include "worker/rank/program_file.h"
#include "worker/reporting/failure.h"
#include "worker/train/checkpoint_tokenizer.h"
#include "worker/train/initial_state.h"
#include "worker/train/resume_point.h"
#include "worker/train/trainer.h"

namespace terrace {
namespace {

// Of one call: longer than the slowest peer computes before it comes to that call. A step, launched
// as one graph, may take longer (GraphCollectives::BeginRun). A peer that dies is noticed at once,
// without it: its daemon ends the ranks of the job.
constexpr int64_t kGroupTimeoutMs = 600'000;
// Where somebody watches over the ranks it is theirs to say when a job that hangs has ended: ranks
// give up only later.
constexpr int64_t kAfterWatchdogMs = 60'000;
constexpr int64_t kLeftAloneMs = int64_t{30} * 24 * 3600 * 1000;
// A rank of an earlier epoch is killed before this one starts, but may take a moment to die.
constexpr LockPatience kDirectoryLockPatience = {.ms = 10'000, .earlier_ms = 60'000};

// The program is that of another stage or of another job when this fails.
absl::Status CheckPlace(const v1::Program& program, const v1::RankConfig& config) {
  if (config.ranks() != program.ranks() || RanksOf(program.grid()) != program.ranks() ||
      config.rank() >= program.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job has rank ", config.rank(), " of ", config.ranks(), ", its program is for ",
        program.ranks(), " ranks on a grid of ", RanksOf(program.grid())));
  }
  const Coordinates place = CoordinatesOf(program.grid(), config.rank());
  if (program.stage() == place.stage) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", config.rank(), " is in stage ",
                                                 place.stage, ", its program is that of stage ",
                                                 program.stage()));
}

// A drive that fails may be another one after a restart; a folder that is wrong stays so.
v1::Reason ReasonOfMemory(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return v1::REASON_DOES_NOT_FIT;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kDeadlineExceeded:
      return v1::REASON_RANK_DIED;
    default:
      return v1::REASON_INVALID_SPEC;
  }
}

int64_t CallTimeoutMs(const v1::WatchdogSpec& watchdog) {
  if (watchdog.on_hang() == "tell") return kLeftAloneMs;
  return std::max(kGroupTimeoutMs, watchdog.timeout_seconds() * 1000 + kAfterWatchdogMs);
}

// A job that cannot save is told so before it trains, not after.
absl::Status CheckCheckpointDirectory(const std::string& directory, uint32_t rank) {
  const std::string probe = absl::StrCat(directory, "/.tmp-writable-", rank, "-", ::getpid());
  absl::Status status = MakeDirectories(directory);
  if (status.ok()) status = WriteSyncedFile(probe, "");
  RemoveAll(probe).IgnoreError();  // it may not be there
  if (status.ok()) return status;
  return WithReason(
      absl::Status(status.code(), absl::StrCat("checkpoint.directory: ", status.message(),
                                               "; name a folder that this worker can write")),
      v1::REASON_CHECKPOINT_ERROR);
}

}  // namespace

// Nothing may arrive at commands or the reporter through a link that is half gone.
RankProcess::~RankProcess() {
  reporter_->SetLink(nullptr);
  reporter_->SetFlight(nullptr);
}

absl::StatusOr<bool> RankProcess::Run() {
  absl::StatusOr<bool> stopped_early = RunStages();
  if (stopped_early.ok() || program_ == nullptr) return stopped_early;
  return ShareCause(config_.rank(), stopped_early.status(), Store());
}

absl::StatusOr<bool> RankProcess::RunStages() {
  if (with_daemon_) RETURN_IF_ERROR(StartLink());
  reporter_->SetState(v1::RANK_PREPARING);
  RETURN_IF_ERROR(Prepare());
  reporter_->SetState(v1::RANK_READY);
  if (with_daemon_) commands_->WaitForGo();
  if (!commands_->BeginTraining()) return true;
  ASSIGN_OR_RETURN(const int64_t start, Initialise());
  reporter_->SetState(v1::RANK_RUNNING);
  Trainer trainer(
      {.config = &config_,
       .program = program_.get(),
       .dataset = dataset_.get(),
       .vm = vm_.get(),
       .agreement = &*agreement_,
       .checkpointer = checkpointer_ ? &*checkpointer_ : nullptr,
       .reporter = reporter_,
       .clock = clock_,
       .stop = &commands_->stop_flag(),
       .flight = flight_.get(),
       .driver_watch = &*driver_watch_,
       .metrics = MemoryMetrics({*program_, *memory_, external_bytes_, vm_->graph_bytes()})});
  return trainer.Run(start, training_);
}

absl::Status RankProcess::StartLink() {
  LinkServer::Options options;
  options.path = config_.run_directory() + "/link.sock";
  options.job = config_.job();
  options.epoch = config_.epoch();
  options.rank = config_.rank();
  options.on_go = [this] { commands_->Go(); };
  options.on_stop = [this](bool checkpoint) {
    if (checkpoint && commands_->Stop()) return;
    // Asked to die, or nothing has been trained yet: there is nothing to save.
    reporter_->End(checkpoint ? absl::OkStatus()
                              : WithReason(absl::CancelledError("killed on request"),
                                           v1::REASON_CANCELLED_BY_USER),
                   checkpoint, checkpoint ? 0 : 1);
    ::_exit(checkpoint ? 0 : 1);
  };
  options.on_sent = [this](const v1::LinkMessage& message) {
    const int64_t step = LastStep(message);
    if (step > 0) flight_->SetToldStep(step);  // there were none before there was a recorder
  };
  ASSIGN_OR_RETURN(link_, LinkServer::Start(std::move(options)));
  reporter_->SetLink(link_.get());
  return absl::OkStatus();
}

absl::Status RankProcess::Prepare() {
  ASSIGN_OR_RETURN(program_, ReadProgram(config_.program_path(), config_.program_sha256()));
  RETURN_IF_ERROR(CheckPlace(*program_, config_));
  RETURN_IF_ERROR(PrepareBackend());
  RETURN_IF_ERROR(PrepareMemory());
  RETURN_IF_ERROR(OpenDataset());
  RETURN_IF_ERROR(ConnectGroups());
  RETURN_IF_ERROR(PrepareCheckpoints());
  RETURN_IF_ERROR(PrepareVm());
  return CheckMemory();
}

// Training does not depend on it: where it cannot be kept, a verdict on this rank's death says
// less.
absl::Status RankProcess::OpenFlightRecorder() {
  const auto create = [this](const std::string& directory) {
    return FlightWriter::Create(directory, config_.program_sha256(),
                                static_cast<size_t>(program_->streams_size()), clock_);
  };
  auto flight = create(config_.run_directory());
  if (!flight.ok()) {
    log::Warn("keeps no flight record: ", flight.status().message());
    flight = create("");
  }
  ASSIGN_OR_RETURN(flight_, std::move(flight));
  reporter_->SetFlight(flight_.get());
  return absl::OkStatus();
}

// The ranks of a node look at the same free memory, before any of them has taken its part.
HostLimits RankProcess::Limits() const {
  HostLimits limits = ReadHostLimits();
  if (!with_daemon_ || config_.local_ranks() <= 1) return limits;
  // Its daemon has put them side by side.
  auto left = TakeHostShare(absl::StrCat(config_.run_directory(), "/../host_memory"),
                            RamBytes(*program_), limits);
  if (left.ok()) return *std::move(left);
  log::Warn("counts its own memory only: ", left.status().message());
  return limits;
}

absl::Status RankProcess::PrepareBackend() {
  auto backend = OpenBackend(program_->device(), static_cast<int>(config_.device()));
  if (!backend.ok()) return WithReason(backend.status(), v1::REASON_NO_MATCHING_WORKER);
  backend_ = *std::move(backend);
  if (!backend_->device_is_host()) log::Info("computes on ", backend_->description());
  return absl::OkStatus();
}

absl::Status RankProcess::PrepareMemory() {
  RETURN_IF_ERROR(OpenFlightRecorder());
  auto memory = ProgramMemory::Reserve(
      *program_, {.threads = threads(),
                  .nvme = config_.spec().resources().nvme(),
                  .name = absl::StrCat(config_.job(), "-rank-", config_.rank()),
                  .limits = Limits(),
                  .backend = backend_.get(),
                  .shareable = program_->ranks() > 1});
  if (!memory.ok()) return WithReason(memory.status(), ReasonOfMemory(memory.status()));
  memory_ = *std::move(memory);
  RecordMemory(*program_, *memory_, flight_.get());
  return absl::OkStatus();
}

// All ranks write; one of them keeps other jobs away.
absl::Status RankProcess::PrepareCheckpoints() {
  const std::string& directory = config_.spec().checkpoint().directory();
  if (directory.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckCheckpointDirectory(directory, config_.rank()));
  if (config_.rank() == 0) {
    auto lock =
        DirectoryLock::Take(directory, {config_.job(), config_.epoch()}, kDirectoryLockPatience);
    if (absl::IsUnavailable(lock.status()))  // the next try may find the folder free
      return WithReason(lock.status(), v1::REASON_RANK_DIED);
    if (!lock.ok()) return WithReason(lock.status(), v1::REASON_CHECKPOINT_ERROR);
    directory_lock_ = *std::move(lock);
  }
  // Rank 0 writes the files that name them.
  Checkpointer::Named named;
  if (config_.rank() == 0)
    named = {SpecialTokensOfJob(config_.spec(), *dataset_), dataset_->sums()};
  checkpointer_.emplace(config_.spec(), State(), &*checkpoint_peers_, clock_, std::move(named));
  return absl::OkStatus();
}

RankState RankProcess::State() const {
  return {*program_, CoordinatesOf(program_->grid(), config_.rank()), memory_->regions()};
}

absl::Status RankProcess::OpenDataset() {
  bool told = false;
  auto dataset = TokenDataset::Open(
      config_.spec().data(), config_.spec().train(), program_->rules().vocabulary(),
      [this, &told](std::string_view text, double fraction) {
        told = true;
        reporter_->SetActivity(text, fraction);
      },
      config_.spec().model().config_json(), templates_.get());
  templates_.reset();
  if (!dataset.ok()) return WithReason(dataset.status(), v1::REASON_DATA_ERROR);
  dataset_ = *std::move(dataset);
  if (told) reporter_->SetActivity("", 1);
  if (config_.rank() == 0) TellSources();
  return absl::OkStatus();
}

void RankProcess::TellSources() const {
  const v1::TrainSpec& train = config_.spec().train();
  const std::vector<SourceView> sources = dataset_->Sources(train.steps(), train.global_batch());
  for (const SourceView& source : sources) {
    log::Info(absl::StrFormat(
        "data: %.1f %% of the samples from %s: %.2f epochs of %d samples in %d steps",
        100 * source.weight, source.name, source.epochs(), source.samples, train.steps()));
  }
  for (const std::string& text :
       TellNotHeldOut(sources, config_.spec().data().validation_fraction()))
    reporter_->Warn(text);
}

// What all groups of this rank have in common.
GroupOptions RankProcess::CommonOptions() const {
  // Ranks of one node stay on it.
  const bool one_node = config_.local_ranks() == 0 || config_.local_ranks() == config_.ranks();
  return {.interface_address = one_node ? "127.0.0.1" : config_.data_address(),
          .timeout_ms = kGroupTimeoutMs,
          .call_timeout_ms = with_daemon_ ? CallTimeoutMs(config_.spec().watchdog()) : 0,
          .link = {config_.link_bytes_per_second(), config_.link_latency_seconds()}};
}

RendezvousStore* RankProcess::Store() {
  if (with_daemon_) return link_.get();
  if (file_store_ == nullptr && config_.ranks() > 1)
    file_store_ = std::make_unique<FileRendezvous>(config_.rendezvous_file());
  return file_store_.get();
}

// Of all ranks of the job.
absl::StatusOr<std::unique_ptr<Communicator>> RankProcess::ConnectAll(std::string name) {
  GroupOptions options = CommonOptions();
  options.name = std::move(name);
  options.rank = static_cast<int>(config_.rank());
  options.size = static_cast<int>(config_.ranks());
  return ConnectGloo(options, Store());
}

absl::Status RankProcess::ConnectGroups() {
  RETURN_IF_ERROR(backend_->MeetRanks(config_.rank(), config_.ranks(), Store(), kGroupTimeoutMs));
  ASSIGN_OR_RETURN(groups_, terrace::ConnectGroups(*program_, config_.rank(), CommonOptions(),
                                                   Store(), backend_.get()));
  ASSIGN_OR_RETURN(all_ranks_, ConnectAll("all_ranks"));
  agreement_.emplace(all_ranks_.get());
  ASSIGN_OR_RETURN(checkpoint_group_, ConnectAll("checkpoint"));
  checkpoint_peers_.emplace(checkpoint_group_.get());
  return absl::OkStatus();
}

absl::Status RankProcess::PrepareVm() {
  if (const kernels::Status prepared = kernels::cpu::Prepare(threads()); !prepared.ok()) {
    return absl::InternalError(prepared.message);
  }
  ASSIGN_OR_RETURN(vm_, Vm::Create(*program_,
                                   {.threads = threads(),
                                    .arenas = memory_->arenas(),
                                    .groups = groups_,
                                    .rank = config_.rank(),
                                    .nvme = memory_->nvme(),
                                    .flight = flight_.get(),
                                    .dynamic = memory_->dynamic(),
                                    .backend = backend_.get()},
                                   clock_, checkpointer_ ? &*checkpointer_ : nullptr));
  return vm_->Warm();
}

// What the libraries took is known only now.
absl::Status RankProcess::CheckMemory() {
  ASSIGN_OR_RETURN(external_bytes_, MeasureExternal(*program_, *memory_, Store(), backend_.get(),
                                                    vm_.get(), &*agreement_));
  const PreparedMemory prepared{*program_, *memory_, external_bytes_, vm_->graph_bytes()};
  driver_watch_.emplace(
      backend_.get(),
      PlannedUse{ReservedBytesNeeded(*program_, v1::DEVICE), program_->external_bytes()},
      [this](const std::string& text) { reporter_->Warn(text); });
  reporter_->SetMemory(memory_->reserved_bytes(v1::DEVICE), external_bytes_,
                       driver_watch_->latest().bytes);
  flight_->Prepared(external_bytes_);
  log::Info(MemoryLine(prepared));
  return WithReason(CheckDeviceLimit(prepared), v1::REASON_OUT_OF_MEMORY);
}

absl::StatusOr<int64_t> RankProcess::Initialise() {
  RETURN_IF_ERROR(FillInitialState(*program_, memory_->regions(), threads()));
  ASSIGN_OR_RETURN(const int64_t own, StepToResume());
  ASSIGN_OR_RETURN(const int64_t step, agreement_->FromRankZero(own));
  return step > 0 ? Resume(step) : InitialiseFresh();
}

// 0: from the start. Only rank 0 looks: all must come to the same answer.
absl::StatusOr<int64_t> RankProcess::StepToResume() {
  const std::string& directory = config_.spec().checkpoint().directory();
  if (config_.rank() != 0 || directory.empty()) return 0;
  if (NewestCheckpoint(directory).ok()) reporter_->SetActivity("comparing checksums", 0);
  ASSIGN_OR_RETURN(const ResumePoint point,
                   FindResumePoint(config_.spec(), config_.epoch(), dataset_->sums()));
  for (const std::string& remark : point.remarks) reporter_->Warn(remark);
  if (point.step > 0) reporter_->SetActivity("", 1);
  return point.step;
}

absl::StatusOr<int64_t> RankProcess::Resume(int64_t step) {
  const std::string& directory = config_.spec().checkpoint().directory();
  const auto lost = [&] {
    return WithReason(absl::NotFoundError(absl::StrCat(
                          "rank ", config_.rank(), " does not see the checkpoint of step ", step,
                          " in ", directory, "; all nodes must share that folder")),
                      v1::REASON_WEIGHTS_ERROR);
  };
  const auto all = ListCheckpoints(directory);
  if (!all.ok()) return lost();
  const auto found = std::find_if(all->begin(), all->end(),
                                  [step](const CheckpointInfo& info) { return info.step == step; });
  if (found == all->end()) return lost();
  const auto header = ReadCheckpoint(found->path, State(), &*checkpoint_peers_);
  if (ReasonOf(header.status()) == v1::REASON_RANK_DIED) {  // a drive, or a peer
    return Reworded(header.status(), absl::StrCat("cannot resume from ", found->path, ": ",
                                                  header.status().message()));
  }
  if (!header.ok()) {
    return WithReason(
        Reworded(
            header.status(),
            absl::StrCat("cannot resume: ", header.status().message(),
                         "; or name another checkpoint.directory, or move that checkpoint away")),
        v1::REASON_WEIGHTS_ERROR);
  }
  training_ = header->training;
  reporter_->Resumed(header->step, header->tokens, found->path);
  reporter_->Best(training_.validation.best_step, training_.validation.best_loss);
  return header->step;
}

absl::StatusOr<int64_t> RankProcess::InitialiseFresh() {
  const std::string& init = config_.spec().model().init();
  if (init.empty() || init == "random") {
    RETURN_IF_ERROR(WithReason(InitialiseWeights(config_.spec().train().seed(), State(), threads()),
                               v1::REASON_WEIGHTS_ERROR));
    return 0;
  }
  const std::string& adapter = config_.spec().model().lora().init();
  absl::StatusOr<SavedAdapter> saved = absl::NotFoundError("");
  if (adapter.starts_with('/')) {
    saved = OpenAdapter(adapter, *program_);
    RETURN_IF_ERROR(WithReason(
        Reworded(saved.status(),
                 absl::StrCat("model.lora.init: got ", adapter, ": ", saved.status().message())),
        v1::REASON_WEIGHTS_ERROR));
  }
  const AdapterStart adapters = {.seed = config_.spec().train().seed(),
                                 .saved = saved.ok() ? &*saved : nullptr};
  const absl::Status filled = ReadWeights(init, State(), adapters);
  RETURN_IF_ERROR(
      WithReason(Reworded(filled, absl::StrCat("model.init: got ", init, ": ", filled.message())),
                 v1::REASON_WEIGHTS_ERROR));
  return 0;
}

}  // namespace terrace
