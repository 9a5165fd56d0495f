// SPDX-License-Identifier: Apache-2.0
#include "client/memory_html.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "client/memory_chart.h"
#include "client/memory_picture.h"
#include "client/print.h"
#include "proto/drawing/html_table.h"
#include "proto/drawing/page.h"
#include "proto/report/live_memory.h"

namespace terrace {
namespace {

constexpr size_t kPoints = 600;
constexpr size_t kLargest = 25;

std::string Largest(const MemoryTimeline::Peak& peak) {
  HtmlTable table("", {true, true, false, false, false});
  table.Head({"bytes", "of peak", "buffer", "class", "made by"});
  for (const LiveBuffer& live : peak.largest) {
    table.Add({FormatBytes(live.buffer->bytes()),
               PercentText(static_cast<double>(live.buffer->bytes()) /
                           static_cast<double>(std::max<int64_t>(1, peak.bytes))),
               Code(live.buffer->name()), ClassWord(live.buffer->class_()),
               live.made_by.instruction == nullptr ? "there all the time"
                                                   : Code(InstructionWords(live.made_by))});
  }
  return Wide(table.Finish());
}

int64_t LimitOf(const v1::Program& program, v1::Tier tier) {
  if (tier == v1::DEVICE) return program.device_limit_bytes();
  return tier == v1::HOST ? program.host_limit_bytes() : program.nvme_limit_bytes();
}

std::string LeftOutWords(int64_t iterations) {
  if (iterations == 0) return "";
  return absl::StrCat("<p>", iterations,
                      " iterations of each loop, like those before them, are left out of the "
                      "picture.</p>\n");
}

std::string TierSection(const LiveMemory& memory, int sequence, const MemoryTimeline& timeline,
                        const v1::Arena& arena) {
  const v1::Program& program = memory.program();
  const MemoryTimeline::Peak& peak = timeline.peaks[arena.tier()];
  const ExecutedInstruction at = memory.Executed(sequence, peak.instruction);
  const int64_t limit = LimitOf(program, arena.tier());
  std::string section = absl::StrCat(
      "<section><h2>", program.stages() > 1 ? absl::StrCat("stage ", program.stage(), ", ") : "",
      TierWord(arena.tier()), "</h2>\n<p><b>", FormatBytes(peak.bytes),
      "</b> live at the peak, at instruction ", Code(InstructionWords(at)), "; arena <b>",
      FormatBytes(arena.bytes()), "</b>",
      limit > 0 ? absl::StrCat(", limit ", FormatBytes(limit)) : "", "</p>\n",
      LeftOutWords(memory.played().left_out()),
      Wide(MemoryChart(memory, sequence, timeline, arena.tier())), Largest(peak), "</section>\n");
  return section;
}

std::string LiveSection(const v1::GetMemoryResponse& live) {
  if (live.ranks().empty()) return "";
  HtmlTable table("", {true, true, false, false, true, true, true, true, true});
  table.Head({"rank", "step", "at", "tier", "live", "reserved", "limit", "outside", "allowed"});
  for (const v1::RankMemory& rank : live.ranks()) {
    for (const v1::TierMemory& tier : rank.tiers()) {
      const bool device = tier.tier() == v1::DEVICE;
      table.Add(
          {absl::StrCat(rank.rank()), absl::StrCat(rank.step()),
           rank.sequence().empty() ? "between executions"
                                   : Code(absl::StrCat(rank.sequence(), " ", rank.instruction())),
           TierWord(tier.tier()), FormatBytes(LiveBytes(tier)), FormatBytes(tier.reserved_bytes()),
           tier.limit_bytes() > 0 ? FormatBytes(tier.limit_bytes()) : "none",
           device ? FormatBytes(rank.external_bytes()) : "",
           device ? FormatBytes(rank.external_allowed_bytes()) : ""});
    }
  }
  return absl::StrCat("<section><h2>when this page was made</h2>\n", Wide(table.Finish()),
                      "</section>\n");
}

}  // namespace

absl::StatusOr<std::string> MemoryHtml(const v1::Job& job, std::span<const v1::Program> programs,
                                       const v1::GetMemoryResponse& live) {
  std::string page = absl::StrCat(
      PageStart(absl::StrCat("Memory of ", job.id())), "<h1>Memory of ", EscapeXml(job.id()),
      " over one step</h1>\n<p>", std::string(StateName(job.state())), ", step ",
      job.progress().step(), " of ", job.spec().train().steps(), ". From left to right ",
      "the instructions of a step in list order; what is live follows from the program. ",
      "Point at a chart to see the instruction.</p>\n",
      Wide(SvgElement(ChartLegend(), "What the colours mean")));
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
  return absl::StrCat(page, LiveSection(live), PageEnd());
}

}  // namespace terrace
