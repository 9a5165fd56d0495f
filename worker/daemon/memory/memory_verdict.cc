// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/memory/memory_verdict.h"

#include <algorithm>
#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGrowthToldBytes = 64 << 10;  // a step; less is noise
constexpr size_t kSamplesShown = 12;

std::string Lower(std::string_view name) {
  return absl::AsciiStrToLower(absl::string_view(name.data(), name.size()));
}

int64_t LiveBytes(const v1::TierMemory& tier) {
  int64_t bytes = 0;
  for (const v1::LiveClass& line : tier.live()) bytes += line.bytes();
  return bytes;
}

const v1::TierMemory* TierIn(const MemoryFacts& facts, v1::Tier tier) {
  for (const v1::TierMemory& line : facts.memory.tiers()) {
    if (line.tier() == tier) return &line;
  }
  return nullptr;
}

int64_t ArenaBytes(const MemoryFacts& facts, v1::Tier tier) {
  const v1::TierMemory* line = TierIn(facts, tier);
  return line == nullptr ? 0 : std::max(line->predicted_bytes(), line->reserved_bytes());
}

std::string Cause(const MemoryFacts& facts) {
  std::string cause = facts.how.empty() ? "it died while no daemon watched it" : facts.how;
  if (facts.oom_kill_is_logged) {
    absl::StrAppend(&cause, " by the kernel's OOM killer (its log names the process)");
  } else if (OomKilled(facts)) {
    absl::StrAppend(&cause, " by the kernel's OOM killer (oom_kill of control group ", facts.cgroup,
                    " grew)");
  } else if (cause.find("signal 9") != std::string::npos) {
    absl::StrAppend(&cause, ", sender unknown");
  }
  return cause;
}

// "while executing instruction 812 adamw layer 3 of step 7".
std::string Where(const MemoryFacts& facts) {
  const v1::RankMemory& memory = facts.memory;
  if (memory.tiers().empty()) return "before its program was prepared";
  if (memory.sequence().empty()) {
    return memory.step() > 0 ? absl::StrCat("between two executions, at step ", memory.step())
                             : "before its first step";
  }
  std::string at = memory.instruction();
  for (const MemoryFacts::Stream& stream : facts.streams) {
    if (at.empty() && !stream.instruction.empty())
      at = absl::StrCat(stream.instruction, " on ", stream.name);
  }
  return absl::StrCat(
      "while executing ", at.empty() ? "the end" : absl::StrCat("instruction ", at), " of step ",
      memory.step(),
      memory.sequence() == "train" ? "" : absl::StrCat(" (", memory.sequence(), ")"));
}

std::string Growth(const MemoryFacts& facts) {
  const std::optional<int64_t> growth = GrowthPerStep(facts.events);
  if (!growth.has_value() || *growth < kGrowthToldBytes) return "";
  return absl::StrCat(" and growing ", FormatBytes(*growth), " a step");
}

// "device 480.0 MiB live of 500.0 MiB, outside the arenas 300.0 MiB of 160.0 MiB allowed".
std::string Holdings(const MemoryFacts& facts) {
  std::vector<std::string> parts;
  for (const v1::TierMemory& tier : facts.memory.tiers()) {
    parts.push_back(absl::StrCat(Lower(v1::Tier_Name(tier.tier())), " ",
                                 FormatBytes(LiveBytes(tier)), " live of ",
                                 FormatBytes(ArenaBytes(facts, tier.tier()))));
  }
  if (facts.memory.external_bytes() > 0) {
    parts.push_back(absl::StrCat("outside the arenas ", FormatBytes(facts.memory.external_bytes()),
                                 " of ", FormatBytes(facts.memory.external_allowed_bytes()),
                                 " allowed", Growth(facts)));
  }
  return absl::StrJoin(parts, ", ");
}

// ---- what would have fit ---------------------------------------------------------------------

struct Budget {
  int64_t limit = 0;     // of all ranks of the node together and whoever shares it
  std::string limit_of;  // in words
  int64_t others = 0;    // what neither this rank nor its siblings hold of it
  int64_t share = 0;     // of one rank
  int64_t held = 0;      // by this rank: arenas in RAM and what is outside
  int64_t excess = 0;    // outside the arenas, beyond what the plan allows
};

