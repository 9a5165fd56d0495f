// SPDX-License-Identifier: Apache-2.0
#include "proto/check/loops.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/instruction/structure.h"
#include "proto/check/loop_values.h"
#include "proto/program/allocation_events.h"
#include "proto/program/grid.h"
#include "proto/program/loops.h"
#include "proto/program/sequences.h"

namespace terrace::check {
namespace {

std::string LoopText(const v1::Sequence& sequence, int k) {
  const v1::Loop& loop = sequence.loops(k);
  return absl::StrCat("loop ", k, " of '", sequence.name(), "' (", loop.count(),
                      " instructions from ", loop.first(), " on)");
}

// ---- ranges and trip counts ---------------------------------------------------------------------

absl::Status CheckRange(const v1::Sequence& sequence, int k) {
  const v1::Loop& loop = sequence.loops(k);
  const auto size = static_cast<uint32_t>(sequence.instructions_size());
  if (loop.count() < 1 || loop.first() > size || loop.count() > size - loop.first()) {
    return Refuse(LoopText(sequence, k), ": must hold 1 or more of the ", size,
                  " instructions of its sequence");
  }
  if (k > 0) {
    const v1::Loop& before = sequence.loops(k - 1);
    if (loop.first() < before.first() + before.count()) {
      return Refuse(LoopText(sequence, k), ": begins before ", LoopText(sequence, k - 1),
                    " ends; loops stand in order and do not overlap");
    }
  }
  if (loop.trips() < 1 || loop.trips() > kTripsMax) {
    return Refuse(LoopText(sequence, k), ": trips: got ", loop.trips(), ", must be 1 to ",
                  kTripsMax);
  }
  return absl::OkStatus();
}

// Its iterations go through as many micro-batches of the step as they say.
absl::Status CheckMicroBatches(const v1::Program& program, const v1::Sequence& sequence, int k) {
  const v1::Loop& loop = sequence.loops(k);
  const int64_t all = program.rules().micro_batches();
  const int64_t each = loop.micro_batches();
  if (each < 1 || loop.trips() > all / each) {
    return Refuse(LoopText(sequence, k), ": ", loop.trips(), " trips of ", each,
                  " micro-batches, must be 1 or more each and at most the ", all,
                  " of rules.micro_batches");
  }
  if (each != sequence.loops(0).micro_batches()) {
    return Refuse(LoopText(sequence, k), ": moves on by ", each, " micro-batches, ",
                  LoopText(sequence, 0), " by ", sequence.loops(0).micro_batches(),
                  "; the loops of a step move on alike");
  }
  for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(static_cast<int>(i));
    const int64_t last = instruction.micro_batch() + (int64_t{loop.trips()} - 1) * each;
    if (instruction.micro_batch() < 0 || last < all) continue;
    return Refuse(Where(sequence, instruction), ": is of micro-batch ", last,
                  " in the last iteration of ", LoopText(sequence, k), ", there are ", all);
  }
  return absl::OkStatus();
}

// All sequences that train count the same micro-batches.
absl::Status CheckAlike(const v1::Program& program) {
  const v1::Sequence* first = nullptr;
  for (const v1::Sequence& sequence : program.sequences()) {
    if (!IsTrain(sequence.name())) {
      if (sequence.loops_size() == 0) continue;
      return Refuse(LoopText(sequence, 0),
                    ": only sequences that train have loops, over their micro-batches");
    }
    if (first == nullptr) first = &sequence;
    const bool loops = sequence.loops_size() > 0;
    if (loops == (first->loops_size() > 0) &&
        (!loops || sequence.loops(0).micro_batches() == first->loops(0).micro_batches()))
      continue;
    return Refuse("sequence '", sequence.name(), "': its loops do not go through micro-batches as ",
                  "those of '", first->name(), "' do");
  }
  return absl::OkStatus();
}

// What a rank executes on one stream, it counts.
absl::Status CheckPlayed(const v1::Program& program, const v1::Sequence& sequence) {
  std::vector<int64_t> played(program.streams_size(), 0);
  const LoopIndex index(sequence);
  for (const v1::Instruction& instruction : sequence.instructions()) {
    const int loop = index.LoopOf(static_cast<int>(instruction.id()));
    int64_t& of_stream = played[instruction.stream()];
    of_stream += loop == kNoLoop ? 1 : int64_t{sequence.loops(loop).trips()};
    if (of_stream <= kPlayedMax) continue;
    return Refuse("sequence '", sequence.name(), "': a rank would execute ", of_stream,
                  " instructions and more on stream ", instruction.stream(), ", at most ",
                  kPlayedMax);
  }
  return absl::OkStatus();
}

// ---- waits --------------------------------------------------------------------------------------

absl::Status CheckBackWaits(const v1::Sequence& sequence, const LoopIndex& index, int i) {
  const v1::Instruction& instruction = sequence.instructions(i);
  for (const v1::BackWait& wait : instruction.back_waits()) {
    const auto refuse = [&](const auto&... rule) {
      return Refuse(Where(sequence, instruction), ": waits for ", wait.instruction(), ", ",
                    wait.iterations(), " iterations before, ", rule...);
    };
    if (wait.iterations() < 1 || wait.iterations() > kBackWaitMax)
      return refuse("must be 1 to ", kBackWaitMax, " iterations");
    if (wait.instruction() >= static_cast<uint32_t>(sequence.instructions_size()))
      return refuse("there are ", sequence.instructions_size(), " instructions");
    const auto other = static_cast<int>(wait.instruction());
    const int loop = index.LoopOf(other);
    if (loop == kNoLoop || (index.LoopOf(i) != loop && other > i))
      return refuse("which is in no loop that it stands in or behind");
    if (wait.iterations() >= sequence.loops(loop).trips() && index.LoopOf(i) != loop)
      return refuse(LoopText(sequence, loop), " has ", sequence.loops(loop).trips());
    if (sequence.instructions(other).stream() == instruction.stream())
      return refuse("on its own stream, where order is program order");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLoops(const v1::Program& program) {
  RETURN_IF_ERROR(CheckAlike(program));
  for (const v1::Sequence& sequence : program.sequences()) {
    for (int k = 0; k < sequence.loops_size(); ++k) {
      RETURN_IF_ERROR(CheckRange(sequence, k));
      RETURN_IF_ERROR(CheckMicroBatches(program, sequence, k));
    }
    RETURN_IF_ERROR(CheckPlayed(program, sequence));
    const LoopIndex index(sequence);
    for (int i = 0; i < sequence.instructions_size(); ++i) {
      RETURN_IF_ERROR(CheckBackWaits(sequence, index, i));
    }
    RETURN_IF_ERROR(CheckLoopValues(program, sequence));
  }
  if (!HasLoops(program)) return absl::OkStatus();
  if (UsesCaching(program)) {
    return Refuse("allocator: ", program.allocator(),
                  " has no loops: where buffers lie would differ from iteration to iteration");
  }
  // CheckLoopValues bounds the slots of each value.
  if (const int64_t turn = TurnOf(program); turn > kTurnMax) {
    return Refuse("the slots of its values are in their first places again after ", turn,
                  " iterations, at most ", kTurnMax);
  }
  return absl::OkStatus();
}

namespace {

int64_t FewestTrips(const v1::Program& program) {
  int64_t trips = kTripsMax;
  for (const v1::Sequence& sequence : program.sequences()) {
    if (IsTrain(sequence.name()) && sequence.loops_size() == 0) return 0;
    for (const v1::Loop& loop : sequence.loops()) trips = std::min(trips, int64_t{loop.trips()});
  }
  return trips;
}

}  // namespace

int64_t IterationsLeftOutAlike(absl::Span<const v1::Program> stages) {
  int64_t back = 0, trips = kTripsMax;
  for (const v1::Program& program : stages) {
    trips = std::min(trips, FewestTrips(program));
    for (const v1::Sequence& sequence : program.sequences()) {
      for (const v1::Instruction& instruction : sequence.instructions()) {
        for (const v1::BackWait& wait : instruction.back_waits())
          back = std::max(back, int64_t{wait.iterations()});
      }
    }
  }
  // Stages may be ahead of one another by an iteration for each that lies between them.
  const int64_t shows = back + 3 + 2 * static_cast<int64_t>(stages.size());
  return std::max<int64_t>(0, trips - shows);
}

int64_t IterationsLeftOut(const v1::Program& program) {
  const int64_t turn = TurnOf(program);
  return std::max<int64_t>(0, FewestTrips(program) - IterationsThatShow(program)) / turn * turn;
}

bool SumsOverStagesInLoops(const v1::Program& program) {
  for (const v1::Sequence& sequence : program.sequences()) {
    for (const v1::Loop& loop : sequence.loops()) {
      for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
        const v1::Instruction& instruction = sequence.instructions(static_cast<int>(i));
        if (instruction.kind_case() == v1::Instruction::kCollective &&
            HasAxis(program.groups(static_cast<int>(instruction.collective().group())),
                    v1::PIPELINE)) {
          return true;
        }
      }
    }
  }
  return false;
}

absl::Status CheckWrittenSize(const v1::Program& program, int64_t left_out) {
  for (const v1::Sequence& sequence : program.sequences()) {
    int64_t instructions = sequence.instructions_size(), values = program.buffers_size();
    for (const v1::Loop& loop : sequence.loops()) {
      const int64_t more = int64_t{loop.trips()} - left_out - 1;
      instructions += more * loop.count();
      // One for each iteration and for each before and behind them that some operand names.
      values += (more + 1 + 2 * FarthestSlot(sequence)) * SlottedValues(sequence, loop);
    }
    if (instructions > kInstructionsMax || values > kBuffersMax) {
      return Refuse("sequence '", sequence.name(), "': the iterations that must be looked at have ",
                    instructions, " instructions and ", values, " buffers, at most ",
                    kInstructionsMax, " and ", kBuffersMax);
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
