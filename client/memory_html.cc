// SPDX-License-Identifier: Apache-2.0
#include "client/memory_html.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/memory_chart.h"
#include "client/memory_picture.h"
#include "client/print.h"
#include "proto/live_memory.h"
#include "proto/program_text.h"

namespace terrace {
namespace {

constexpr size_t kPoints = 600;
constexpr size_t kLargest = 25;

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>
:root { color-scheme: light; --ink: #1b1f24; --dim: #667079; --rule: #d9dee3; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; color: var(--ink); background: #fff;
       max-width: 1080px; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; }
p { margin: .2rem 0 .8rem; color: var(--dim); } p b { color: var(--ink); font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, "Segoe UI", Roboto, sans-serif; fill: var(--dim); }
rect.hover { fill: #000; fill-opacity: 0; } rect.hover:hover { fill-opacity: .1; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0; margin: .4rem 0; }
ul.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; margin: .6rem 0; }
th { text-align: left; color: var(--dim); font-weight: 600; }
th, td { padding: .22rem .6rem .22rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
@page { margin: 14mm; }
@media print { body { max-width: none; margin: 0; padding: 0; font-size: 11px; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  section, tr, svg { break-inside: avoid; } h2 { break-after: avoid; } }
</style>
)";

std::string Row(const std::vector<std::string>& cells, const std::vector<bool>& numeric,
                const char* element) {
  std::string row = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppend(&row, "<", element, numeric[i] ? " class=\"n\">" : ">", cells[i], "</", element,
                    ">");
  }
  return row + "</tr>\n";
}

std::string Code(const std::string& text) {
  return absl::StrCat("<code>", EscapeHtml(text), "</code>");
}

std::string Largest(const MemoryTimeline::Peak& peak) {
  const std::vector<bool> numeric = {true, true, false, false, false};
  std::string table = "<table><thead>" +
                      Row({"bytes", "of peak", "buffer", "class", "made by"}, numeric, "th") +
                      "</thead><tbody>\n";
  for (const LiveBuffer& live : peak.largest) {
    const double share = 100.0 * static_cast<double>(live.buffer->bytes()) /
                         static_cast<double>(std::max<int64_t>(1, peak.bytes));
    table += Row(
        {FormatBytes(live.buffer->bytes()), absl::StrFormat("%.1f %%", share),
         Code(live.buffer->name()), ClassName(live.buffer->class_()),
         live.made_by == nullptr ? "there all the time" : Code(InstructionWords(*live.made_by))},
        numeric, "td");
  }
  return table + "</tbody></table>\n";
}

int64_t LimitOf(const v1::Program& program, v1::Tier tier) {
  if (tier == v1::DEVICE) return program.device_limit_bytes();
  return tier == v1::HOST ? program.host_limit_bytes() : program.nvme_limit_bytes();
}

std::string TierSection(const LiveMemory& memory, int sequence, const MemoryTimeline& timeline,
                        const v1::Arena& arena) {
  const v1::Program& program = memory.program();
  const MemoryTimeline::Peak& peak = timeline.peaks[arena.tier()];
  const auto& instructions = program.sequences(sequence).instructions();
  const v1::Instruction& at = instructions[static_cast<int>(peak.instruction)];
  const int64_t limit = LimitOf(program, arena.tier());
  std::string section = absl::StrCat(
      "<section><h2>", program.stages() > 1 ? absl::StrCat("stage ", program.stage(), ", ") : "",
      TierName(arena.tier()), "</h2>\n<p><b>", FormatBytes(peak.bytes),
      "</b> live at the peak, at instruction ", Code(InstructionWords(at)), "; arena <b>",
      FormatBytes(arena.bytes()), "</b>",
      limit > 0 ? absl::StrCat(", limit ", FormatBytes(limit)) : "", "</p>\n",
      MemoryChart(memory, sequence, timeline, arena.tier()), Largest(peak), "</section>\n");
  return section;
}

std::string LiveSection(const v1::GetMemoryResponse& live) {
  if (live.ranks().empty()) return "";
  const std::vector<bool> numeric = {true, true, false, false, true, true, true, true, true};
  std::string table =
      "<section><h2>when this page was made</h2>\n<table><thead>" +
      Row({"rank", "step", "at", "tier", "live", "reserved", "limit", "outside", "allowed"},
          numeric, "th") +
      "</thead><tbody>\n";
  for (const v1::RankMemory& rank : live.ranks()) {
    for (const v1::TierMemory& tier : rank.tiers()) {
      const bool device = tier.tier() == v1::DEVICE;
      table += Row(
          {absl::StrCat(rank.rank()), absl::StrCat(rank.step()),
           rank.sequence().empty() ? "between executions"
                                   : Code(absl::StrCat(rank.sequence(), " ", rank.instruction())),
           TierName(tier.tier()), FormatBytes(LiveBytes(tier)), FormatBytes(tier.reserved_bytes()),
           tier.limit_bytes() > 0 ? FormatBytes(tier.limit_bytes()) : "none",
           device ? FormatBytes(rank.external_bytes()) : "",
           device ? FormatBytes(rank.external_allowed_bytes()) : ""},
          numeric, "td");
    }
  }
  return table + "</tbody></table></section>\n";
}

}  // namespace

absl::StatusOr<std::string> MemoryHtml(const v1::Job& job, std::span<const v1::Program> programs,
                                       const v1::GetMemoryResponse& live) {
  std::string page = absl::StrCat(
      kHead, "<title>Memory of ", EscapeHtml(job.id()), "</title></head><body>\n<h1>Memory of ",
      EscapeHtml(job.id()), " over one step</h1>\n<p>", std::string(StateName(job.state())),
      ", step ", job.progress().step(), " of ", job.spec().train().steps(), ". From left to right ",
      "the instructions of a step in list order; what is live follows from the program. ",
      "Point at a chart to see the instruction.</p>\n", ChartLegend());
  for (const v1::Program& program : programs) {
    ASSIGN_OR_RETURN(const LiveMemory memory, LiveMemory::Create(&program));
    for (int i = 0; i < program.sequences_size(); ++i) {
      if (program.sequences(i).name() != "train" || program.sequences(i).instructions().empty())
        continue;
      const MemoryTimeline timeline = memory.Timeline(i, kPoints, kLargest);
      for (const v1::Arena& arena : program.arenas())
        page += TierSection(memory, i, timeline, arena);
    }
  }
  return absl::StrCat(page, LiveSection(live), "</body></html>\n");
}

}  // namespace terrace