Budget BudgetOf(const MemoryFacts& facts) {
  Budget budget;
  const bool group = facts.cgroup_limit_bytes.value_or(0) > 0 &&
                     *facts.cgroup_limit_bytes < facts.node_memory_bytes;
  budget.limit = group ? *facts.cgroup_limit_bytes : facts.node_memory_bytes;
  budget.limit_of = group ? absl::StrCat("control group ", facts.cgroup) : "the node";
  // What a GPU's rank has outside its arena it has on the device.
  const int64_t external = facts.memory.external_bytes();
  const int64_t device = facts.device_is_ram ? ArenaBytes(facts, v1::DEVICE) + external : 0;
  budget.held = device + ArenaBytes(facts, v1::HOST);
  budget.excess = std::max<int64_t>(0, external - facts.memory.external_allowed_bytes());
  const int64_t ranks = facts.local_ranks;
  if (group && facts.cgroup_used_bytes.has_value() && !facts.samples.empty()) {
    budget.others = std::max<int64_t>(
        0, *facts.cgroup_used_bytes - ranks * facts.samples.back().bytes.resident);
  }
  budget.share = (budget.limit - budget.others) / ranks;
  return budget;
}

// A key, its value and why; empty when there is nothing to say.
std::string WhatFits(const MemoryFacts& facts) {
  if (facts.memory.tiers().empty() || facts.node_memory_bytes == 0) return "";
  const Budget budget = BudgetOf(facts);
  const int64_t room = budget.share - ArenaBytes(facts, v1::HOST) - budget.excess;
  const int64_t device_mib = room / kMiB;
  const int64_t needed = budget.held * facts.local_ranks + budget.others;
  const std::string more =
      absl::StrCat(budget.limit_of, " with at least ", (needed + kMiB - 1) / kMiB, " MiB");
  if (!OomKilled(facts)) {
    return absl::StrCat("nothing says that memory was the cause; this rank held ",
                        FormatBytes(budget.held), ", its share of ", budget.limit_of, " is ",
                        FormatBytes(budget.share));
  }
  if (budget.held <= budget.share) {
    return absl::StrCat("this rank held ", FormatBytes(budget.held), " of its share of ",
                        FormatBytes(budget.share), " of ", budget.limit_of,
                        " when it was last seen: that fits; other processes took the memory, or "
                        "it took more at once");
  }
  if (!facts.device_is_ram || room <= 0) return more;
  return absl::StrCat("resources.device_memory: ", device_mib, "MiB, or ", more);
}

// ---- the page ---------------------------------------------------------------------------------

std::string TimeText(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%H:%M:%S", &parts);
  return absl::StrFormat("%s.%03d", text, static_cast<int>(unix_ms % 1000));
}

void AddTiers(const MemoryFacts& facts, std::string* page) {
  *page += "\nwho held what\n";
  TextTable table({{}, {}, {.align = TextTable::Align::kRight}, {}}, 2);
  for (const v1::TierMemory& tier : facts.memory.tiers()) {
    const std::string name = Lower(v1::Tier_Name(tier.tier()));
    for (const v1::LiveClass& line : tier.live()) {
      table.Add({name, Lower(v1::BufferClass_Name(line.class_())), FormatBytes(line.bytes()), ""});
    }
    const int64_t arena = ArenaBytes(facts, tier.tier());
    table.Add({name, "free", FormatBytes(arena - LiveBytes(tier)), ""});
    table.Add({name, "all", FormatBytes(arena),
               tier.limit_bytes() > 0 ? absl::StrCat("limit ", FormatBytes(tier.limit_bytes()))
                                      : "no limit"});
  }
  table.Add({"process", "outside", FormatBytes(facts.memory.external_bytes()),
             absl::StrCat("allowed ", FormatBytes(facts.memory.external_allowed_bytes()),
                          Growth(facts))});
  table.AppendTo(page);
}

