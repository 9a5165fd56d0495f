// SPDX-License-Identifier: Apache-2.0
#include "proto/check/rendezvous_matching.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/check/instruction/refuse.h"
#include "proto/program/grid.h"

namespace terrace::check {
namespace {

// Links of a cycle that a message names.
constexpr int kLinksMax = 8;

bool IsTransfer(const v1::Instruction& instruction) {
  return instruction.kind_case() == v1::Instruction::kTransfer;
}

bool CrossesStages(const v1::Program& program, const v1::Instruction& instruction) {
  return instruction.kind_case() == v1::Instruction::kCollective &&
         HasAxis(program.groups(instruction.collective().group()), v1::PIPELINE);
}

int64_t Elements(const v1::Operand& operand) {
  int64_t elements = 1;
  for (int64_t size : operand.shape()) elements *= size;
  return elements;
}

std::string SizeText(const v1::Instruction& instruction) {
  const v1::Operand& operand = instruction.operands(0);
  return absl::StrCat(Elements(operand), " ", v1::DType_Name(operand.dtype()));
}

bool SameSize(const v1::Instruction& a, const v1::Instruction& b) {
  return a.operands(0).dtype() == b.operands(0).dtype() &&
         Elements(a.operands(0)) == Elements(b.operands(0));
}

}  // namespace

int SequenceIndex(const v1::Program& program, std::string_view name) {
  for (int q = 0; q < program.sequences_size(); ++q) {
    if (program.sequences(q).name() == name) return q;
  }
  return -1;
}

RendezvousMatching::RendezvousMatching(absl::Span<const v1::Program> stages, int index,
                                       std::vector<const WrittenSequence*> written)
    : stages_(stages), written_(std::move(written)) {
  size_t nodes = 0;
  for (const v1::Program& program : stages) {
    sequences_.push_back(&program.sequences(index));
    first_.push_back(nodes);
    nodes += program.sequences(index).instructions_size();
  }
  first_.push_back(nodes);
  event_.resize(nodes);
  for (size_t node = 0; node < nodes; ++node) event_[node] = node;
  rendezvous_of_.assign(nodes, -1);
}

const v1::Instruction& RendezvousMatching::At(const StageInstruction& at) const {
  return sequences_[at.stage]->instructions(at.instruction);
}

RendezvousMatching::StageInstruction RendezvousMatching::InstructionAt(size_t node) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), node);
  const auto stage = static_cast<uint32_t>(after - first_.begin() - 1);
  return {stage, static_cast<int>(node - first_[stage])};
}

std::string RendezvousMatching::Text(const StageInstruction& at) const {
  const v1::Program& program = stages_[at.stage];
  const Coordinates rank = {.stage = at.stage};
  const v1::Instruction& instruction = At(at);
  std::string text =
      absl::StrCat("rank ", RankOf(program.grid(), rank), " (", Describe(program.grid(), rank),
                   ") ", Where(*sequences_[at.stage], instruction));
  if (instruction.operands_size() > 0 &&
      instruction.operands(0).buffer() < static_cast<uint32_t>(program.buffers_size())) {
    absl::StrAppend(&text, " with ", BufferText(program, instruction.operands(0).buffer()));
  }
  return text;
}

// ---- matching --------------------------------------------------------------------------------

void RendezvousMatching::Join(const StageInstruction& a, const StageInstruction& b) {
  int& rendezvous = rendezvous_of_[Node(a)];
  if (rendezvous < 0) {
    rendezvous = static_cast<int>(rendezvous_.size());
    rendezvous_.push_back({a});
  }
  rendezvous_[rendezvous].push_back(b);
  rendezvous_of_[Node(b)] = rendezvous;
  event_[Node(b)] = event_[Node(a)];
}

absl::Status RendezvousMatching::CheckPair(const StageInstruction& send,
                                           const StageInstruction& receive) const {
  const v1::Instruction& from = At(send);
  const v1::Instruction& to = At(receive);
  if (!SameSize(from, to)) {
    return Refuse(Text(send), ": sends ", SizeText(from), ", where ", Text(receive), " receives ",
                  SizeText(to));
  }
  // What is sent as something else than it is received as would go unnoticed when the sizes are
  // one.
  if (MicroBatchFor(send, receive) != MicroBatchFor(receive, send) || from.phase() != to.phase() ||
      from.layer() != to.layer()) {
    const auto as = [](const v1::Instruction& instruction) {
      return absl::StrCat(v1::Phase_Name(instruction.phase()), " micro-batch ",
                          instruction.micro_batch(), " layer ", instruction.layer());
    };
    return Refuse(Text(send), ": sends ", as(from), ", where ", Text(receive), " receives ",
                  as(to));
  }
  return absl::OkStatus();
}

