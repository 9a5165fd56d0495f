// SPDX-License-Identifier: Apache-2.0
#include "proto/check/joint.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/rendezvous_matching.h"
#include "proto/check/value/announced.h"
#include "proto/program/grid.h"

namespace terrace::check {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr double kTolerance = 1e-5;

// Rules but what a stage computes itself.
bool SameRules(v1::StepRules a, v1::StepRules b) {
  a.clear_flops_per_step();
  b.clear_flops_per_step();
  return MessageDifferencer::Equals(a, b);
}

bool SameGroups(const v1::Program& a, const v1::Program& b) {
  return std::equal(
      a.groups().begin(), a.groups().end(), b.groups().begin(), b.groups().end(),
      [](const v1::Group& x, const v1::Group& y) { return MessageDifferencer::Equals(x, y); });
}

bool SameSequences(const v1::Program& a, const v1::Program& b) {
  return std::equal(a.sequences().begin(), a.sequences().end(), b.sequences().begin(),
                    b.sequences().end(), [](const v1::Sequence& x, const v1::Sequence& y) {
                      return x.name() == y.name() && x.sequence_length() == y.sequence_length();
                    });
}

// All ranks of a stage run the same program.
uint64_t FirstRank(absl::Span<const v1::Program> stages, size_t stage) {
  return RanksOf(stages[0].grid()) / stages.size() * stage;
}

// ---- state --------------------------------------------------------------------------------------

// Which stages hold a tensor.
struct Holders {
  const v1::StateRange* first = nullptr;
  std::vector<size_t> owners, copies;
};

absl::Status CheckOwners(absl::Span<const v1::Program> stages,
                         std::map<std::string, Holders>* weights) {
  std::map<std::pair<std::string, int>, Holders> tensors;
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const v1::StateRange& range : stages[s].state()) {
      Holders& holders = tensors[{range.tensor(), range.kind()}];
      if (holders.first == nullptr) holders.first = &range;
      std::vector<size_t>& list = range.copy() ? holders.copies : holders.owners;
      if (list.empty() || list.back() != s) list.push_back(s);
      const v1::StateRange& first = *holders.first;
      const bool same =
          range.dtype() == first.dtype() && std::equal(range.shape().begin(), range.shape().end(),
                                                       first.shape().begin(), first.shape().end());
      if (same) continue;
      return Refuse("stage ", s, ": state of '", range.tensor(),
                    "' has another shape or type than in the stages before");
    }
  }
  for (auto& [key, holders] : tensors) {
    const std::string what =
        absl::StrCat("state ", v1::StateKind_Name(static_cast<v1::StateKind>(key.second)), " of '",
                     key.first, "'");
    if (holders.owners.empty()) {
      return Refuse(what, ": stage ", holders.copies[0], " holds a copy, no stage owns it");
    }
    if (holders.owners.size() > 1) {
      return Refuse(what, ": stages ", holders.owners[0], " and ", holders.owners[1],
                    " own it; one owns, the others hold copies");
    }
    if (key.second == v1::WEIGHT) (*weights)[key.first] = holders;
  }
  return absl::OkStatus();
}

// Ties and initializers may name weights of other stages; a weight is filled alike wherever it is.
absl::Status CheckNames(absl::Span<const v1::Program> stages,
                        const std::map<std::string, Holders>& weights) {
  std::map<std::string, const v1::Initializer*> initializers;
  for (const v1::Program& program : stages) {
    for (const auto& [name, holder] : program.tied()) {
      if (!weights.contains(holder))
        return Refuse("tied tensor '", name, "': '", holder, "' is no weight of any stage");
    }
    for (const v1::Initializer& init : program.initializers()) {
      if (!weights.contains(init.tensor())) {
        return Refuse("initializer of '", init.tensor(), "': is no weight of any stage");
      }
      const v1::Initializer& first = *initializers.emplace(init.tensor(), &init).first->second;
      if (MessageDifferencer::Equals(init, first)) continue;
      return Refuse("initializer of '", init.tensor(), "': differs between stages");
    }
  }
  return absl::OkStatus();
}

