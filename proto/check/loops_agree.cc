// Whether the loops of all stages go together.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/joint.h"
#include "proto/check/rendezvous_matching.h"
#include "proto/program/grid.h"

namespace terrace::check {
namespace {

// A loop of several stages: how many messages an iteration sends and receives. By group, sender and
// receiver; a collective over stages has its own stage for both.
using Channel = std::tuple<uint32_t, uint32_t, uint32_t>;
struct Traffic {
  std::map<Channel, int> sends, receives;
  std::map<uint32_t, std::map<uint32_t, int>> sums;  // by group and stage
};

void Count(const v1::Program& program, const v1::Sequence& sequence, const v1::Loop& loop,
           uint32_t groups, Traffic* traffic) {
  for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(static_cast<int>(i));
    const uint32_t stage = program.stage();
    if (instruction.kind_case() == v1::Instruction::kTransfer) {
      const v1::TransferOp& op = instruction.transfer();
      if (op.kind() == v1::SEND) {
        ++traffic->sends[{op.group(), stage, op.peer_stage()}];
      } else {
        ++traffic->receives[{op.group(), op.peer_stage(), stage}];
      }
    } else if (instruction.kind_case() == v1::Instruction::kCollective) {
      const uint32_t group = instruction.collective().group();
      if (group < groups && group < static_cast<uint32_t>(program.groups_size()) &&
          HasAxis(program.groups(static_cast<int>(group)), v1::PIPELINE)) {
        ++traffic->sums[group][stage];
      }
    }
  }
}

absl::Status CheckTraffic(const Traffic& traffic, const std::string& what,
                          absl::Span<const v1::Program> stages) {
  std::map<Channel, std::pair<int, int>> channels;
  for (const auto& [channel, count] : traffic.sends) channels[channel].first = count;
  for (const auto& [channel, count] : traffic.receives) channels[channel].second = count;
  for (const auto& [channel, count] : channels) {
    if (count.first == count.second) continue;
    return Refuse(what, ": an iteration of stage ", std::get<1>(channel), " sends ", count.first,
                  " messages of group ", std::get<0>(channel), " to stage ", std::get<2>(channel),
                  ", which receives ", count.second, " an iteration");
  }
  for (const auto& [group, of_stages] : traffic.sums) {
    const auto& [one, in_one] = *of_stages.begin();
    for (uint32_t stage = 0; stage < stages.size(); ++stage) {
      const auto found = of_stages.find(stage);
      const int count = found == of_stages.end() ? 0 : found->second;
      if (count == in_one || !HasStage(stages[0].groups(static_cast<int>(group)), stage)) continue;
      return Refuse(what, ": an iteration of stage ", stage, " takes part in ", count,
                    " sums of group ", group, ", one of stage ", one, " in ", in_one);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(absl::Span<const v1::Program> stages, const v1::Sequence& first) {
  std::vector<const v1::Sequence*> sequences;
  for (const v1::Program& program : stages) {
    const int q = SequenceIndex(program, std::string_view(first.name()));
    if (q < 0) return absl::OkStatus();  // CheckAgree refuses it
    sequences.push_back(&program.sequences(q));
    const v1::Sequence& sequence = *sequences.back();
    if (sequence.loops_size() != first.loops_size()) {
      return Refuse("stage ", program.stage(), ", from rank ",
                    RanksOf(program.grid()) / stages.size() * program.stage(), " on: '",
                    first.name(), "' has ", sequence.loops_size(), " loops, that of stage 0 has ",
                    first.loops_size());
    }
  }
  for (int k = 0; k < first.loops_size(); ++k) {
    const std::string what = absl::StrCat("loop ", k, " of '", first.name(), "'");
    Traffic traffic;
    for (size_t s = 0; s < stages.size(); ++s) {
      const v1::Loop& loop = sequences[s]->loops(k);
      if (loop.micro_batches() != first.loops(k).micro_batches()) {
        return Refuse("stage ", s, ", from rank ", RanksOf(stages[s].grid()) / stages.size() * s,
                      " on: ", what, ": moves on by ", loop.micro_batches(),
                      " micro-batches, that of stage 0 by ", first.loops(k).micro_batches());
      }
      Count(stages[s], *sequences[s], loop, static_cast<uint32_t>(stages[0].groups_size()),
            &traffic);
    }
    RETURN_IF_ERROR(CheckTraffic(traffic, what, stages));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLoopsAgree(absl::Span<const v1::Program> stages) {
  for (const v1::Sequence& sequence : stages[0].sequences()) {
    RETURN_IF_ERROR(CheckSequence(stages, sequence));
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