RendezvousMatching::Part RendezvousMatching::PartOf(const StageInstruction& at) const {
  if (written_.empty()) return kBefore;
  Part part = kBefore;
  for (const Repeat& repeat : written_[at.stage]->repeats) {
    const int64_t iteration = repeat.IterationAt(at.instruction);
    if (iteration >= 0) part = iteration == repeat.shown ? kBehind : kInLoop;
  }
  return part;
}

// Of what `at` moves, as seen from the other end. Where that one is in a loop, it is in one of
// the first iterations: what stands behind the loops of this stage is then that many iterations
// later than it would be, had all of them as few.
int64_t RendezvousMatching::MicroBatchFor(const StageInstruction& at,
                                          const StageInstruction& other) const {
  int64_t micro_batch = At(at).micro_batch();
  if (PartOf(at) != kBehind || PartOf(other) != kInLoop) return micro_batch;
  for (const Repeat& repeat : written_[at.stage]->repeats) {
    if (repeat.IterationAt(at.instruction) == repeat.shown)
      micro_batch -= repeat.left_out * repeat.micro_batches;
  }
  return micro_batch;
}

// Messages of the iterations that were left out are matched with those of iterations that were left
// out: for two iterations both ends are in their loops at the same messages.
absl::Status RendezvousMatching::CheckLoopsMatch(const Channel& sends,
                                                 const Channel& receives) const {
  const size_t both = std::min(sends.size(), receives.size());
  size_t in_loops = 0, in_both = 0, in_one_iteration = 0;
  for (size_t n = 0; n < both && !written_.empty(); ++n) {
    const bool sent = PartOf(sends[n]) == kInLoop, received = PartOf(receives[n]) == kInLoop;
    in_loops += sent || received ? 1 : 0;
    in_both += sent && received ? 1 : 0;
    for (const Repeat& repeat : written_[sends[n].stage]->repeats) {
      if (repeat.left_out > 0 && repeat.IterationAt(sends[n].instruction) == 0) ++in_one_iteration;
    }
  }
  if (in_loops == 0 || in_both >= 2 * in_one_iteration) return absl::OkStatus();
  return Refuse(Text(sends[0]), ": its channel is used by loops whose iterations do not meet: of ",
                in_one_iteration, " messages an iteration, ", in_both,
                " are in the loops of both "
                "stages, must be those of 2 iterations");
}

absl::Status RendezvousMatching::MatchTransfers() {
  struct Ends {
    Channel sends, receives;
  };
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, Ends> channels;  // group, sender, receiver
  for (uint32_t stage = 0; stage < stages_.size(); ++stage) {
    for (int i = 0; i < sequences_[stage]->instructions_size(); ++i) {
      const v1::Instruction& instruction = sequences_[stage]->instructions(i);
      if (!IsTransfer(instruction)) continue;
      const v1::TransferOp& op = instruction.transfer();
      const StageInstruction at = {stage, i};
      if (op.kind() == v1::SEND) {
        channels[{op.group(), stage, op.peer_stage()}].sends.push_back(at);
      } else {
        channels[{op.group(), op.peer_stage(), stage}].receives.push_back(at);
      }
    }
  }
  for (const auto& [key, ends] : channels) {
    const size_t both = std::min(ends.sends.size(), ends.receives.size());
    for (size_t n = 0; n < both; ++n) {
      RETURN_IF_ERROR(CheckPair(ends.sends[n], ends.receives[n]));
      Join(ends.sends[n], ends.receives[n]);
    }
    RETURN_IF_ERROR(CheckLoopsMatch(ends.sends, ends.receives));
    if (ends.sends.size() == ends.receives.size()) continue;
    const bool sends = ends.sends.size() > both;
    return Refuse(Text(sends ? ends.sends[both] : ends.receives[both]), ": is number ", both + 1,
                  " of its kind in group '", stages_[0].groups(std::get<0>(key)).name(),
                  "' from stage ", std::get<1>(key), " to stage ", std::get<2>(key), ", and there ",
                  both == 1 ? "is" : "are", " only ", both, sends ? " receives" : " sends");
  }
  return absl::OkStatus();
}

absl::Status RendezvousMatching::MatchCollectives() {
  std::vector<std::vector<Channel>> groups(stages_[0].groups_size());  // by group, by stage
  for (std::vector<Channel>& group : groups) group.resize(stages_.size());
  for (uint32_t stage = 0; stage < stages_.size(); ++stage) {
    for (int i = 0; i < sequences_[stage]->instructions_size(); ++i) {
      const v1::Instruction& instruction = sequences_[stage]->instructions(i);
      if (!CrossesStages(stages_[stage], instruction)) continue;
      groups[instruction.collective().group()][stage].push_back({stage, i});
    }
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const v1::Group& group = stages_[0].groups(static_cast<int>(g));
    if (!HasAxis(group, v1::PIPELINE)) continue;
    uint32_t first = 0;
    while (first < stages_.size() && !HasStage(group, first)) ++first;
    for (uint32_t stage = first + 1; stage < stages_.size(); ++stage) {
      if (!HasStage(group, stage)) continue;
      RETURN_IF_ERROR(MatchMembers(group, first, groups[g][first], stage, groups[g][stage]));
    }
  }
  return absl::OkStatus();
}