void AddBuffers(const MemoryFacts& facts, std::string* page) {
  if (facts.largest.empty()) return;
  *page += "\nlargest buffers\n";
  TextTable table({{.align = TextTable::Align::kRight}, {}, {}, {}, {.width_max = 80}}, 2);
  for (const MemoryFacts::Buffer& buffer : facts.largest) {
    table.Add(
        {FormatBytes(buffer.bytes), Lower(v1::Tier_Name(buffer.tier)),
         Lower(v1::BufferClass_Name(buffer.buffer_class)), buffer.name,
         buffer.made_by.empty() ? "there all the time" : absl::StrCat("made by ", buffer.made_by)});
  }
  table.AppendTo(page);
}

void AddStreams(const MemoryFacts& facts, std::string* page) {
  if (facts.memory.sequence().empty()) return;
  absl::StrAppend(page, "\nwhere its streams stood in ", facts.memory.sequence(), " of step ",
                  facts.memory.step(), "\n");
  TextTable table({{}, {.width_max = 100}}, 2);
  for (const MemoryFacts::Stream& stream : facts.streams)
    table.Add({stream.name, stream.instruction.empty() ? "at its end" : stream.instruction});
  table.AppendTo(page);
}

void AddProcess(const MemoryFacts& facts, std::string* page) {
  if (!facts.samples.empty()) {
    *page += "\nthe process in its last seconds\n";
    TextTable table({{}, {.align = TextTable::Align::kRight}, {}}, 2);
    const size_t from = facts.samples.size() - std::min(facts.samples.size(), kSamplesShown);
    for (size_t i = from; i < facts.samples.size(); ++i) {
      table.Add({TimeText(facts.samples[i].unix_ms), FormatBytes(facts.samples[i].bytes.resident),
                 absl::StrCat("resident, ", FormatBytes(facts.samples[i].bytes.anonymous),
                              " of it not files")});
    }
    table.AppendTo(page);
  }
  if (facts.cgroup.empty()) return;
  absl::StrAppend(page, "\ncontrol group ", facts.cgroup, ": ",
                  FormatBytes(facts.cgroup_used_bytes.value_or(0)), " used, ",
                  facts.cgroup_limit_bytes.has_value()
                      ? absl::StrCat("limit ", FormatBytes(*facts.cgroup_limit_bytes))
                      : "no limit",
                  ", oom_kill ", facts.oom_kills.value_or(0), "\n");
}

}  // namespace

std::optional<int64_t> GrowthPerStep(const std::vector<FlightEvent>& events) {
  const FlightEvent* first = nullptr;
  const FlightEvent* last = nullptr;
  for (const FlightEvent& event : events) {
    // The first step fills caches of libraries; it is no measure of the others.
    if (event.kind != FlightEventKind::kStep || event.anonymous_bytes == 0 || event.step < 2)
      continue;
    if (first == nullptr) first = &event;
    last = &event;
  }
  if (first == nullptr || last->step <= first->step) return std::nullopt;
  return (last->anonymous_bytes - first->anonymous_bytes) / (last->step - first->step);
}

bool OomKilled(const MemoryFacts& facts) {
  if (facts.oom_kill_is_logged) return true;
  if (facts.how.find("signal 9") == std::string::npos || !facts.oom_kills.has_value()) return false;
  for (const ProcessSample& sample : facts.samples) {
    if (sample.oom_kills.has_value()) return *facts.oom_kills > *sample.oom_kills;
  }
  return false;
}

std::string ShortVerdict(const MemoryFacts& facts) {
  std::string text = absl::StrCat(Cause(facts), " ", Where(facts));
  if (const std::string holdings = Holdings(facts); !holdings.empty())
    absl::StrAppend(&text, ": ", holdings);
  if (!OomKilled(facts)) return text;
  if (const std::string fits = WhatFits(facts); !fits.empty())
    absl::StrAppend(&text, "; what would have fit: ", fits);
  return text;
}

std::string VerdictPage(const MemoryFacts& facts) {
  std::string page = absl::StrCat("rank ", facts.rank, " of job ", facts.job, ", epoch ",
                                  facts.epoch, "\n", Cause(facts), "\n", Where(facts), "\n");
  AddTiers(facts, &page);
  AddBuffers(facts, &page);
  AddStreams(facts, &page);
  AddProcess(facts, &page);
  if (const std::string fits = WhatFits(facts); !fits.empty())
    absl::StrAppend(&page, "\nwhat would have fit\n  ", fits, "\n");
  return page;
}

}  // namespace terrace