// The gradient of a weight is summed over stages exactly when several hold it, over all of these,
// and its squares are counted once. Of one of the sequences that train.
absl::Status CheckShared(absl::Span<const v1::Program> stages, const std::vector<StageFacts>& facts,
                         const std::map<std::string, Holders>& weights,
                         const std::string& sequence) {
  const std::set<std::string> frozen = FrozenTensors(stages[0]);
  for (const auto& [name, holders] : weights) {
    if (frozen.contains(name)) continue;
    std::set<size_t> held(holders.copies.begin(), holders.copies.end());
    held.insert(holders.owners[0]);
    double squares = 0;
    std::string where;
    for (size_t s = 0; s < stages.size(); ++s) {
      const auto& all_shared = facts[s].training.at(sequence).shared;
      const auto shared = all_shared.find(name);
      if (shared == all_shared.end()) {
        if (held.size() == 1 || !held.contains(s)) continue;
        return Refuse("stage ", s, ", '", sequence, "': the gradient of '", name,
                      "' is not summed over the stages that hold copies of it");
      }
      squares += shared->second.squares;
      where = shared->second.where;
      const v1::Group& group = stages[s].groups(shared->second.group);
      std::set<size_t> summed(group.stages().begin(), group.stages().end());
      for (size_t all = 0; group.stages().empty() && all < stages.size(); ++all) summed.insert(all);
      if (summed == held) continue;
      return Refuse("stage ", s, ", from rank ", FirstRank(stages, s),
                    " on: ", shared->second.where, ": the gradient of '", name,
                    "' is summed over group '", group.name(),
                    "', whose stages are not those that hold the weight");
    }
    if (held.size() == 1 || std::abs(squares - 1) <= kTolerance) continue;
    return Refuse("stage ", *held.rbegin(), ", from rank ", FirstRank(stages, *held.rbegin()),
                  " on: ", where, ": the squares of the gradient of '", name, "' enter the norm ",
                  squares, " times over the stages that hold it, must be once");
  }
  return absl::OkStatus();
}

absl::Status CheckState(absl::Span<const v1::Program> stages,
                        const std::vector<StageFacts>& facts) {
  std::map<std::string, Holders> weights;
  RETURN_IF_ERROR(CheckOwners(stages, &weights));
  RETURN_IF_ERROR(CheckNames(stages, weights));
  for (const auto& [sequence, training] : facts[0].training) {
    RETURN_IF_ERROR(CheckShared(stages, facts, weights, sequence));
  }
  return absl::OkStatus();
}

// ---- data ---------------------------------------------------------------------------------------

absl::Status CheckLoads(absl::Span<const v1::Program> stages,
                        const std::vector<StageFacts>& facts) {
  if (stages.size() == 1) return absl::OkStatus();
  for (const auto& [sequence, training] : facts[0].training) {
    if (!training.loads_tokens) return Refuse("stage 0 loads no tokens in '", sequence, "'");
    const auto targets =
        std::count_if(facts.begin(), facts.end(), [&name = sequence](const StageFacts& of_stage) {
          return of_stage.training.at(name).loads_targets;
        });
    if (targets == 1) continue;
    return Refuse(targets, " stages load targets in '", sequence,
                  "', must be one: where the loss is");
  }
  return absl::OkStatus();
}