absl::Status RendezvousMatching::MatchMembers(const v1::Group& group, uint32_t first,
                                              const Channel& of_first, uint32_t stage,
                                              const Channel& of_stage) {
  const size_t both = std::min(of_first.size(), of_stage.size());
  for (size_t n = 0; n < both; ++n) {
    const v1::Instruction& a = At(of_first[n]);
    const v1::Instruction& b = At(of_stage[n]);
    if (a.collective().kind() != b.collective().kind() || !SameSize(a, b)) {
      return Refuse(Text(of_stage[n]), ": brings ", SizeText(b), " where ", Text(of_first[n]),
                    " brings ", SizeText(a), " in group '", group.name(), "'");
    }
    Join(of_first[n], of_stage[n]);
  }
  if (of_first.size() == of_stage.size()) return absl::OkStatus();
  const bool first_has_more = of_first.size() > both;
  return Refuse(Text(first_has_more ? of_first[both] : of_stage[both]), ": is number ", both + 1,
                " in group '", group.name(), "', stage ", first_has_more ? stage : first,
                " has only ", both);
}

absl::Status RendezvousMatching::Match() {
  RETURN_IF_ERROR(MatchTransfers());
  return MatchCollectives();
}

// ---- what happens -------------------------------------------------------------------------------

std::vector<int> RendezvousMatching::NextInStream(const v1::Sequence& sequence,
                                                  size_t streams) const {
  std::vector<int> next(sequence.instructions_size(), -1);
  std::vector<int> last(streams, -1);
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    int& before = last[sequence.instructions(i).stream()];
    if (before >= 0) next[before] = i;
    before = i;
  }
  return next;
}

void RendezvousMatching::BuildOrder() {
  const size_t nodes = event_.size();
  before_.assign(nodes, 0);
  std::vector<std::vector<int>> next(stages_.size());
  for (size_t s = 0; s < stages_.size(); ++s) {
    next[s] = NextInStream(*sequences_[s], stages_[s].streams_size());
  }
  const auto for_each_edge = [&](const auto& visit) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const size_t first = first_[s];
      for (int i = 0; i < sequences_[s]->instructions_size(); ++i) {
        const size_t node = first + i;
        const int after = next[s][i];
        if (after >= 0) visit(event_[node], event_[first + after]);
        for (uint32_t wait : sequences_[s]->instructions(i).waits())
          visit(event_[first + wait], event_[node]);
      }
    }
  };
  edge_begin_.assign(nodes + 1, 0);
  for_each_edge([&](size_t from, size_t) { ++edge_begin_[from + 1]; });
  for (size_t n = 0; n < nodes; ++n) edge_begin_[n + 1] += edge_begin_[n];
  edges_.resize(edge_begin_[nodes]);
  std::vector<size_t> end(edge_begin_.begin(), edge_begin_.end() - 1);
  for_each_edge([&](size_t from, size_t to) {
    edges_[end[from]++] = static_cast<uint32_t>(to);
    ++before_[to];
  });
}

absl::Status RendezvousMatching::Run() {
  BuildOrder();
  std::vector<int> missing = before_;
  std::vector<size_t> ready;
  size_t left = 0;
  for (size_t node = 0; node < event_.size(); ++node) {
    if (event_[node] != node) continue;
    ++left;
    if (missing[node] == 0) ready.push_back(node);
  }
  while (!ready.empty()) {
    const size_t event = ready.back();
    ready.pop_back();
    --left;
    for (size_t e = edge_begin_[event]; e < edge_begin_[event + 1]; ++e) {
      if (--missing[edges_[e]] == 0) ready.push_back(edges_[e]);
    }
  }
  return left == 0 ? absl::OkStatus() : Deadlock(missing);
}

size_t RendezvousMatching::UnfinishedBefore(size_t node, const std::vector<int>& missing,
                                            StageInstruction* via) const {
  const std::vector<StageInstruction> alone = {InstructionAt(node)};
  const std::vector<StageInstruction>& places =
      rendezvous_of_[node] < 0 ? alone : rendezvous_[rendezvous_of_[node]];
  for (const StageInstruction& at : places) {
    *via = at;
    const size_t first = first_[at.stage];
    const v1::Instruction& instruction = At(at);
    for (uint32_t wait : instruction.waits()) {
      if (missing[event_[first + wait]] > 0) return first + wait;
    }
    int i = at.instruction - 1;
    while (i >= 0 && sequences_[at.stage]->instructions(i).stream() != instruction.stream()) --i;
    if (i >= 0 && missing[event_[first + i]] > 0) return first + i;
  }
  return node;  // not reached: what has not happened comes after something that has not
}

