// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/progress/progress_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "proto/program/grid.h"
#include "proto/report/live_memory.h"

namespace terrace {
namespace {

// A look that comes later than this was kept from coming.
constexpr int64_t kLateMs = 2 * kProgressSampleMs;

bool SamePlace(const FlightState& a, const FlightState& b) {
  return a.step == b.step && a.changes == b.changes && a.places == b.places &&
         a.finished == b.finished;
}

// Launched as one graph, a sequence shows its beginning until its end.
bool MayBeGraph(const v1::Program& program, const FlightState& state) {
  return program.device() == "cuda" && std::all_of(state.finished.begin(), state.finished.end(),
                                                   [](int32_t finished) { return finished == 0; });
}

}  // namespace

ProgressWatch::ProgressWatch(const v1::RankConfig* config, ProcessReader process,
                             WatchedPrograms* programs, const Clock* clock)
    : config_(config), process_(std::move(process)), programs_(programs), clock_(clock) {}

absl::Duration ProgressWatch::Sample(const v1::RankMetrics& metrics) {
  const int64_t now_ms = clock_->MonotonicNanos() / 1'000'000;
  const int64_t elapsed_ms = looked_ms_ == 0 ? 0 : now_ms - looked_ms_;
  if (looked_ms_ != 0 && elapsed_ms < kProgressSampleMs / 2)
    return absl::Milliseconds(kProgressSampleMs - elapsed_ms);
  looked_ms_ = std::max<int64_t>(1, now_ms);
  AddRatios(now_ms, metrics);
  Look(elapsed_ms > kLateMs ? kProgressSampleMs : elapsed_ms);
  return absl::Milliseconds(kProgressSampleMs);
}

// The rank makes the recorder when it has read its program; until then there is none.
void ProgressWatch::Open() {
  if (!flight_.has_value()) {
    if (auto reader = FlightReader::Open(config_->run_directory()); reader.ok())
      flight_ = *std::move(reader);
  }
  if (flight_.has_value() && program_ == nullptr) program_ = programs_->Get(*config_);
}

void ProgressWatch::Look(int64_t elapsed_ms) {
  if (!flight_.has_value()) Open();
  FlightState state;
  if (flight_.has_value()) {
    absl::StatusOr<FlightState> now = flight_->State();
    if (!now.ok()) {  // it changes too fast to be read
      place_.set_standing_ms(0);
      return;
    }
    state = *std::move(now);
  }
  const bool moved = !SamePlace(state, state_);
  state_ = std::move(state);
  // What else moves is asked for only where it matters.
  const ProcessReader::Counters before = counters_;
  if (!moved) counters_ = process_.Read();
  const bool works = moved || counters_.io_bytes - before.io_bytes >= kMovedBytesMin;
  const double faults = elapsed_ms > 0 && !moved && before.major_faults > 0
                            ? static_cast<double>(counters_.major_faults - before.major_faults) *
                                  1000.0 / static_cast<double>(elapsed_ms)
                            : 0;
  place_.set_standing_ms(works ? 0 : place_.standing_ms() + elapsed_ms);
  place_.set_places(state_.places);
  place_.set_activity(static_cast<v1::RankActivity>(state_.activity));
  place_.set_step(state_.step);
  place_.clear_sequence();
  place_.clear_instruction();
  place_.clear_groups();
  place_.clear_process();
  place_.clear_process_words();
  if (place_.standing_ms() < kPlaceToldMs) return;
  ProcessLook look = process_.Look(faults);
  place_.set_process(look.state);
  place_.set_process_words(std::move(look.words));
  Open();
  AddPlaces(state_);
}

std::string ProgressWatch::FindGroup(const v1::Instruction& instruction) const {
  const v1::Program& program = program_->program;
  const bool transfer = instruction.has_transfer();
  if (!transfer && !instruction.has_collective()) return "";
  const uint32_t index =
      transfer ? instruction.transfer().group() : instruction.collective().group();
  if (static_cast<int>(index) >= program.groups_size()) return "";
  const v1::Group& group = program.groups(static_cast<int>(index));
  const uint32_t rank = config_->rank();
  if (!transfer) {
    const std::vector<uint32_t> members = GroupMembers(program.grid(), group, rank);
    return members.empty() ? "" : absl::StrCat(group.name(), ".", members.front());
  }
  Coordinates peer = CoordinatesOf(program.grid(), rank);
  peer.stage = instruction.transfer().peer_stage();
  if (peer.stage >= AxisSize(program.grid(), v1::PIPELINE)) return "";
  const uint32_t other = RankOf(program.grid(), peer);
  const bool sends = instruction.transfer().kind() == v1::SEND;
  return absl::StrCat(group.name(), " ", sends ? rank : other, "->", sends ? other : rank);
}

const std::string& ProgressWatch::GroupOf(int sequence, int stream) {
  const auto [found, inserted] = groups_.try_emplace({sequence, stream});
  if (!inserted) return found->second;
  for (const v1::Instruction& instruction : program_->program.sequences(sequence).instructions()) {
    if (static_cast<int>(instruction.stream()) != stream) continue;
    found->second = FindGroup(instruction);
    break;
  }
  return found->second;
}

void ProgressWatch::AddPlaces(const FlightState& state) {
  if (program_ == nullptr) return;
  const v1::Program& program = program_->program;
  if (state.sequence < 0 || state.sequence >= program.sequences_size() ||
      config_->rank() >= RanksOf(program.grid())) {
    return;
  }
  place_.set_sequence(program.sequences(state.sequence).name());
  if (MayBeGraph(program, state)) return;
  const ProgramPosition position{.sequence = state.sequence, .finished = state.finished};
  for (int stream = 0; stream < program.streams_size(); ++stream) {
    const ExecutedInstruction at = program_->live->Current(position, stream);
    const bool under_way =
        at.instruction != nullptr && program_->live->IsUnderWay(position, stream);
    const std::string& group = GroupOf(state.sequence, stream);
    if (group.empty()) {
      if (under_way && place_.instruction().empty()) place_.set_instruction(InstructionWords(at));
      continue;
    }
    if (place_.groups_size() == static_cast<int>(kGroupPlacesMax)) continue;
    v1::GroupPlace* exchange = place_.add_groups();
    exchange->set_group(group);
    exchange->set_finished(state.finished[stream]);
    exchange->set_arrived(under_way);
    if (under_way) exchange->set_instruction(InstructionWords(at));
  }
}

void ProgressWatch::AddRatios(int64_t now_ms, const v1::RankMetrics& metrics) {
  if (!totals_.empty() && metrics.compute_seconds() < totals_.back().computing) totals_.clear();
  totals_.push_back({now_ms, metrics.compute_seconds(), metrics.collective_exposed_seconds()});
  // Over several steps, however long they are.
  const int64_t window_ms =
      std::clamp(static_cast<int64_t>(kStepsInWindow * 1000 * metrics.step_seconds()),
                 kRatioWindowMs, kRatioWindowMsMax);
  while (totals_.size() > 1 && now_ms - totals_[1].ms >= window_ms) totals_.pop_front();
  place_.clear_computing_ratio();
  place_.clear_waiting_ratio();
  const int64_t seen_ms = now_ms - totals_.front().ms;
  if (seen_ms < window_ms) return;
  const auto ms = static_cast<double>(seen_ms);
  place_.set_computing_ratio((totals_.back().computing - totals_.front().computing) * 1000 / ms);
  place_.set_waiting_ratio((totals_.back().waiting - totals_.front().waiting) * 1000 / ms);
}

std::string ProgressWatch::Page() {
  Open();
  std::string page = absl::StrCat("rank ", config_->rank(), " of job ", config_->job(), ", epoch ",
                                  config_->epoch(), "\nit has done nothing for ",
                                  place_.standing_ms() / 1000, " s, in step ", place_.step(), " (",
                                  v1::RankActivity_Name(place_.activity()), ")\n");
  if (!place_.process_words().empty())
    absl::StrAppend(&page, "its process ", place_.process_words(), "\n");
  const bool executes = program_ != nullptr && state_.sequence >= 0 &&
                        state_.sequence < program_->program.sequences_size();
  if (executes) {
    const v1::Program& program = program_->program;
    const ProgramPosition position{.sequence = state_.sequence, .finished = state_.finished};
    absl::StrAppend(&page, "\nwhere its streams stand in ",
                    program.sequences(state_.sequence).name(), "\n");
    for (int stream = 0; stream < program.streams_size(); ++stream) {
      const ExecutedInstruction at = program_->live->Current(position, stream);
      absl::StrAppend(&page, program.streams(stream).name(), "  ", state_.finished[stream],
                      " finished  ",
                      at.instruction == nullptr ? "at its end" : InstructionWords(at),
                      at.instruction == nullptr || program_->live->IsUnderWay(position, stream)
                          ? ""
                          : "  (waits for another stream)",
                      "\n");
    }
  }
  absl::StrAppend(&page, "\nits threads: number, name, state, where they wait in the kernel\n",
                  process_.ThreadsText());
  return page;
}

}  // namespace terrace
