// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/memory/memory_watch.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "proto/program/allocation_events.h"
#include "proto/program/arena_pages.h"
#include "proto/program/sequences.h"

namespace terrace {
namespace {

constexpr int64_t kProgramBytesMax = int64_t{512} << 20;
constexpr size_t kTimelinePoints = 1;  // only its peak is of interest

// Of the file systems of all folders, each counted once.
int64_t FileSystemBytes(const v1::NvmeSpec& nvme) {
  std::set<dev_t> seen;
  int64_t bytes = 0;
  for (const std::string& path : nvme.paths()) {
    struct stat info;
    struct statvfs system;
    if (stat(path.c_str(), &info) != 0 || !seen.insert(info.st_dev).second) continue;
    if (statvfs(path.c_str(), &system) == 0)
      bytes += static_cast<int64_t>(system.f_blocks) * static_cast<int64_t>(system.f_frsize);
  }
  return bytes;
}

}  // namespace

std::shared_ptr<const WatchedProgram> WatchedPrograms::Get(const v1::RankConfig& config) {
  std::erase_if(programs_, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = programs_.find(config.program_sha256()); found != programs_.end()) {
    if (auto program = found->second.lock(); program != nullptr) return program;
  }
  const auto bytes = ReadTextFile(config.program_path(), kProgramBytesMax);
  auto program = std::make_shared<WatchedProgram>();
  if (!bytes.ok() || !program->program.ParseFromString(*bytes)) return nullptr;
  auto live = LiveMemory::Create(&program->program);
  if (!live.ok()) {
    log::Warn("program ", config.program_sha256(), ": ", live.status().message());
    return nullptr;
  }
  program->live = *std::move(live);
  programs_[config.program_sha256()] = program;
  return program;
}

MemoryWatch::MemoryWatch(const v1::RankConfig* config, int64_t pid, const Capacity& capacity,
                         WatchedPrograms* programs, const Clock* clock)
    : config_(config),
      pid_(pid),
      capacity_(capacity),
      programs_(programs),
      clock_(clock),
      process_(pid),
      cgroup_(pid > 0 ? MemoryCgroup::Find(pid, {}) : std::nullopt) {}

absl::Duration MemoryWatch::Sample() {
  if (pid_ <= 0) return absl::InfiniteDuration();
  const int64_t now_ms = clock_->UnixMillis();
  if (!samples_.empty()) {
    const int64_t since_ms = now_ms - samples_.back().unix_ms;
    const bool nearly = since_ms >= sample_ms_ / 2;
    if (since_ms >= 0 && !nearly) return absl::Milliseconds(sample_ms_ - since_ms);
  }
  AddSample(now_ms);
  return absl::Milliseconds(sample_ms_);
}

void MemoryWatch::AddSample(int64_t now_ms) {
  const std::optional<ProcessBytes> bytes = process_.Read();
  // A process that is being torn down holds nothing any more; what it held before is the news.
  if (!bytes.has_value() || bytes->resident == 0) return;
  const bool steady =
      !samples_.empty() &&
      std::abs(bytes->resident - samples_.back().bytes.resident) < kProcessMovesBytes;
  sample_ms_ = steady ? kSteadyProcessSampleMs : kProcessSampleMs;
  samples_.push_back({now_ms, *bytes, cgroup_ ? cgroup_->OomKills() : std::nullopt});
  while (now_ms - samples_.front().unix_ms > kProcessSamplesKeptMs ||
         samples_.size() > kProcessSamplesKept) {
    samples_.pop_front();
  }
  if (cgroup_) cgroup_used_bytes_ = cgroup_->UsedBytes();
}

// The rank makes the recorder when it has read its program; until then there is none.
void MemoryWatch::Open() {
  if (!flight_.has_value()) {
    if (auto reader = FlightReader::Open(config_->run_directory()); reader.ok())
      flight_ = *std::move(reader);
  }
  if (flight_.has_value() && program_ == nullptr) program_ = programs_->Get(*config_);
}

std::optional<FlightState> MemoryWatch::State() const {
  if (!flight_.has_value()) return std::nullopt;
  auto state = flight_->State();
  if (!state.ok()) return std::nullopt;
  return *std::move(state);
}

int64_t MemoryWatch::CapacityOf(v1::Tier tier) const {
  switch (tier) {
    case v1::DEVICE:
      return capacity_.device_bytes;
    case v1::HOST:
      return capacity_.host_bytes;
    default:
      return FileSystemBytes(config_->spec().resources().nvme());
  }
}

int64_t MemoryWatch::ExternalBytes(const FlightState& state) const {
  // Outside the arenas of a GPU, the rank alone can ask; its process's memory is another matter.
  const bool elsewhere = program_ != nullptr && program_->program.device() == "cuda";
  if (samples_.empty() || state.external_bytes == 0 || elsewhere) return state.external_bytes;
  // Measured exactly before the first step; what is anonymous and new since then is outside too.
  return std::max<int64_t>(
      0, state.external_bytes + samples_.back().bytes.anonymous - state.prepared_anonymous_bytes);
}

void MemoryWatch::AddTiers(const FlightState& state, const v1::RankMetrics& metrics,
                           v1::RankMemory* out) const {
  const v1::Program& program = program_->program;
  const ByTierAndClass live =
      program_->live->At({.sequence = state.sequence, .finished = state.finished});
  const int64_t measured[] = {0, metrics.arena_reserved_bytes(), metrics.host_reserved_bytes(),
                              metrics.nvme_reserved_bytes()};
  const int64_t limits[] = {0, program.device_limit_bytes(), program.host_limit_bytes(),
                            program.nvme_limit_bytes()};
  for (const v1::Arena& arena : program.arenas()) {
    v1::TierMemory* tier = out->add_tiers();
    tier->set_tier(arena.tier());
    tier->set_predicted_bytes(program_->live->ArenaBytes()[arena.tier()]);
    const int64_t reserved = state.reserved_bytes[arena.tier()];
    tier->set_reserved_bytes(reserved > 0 ? reserved : measured[arena.tier()]);
    tier->set_limit_bytes(limits[arena.tier()]);
    tier->set_capacity_bytes(CapacityOf(arena.tier()));
    for (int c = 0; c < v1::BufferClass_ARRAYSIZE; ++c) {
      if (live[arena.tier()][c] == 0) continue;
      v1::LiveClass* line = tier->add_live();
      line->set_class_(static_cast<v1::BufferClass>(c));
      line->set_bytes(live[arena.tier()][c]);
    }
  }
}

// In planned mode the arena is the one segment and its live buffers are the blocks.
void MemoryWatch::AddAllocator(const ProgramPosition& position, const v1::RankMetrics& metrics,
                               v1::RankMemory* out) {
  v1::AllocatorStats* stats = out->mutable_allocator();
  *stats = metrics.allocator();
  if (!stats->mode().empty() && stats->mode() != "planned") return;
  if (UsesCaching(program_->program)) {  // the rank has not said anything yet
    stats->set_mode(program_->program.allocator());
    stats->set_reserved_bytes(program_->live->ArenaBytes()[v1::DEVICE]);
    return;
  }
  if (step_peak_bytes_ < 0) {
    step_peak_bytes_ = 0;
    for (int i = 0; i < program_->program.sequences_size(); ++i) {
      if (!IsTrain(program_->program.sequences(i).name())) continue;
      step_peak_bytes_ =
          std::max(step_peak_bytes_,
                   program_->live->Timeline(i, kTimelinePoints, 0).peaks[v1::DEVICE].bytes);
    }
  }
  const int64_t live = Total(program_->live->At(position)[v1::DEVICE]);
  stats->set_mode("planned");
  stats->set_allocated_bytes(live);
  stats->set_active_bytes(live);
  stats->set_requested_bytes(live);
  stats->set_reserved_bytes(program_->live->ArenaBytes()[v1::DEVICE]);
  stats->set_largest_free_block_bytes(program_->live->LargestFree(position, v1::DEVICE));
  stats->set_step_peak_bytes(step_peak_bytes_);
}

const std::vector<HotLayer>& MemoryWatch::HotLayers() {
  static const std::vector<HotLayer> kNone;
  Open();
  if (program_ == nullptr) return kNone;
  if (!hot_layers_.has_value()) hot_layers_ = HotLayersOf(program_->program, *program_->live);
  return *hot_layers_;
}

v1::RankMemory MemoryWatch::Report(const v1::RankMetrics& metrics) {
  Open();
  v1::RankMemory memory;
  memory.set_rank(config_->rank());
  memory.set_unix_ms(clock_->UnixMillis());
  *memory.mutable_traffic() = metrics.traffic();
  memory.set_offload_stall_seconds(metrics.offload_stall_seconds());
  memory.set_host_pinned_bytes(metrics.host_pinned_bytes());
  memory.set_external_bytes(metrics.external_bytes());
  memory.set_graph_bytes(metrics.graph_bytes());
  memory.set_driver_bytes(metrics.driver_bytes());
  memory.set_driver_source(metrics.driver_source());
  const std::optional<FlightState> state = State();
  if (!state.has_value() || program_ == nullptr) return memory;
  const ProgramPosition position{.sequence = state->sequence, .finished = state->finished};
  const v1::Program& program = program_->program;
  memory.set_step(state->step);
  if (state->sequence >= 0 && state->sequence < program.sequences_size())
    memory.set_sequence(program.sequences(state->sequence).name());
  for (int i = 0; i < program.streams_size(); ++i) {
    const ExecutedInstruction at = program_->live->Current(position, i);
    if (program.streams(i).kind() == v1::COMPUTE && at.instruction != nullptr)
      memory.set_instruction(InstructionWords(at));
  }
  AddTiers(*state, metrics, &memory);
  AddAllocator(position, metrics, &memory);
  memory.set_external_bytes(ExternalBytes(*state));
  memory.set_external_allowed_bytes(program.external_bytes());
  if (state->pinned_bytes > 0) memory.set_host_pinned_bytes(state->pinned_bytes);
  return memory;
}

// A page of an arena that has a second address is resident twice to /proc/<pid>/statm.
void MemoryWatch::AddSamples(const std::optional<FlightState>& state, MemoryFacts* facts) const {
  int64_t twice = 0;
  if (state.has_value() && program_ != nullptr && facts->device_is_ram) {
    for (const v1::Arena& arena : program_->program.arenas()) {
      if (state->reserved_bytes[arena.tier()] > 0) twice += AliasBytes(arena);
    }
  }
  facts->samples.assign(samples_.begin(), samples_.end());
  for (ProcessSample& sample : facts->samples)
    sample.bytes.resident = std::max(sample.bytes.anonymous, sample.bytes.resident - twice);
}

MemoryFacts MemoryWatch::Facts(const v1::RankMetrics& metrics, const std::string& how) {
  MemoryFacts facts{.job = config_->job(),
                    .rank = config_->rank(),
                    .epoch = config_->epoch(),
                    .how = how,
                    .memory = Report(metrics)};
  if (cgroup_.has_value()) {
    facts.cgroup = cgroup_->name();
    facts.cgroup_limit_bytes = cgroup_->LimitBytes();
    facts.cgroup_used_bytes = cgroup_used_bytes_;
    facts.oom_kills = cgroup_->OomKills();
  }
  facts.node_memory_bytes = capacity_.host_bytes;
  facts.local_ranks = std::max<uint32_t>(1, config_->local_ranks());
  facts.device_is_ram = config_->spec().resources().device() != "cuda";
  if (flight_.has_value()) facts.events = flight_->Events().value_or(std::vector<FlightEvent>{});
  const std::optional<FlightState> state = State();
  AddSamples(state, &facts);
  if (!state.has_value() || program_ == nullptr) return facts;
  const ProgramPosition position{.sequence = state->sequence, .finished = state->finished};
  const v1::Program& program = program_->program;
  for (int i = 0; i < program.streams_size(); ++i) {
    const ExecutedInstruction at = program_->live->Current(position, i);
    facts.streams.push_back(
        {program.streams(i).name(), at.instruction == nullptr ? "" : InstructionWords(at)});
  }
  for (const LiveBuffer& live : program_->live->LargestAt(position, kLargestBuffersShown)) {
    facts.largest.push_back(
        {live.buffer->name(), live.buffer->bytes(), live.tier, live.buffer->class_(),
         live.made_by.instruction == nullptr ? "" : InstructionWords(live.made_by)});
  }
  return facts;
}

}  // namespace terrace