absl::Status RendezvousMatching::Deadlock(const std::vector<int>& missing) const {
  struct Link {
    size_t event = 0;
    StageInstruction at,
        after;  // of one stage: `at` takes part in the event and comes after `after`
  };
  size_t event = 0;
  while (event_[event] != event || missing[event] == 0) ++event;
  std::vector<Link> links;
  std::map<size_t, size_t> seen;  // event -> link
  while (seen.emplace(event, links.size()).second) {
    StageInstruction via;
    const size_t before = UnfinishedBefore(event, missing, &via);
    links.push_back({event, via, InstructionAt(before)});
    event = event_[before];
  }
  links.erase(links.begin(), links.begin() + static_cast<int64_t>(seen[event]));
  // From one rendezvous to the next: what lies between them on one rank goes without saying.
  const auto is_rendezvous = [&](const Link& link) { return rendezvous_of_[link.event] >= 0; };
  std::rotate(links.begin(), std::find_if(links.begin(), links.end(), is_rendezvous), links.end());
  std::string text = "deadlock: these wait for one another for ever";
  int told = 0;
  for (size_t k = 0; k < links.size() && told < kLinksMax;) {
    const size_t begin = k;
    do {
      ++k;
    } while (k < links.size() && !is_rendezvous(links[k]));
    absl::StrAppend(&text, told == 0 ? ": " : "; ", Text(links[begin].at), " comes after ",
                    Text(links[k - 1].after));
    const StageInstruction& partner = links[k == links.size() ? 0 : k].at;
    if (partner.stage != links[k - 1].after.stage) {
      absl::StrAppend(&text, ", which waits for ", Text(partner));
    }
    ++told;
  }
  if (told == kLinksMax) absl::StrAppend(&text, "; and so on");
  return Refuse(text);
}

// ---- what is summed -----------------------------------------------------------------------------

namespace {

// The n-th sums of one group, one a stage.
absl::Status CheckSum(absl::Span<const v1::Program> stages, const v1::Sequence& sequence,
                      const std::vector<std::pair<size_t, const StageSum*>>& sums) {
  const auto text = [&](size_t s, const StageSum& sum) {
    const int q = SequenceIndex(stages[s], Std(sequence.name()));
    const v1::Instruction& instruction = stages[s].sequences(q).instructions(sum.instruction);
    return absl::StrCat("stage ", s, ", ", Where(sequence, instruction), " with ",
                        BufferText(stages[s], instruction.operands(0).buffer()));
  };
  const StageSum* given = nullptr;
  size_t giver = 0;
  bool some_zero = false;
  for (const auto& [s, sum] : sums) {
    some_zero = some_zero || sum->zero;
    if (sum->zero) continue;
    if (sum->value.spoiled_by >= 0) {
      return Refuse(text(s, *sum), ": sums over stages what is not of one kind");
    }
    if (given != nullptr && sum->value != given->value) {
      return Refuse(text(s, *sum), ": sums over stages what is not reduced as in ",
                    text(giver, *given));
    }
    given = sum;
    giver = s;
  }
  if (given == nullptr || !some_zero) return absl::OkStatus();
  // Those who bring zeros take the sum for complete.
  const v1::Group& group = stages[0].groups(static_cast<int>(given->group));
  AxisMask left = given->value.varies | given->value.parts;
  for (int axis : group.axes()) left &= ~Bit(static_cast<v1::Axis>(axis));
  if (left == 0) return absl::OkStatus();
  return Refuse(text(giver, *given), ": sums over stages what still differs over ", AxesText(left),
                ", other stages bring zeros");
}

}  // namespace

absl::Status CheckStageSums(absl::Span<const v1::Program> stages,
                            const std::vector<StageFacts>& facts) {
  for (const auto& [name, first] : facts[0].sums) {
    std::map<std::pair<uint32_t, size_t>, std::vector<std::pair<size_t, const StageSum*>>> sums;
    for (size_t s = 0; s < stages.size(); ++s) {
      std::map<uint32_t, size_t> count;
      const auto of_stage = facts[s].sums.find(name);
      if (of_stage == facts[s].sums.end()) continue;
      for (const StageSum& sum : of_stage->second) {
        sums[{sum.group, count[sum.group]++}].emplace_back(s, &sum);
      }
    }
    const v1::Sequence& sequence = stages[0].sequences(SequenceIndex(stages[0], name));
    for (const auto& [key, of_stages] : sums) {
      RETURN_IF_ERROR(CheckSum(stages, sequence, of_stages));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