// What a stage takes for the output of the reference of pairs is that of another one.
absl::Status CheckReferences(absl::Span<const v1::Program> stages,
                             const std::vector<StageFacts>& facts) {
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const auto& [sequence, received] : facts[s].received) {
      for (const auto& [key, taken] : received) {
        const auto& [group, from, to, micro_batch] = key;
        const PairTransfers& sent = facts[from].sent.at(sequence);
        const auto given = sent.find(key);
        for (size_t i = 0; given != sent.end() && i < taken.size(); ++i) {
          if (taken[i] || (i < given->second.size() && !given->second[i])) continue;
          return Refuse("stage ", to, ", '", sequence, "', micro-batch ", micro_batch,
                        ": takes for the reference of its pairs what trained weights of stage ",
                        from, " have changed");
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAgree(absl::Span<const v1::Program> stages) {
  if (stages.empty()) return Refuse("there are no programs");
  const v1::Program& first = stages[0];
  for (size_t s = 0; s < stages.size(); ++s) {
    const v1::Program& other = stages[s];
    if (other.stage() != s || other.stages() != stages.size() || other.ranks() != first.ranks()) {
      return Refuse("program ", s, " of ", stages.size(), ": says stage ", other.stage(), " of ",
                    other.stages(), " with ", other.ranks(), " ranks, stage 0 has ", first.ranks());
    }
    if (!MessageDifferencer::Equals(other.grid(), first.grid())) {
      return Refuse("program ", s, ": its grid is not that of stage 0");
    }
    if (!SameGroups(other, first) || !SameSequences(other, first)) {
      return Refuse("program ", s, ": its groups or sequences are not those of stage 0");
    }
    if (!SameRules(other.rules(), first.rules())) {
      return Refuse("program ", s, ": its rules are not those of stage 0");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTermination(absl::Span<const v1::Program> stages, const AllWritten& written) {
  for (int q = 0; q < stages[0].sequences_size(); ++q) {
    std::vector<const WrittenSequence*> of_stages;
    for (const std::vector<WrittenSequence>& of_stage : written) of_stages.push_back(&of_stage[q]);
    RendezvousMatching matching(stages, q, std::move(of_stages));
    RETURN_IF_ERROR(matching.Match());
    RETURN_IF_ERROR(matching.Run());
  }
  return absl::OkStatus();
}

absl::Status CheckChannelStreams(const v1::Program& program, const v1::Sequence& sequence) {
  // (transfer kind or 0, group, peer) -> stream
  std::map<std::tuple<int, uint32_t, uint32_t>, uint32_t> streams;
  for (const v1::Instruction& instruction : sequence.instructions()) {
    std::tuple<int, uint32_t, uint32_t> channel;
    if (instruction.kind_case() == v1::Instruction::kCollective) {
      channel = {0, instruction.collective().group(), 0};
    } else if (instruction.kind_case() == v1::Instruction::kTransfer) {
      const v1::TransferOp& op = instruction.transfer();
      channel = {op.kind(), op.group(), op.peer_stage()};
    } else {
      continue;
    }
    const uint32_t stream = streams.emplace(channel, instruction.stream()).first->second;
    if (stream == instruction.stream()) continue;
    const bool transfer = std::get<0>(channel) != 0;
    return Refuse(Where(sequence, instruction), ", operand in ",
                  BufferText(program, instruction.operands(0).buffer()), ": runs on stream ",
                  instruction.stream(), ", earlier ",
                  transfer ? "transfers of its kind with its peer" : "collectives of its group",
                  " on stream ", stream, "; ",
                  transfer ? "they have one stream" : "a group has one stream");
  }
  return absl::OkStatus();
}

absl::Status CheckJoint(absl::Span<const v1::Program> stages, const std::vector<StageFacts>& facts,
                        const WrittenAlike* alike) {
  RETURN_IF_ERROR(CheckAgree(stages));
  RETURN_IF_ERROR(CheckState(stages, facts));
  RETURN_IF_ERROR(CheckLoads(stages, facts));
  RETURN_IF_ERROR(CheckReferences(stages, facts));
  const auto tells = [](const StageFacts& of) { return !of.transfers_either_way; };
  // There is one where any stage tells.
  const auto first = std::find_if(facts.begin(), facts.end(), tells);
  for (size_t s = 1; s < stages.size(); ++s) {
    if (!tells(facts[s]) || facts[s].transfers_in_parts == first->transfers_in_parts) continue;
    return Refuse("stage ", s, ": what it receives is ", facts[s].transfers_in_parts ? "" : "not ",
                  "split over the axis TENSOR, with stage ", first - facts.begin(),
                  " it is the other way round");
  }
  RETURN_IF_ERROR(alike == nullptr ? CheckTermination(stages)
                                   : CheckTermination(alike->stages, alike->written));
  return CheckStageSums(stages, facts);
}

}  // namespace terrace::check
