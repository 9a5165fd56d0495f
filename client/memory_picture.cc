// SPDX-License-Identifier: Apache-2.0
#include "client/memory_picture.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "client/table.h"
#include "proto/drawing/svg.h"

namespace terrace {
namespace {

constexpr int kLabelColumns = 8;  // "device  "
constexpr int kBarColumnsMin = 10;

struct BarStyle {
  v1::BufferClass buffer_class;
  char letter;
  int colour;  // of the 256
};
constexpr std::array<BarStyle, 7> kStyles = {{{v1::PARAMETER, 'P', 33},
                                              {v1::GRADIENT, 'G', 208},
                                              {v1::OPTIMIZER, 'O', 37},
                                              {v1::ACTIVATION, 'A', 220},
                                              {v1::COMMUNICATION, 'C', 133},
                                              {v1::WORKSPACE, 'W', 245},
                                              {v1::INPUT, 'I', 114}}};

std::string Bytes(int64_t bytes) { return bytes == 0 ? "-" : FormatBytes(bytes); }

// 1 - part / whole, as the metrics define it.
std::string Ratio(int64_t part, int64_t whole) {
  if (whole <= 0) return "-";
  return absl::StrFormat("%.3f", 1 - static_cast<double>(part) / static_cast<double>(whole));
}

// Of the device.
int64_t PlannedBytes(const v1::RankMemory& memory) {
  int64_t bytes = memory.external_allowed_bytes();
  for (const v1::TierMemory& tier : memory.tiers())
    bytes += tier.tier() == v1::DEVICE ? tier.predicted_bytes() : 0;
  return bytes;
}

const v1::RankMemory* Earlier(const v1::GetMemoryResponse& before, uint32_t rank) {
  for (const v1::RankMemory& memory : before.ranks()) {
    if (memory.rank() == rank) return &memory;
  }
  return nullptr;
}

// "1.2 GiB/s"; "-" without two reports at different times.
std::string Rate(const v1::RankMemory& now, const v1::RankMemory* before,
                 const v1::OffloadTraffic& traffic) {
  if (before == nullptr || now.unix_ms() <= before->unix_ms()) return "-";
  for (const v1::OffloadTraffic& old : before->traffic()) {
    if (old.tier() != traffic.tier() || old.write() != traffic.write()) continue;
    const double seconds = static_cast<double>(now.unix_ms() - before->unix_ms()) / 1e3;
    return FormatBytes(
               static_cast<int64_t>(static_cast<double>(traffic.bytes() - old.bytes()) / seconds)) +
           "/s";
  }
  return "-";
}

std::string Place(const v1::RankMemory& memory) {
  if (memory.sequence().empty()) return "between executions";
  return memory.instruction().empty() ? memory.sequence() + ", at its end"
                                      : absl::StrCat(memory.sequence(), " ", memory.instruction());
}

Table TierTable(const v1::GetMemoryResponse& now) {
  std::vector<std::string> headers = {"RANK",     "STEP",      "TIER",  "LIVE",
                                      "RESERVED", "PREDICTED", "LIMIT", "CAPACITY"};
  for (const BarStyle& style : kStyles)
    headers.push_back(absl::AsciiStrToUpper(ClassWord(style.buffer_class)));
  Table table(headers);
  for (const v1::RankMemory& memory : now.ranks()) {
    for (const v1::TierMemory& tier : memory.tiers()) {
      std::vector<std::string> row = {absl::StrCat(memory.rank()),  absl::StrCat(memory.step()),
                                      TierWord(tier.tier()),        Bytes(LiveBytes(tier)),
                                      Bytes(tier.reserved_bytes()), Bytes(tier.predicted_bytes()),
                                      Bytes(tier.limit_bytes()),    Bytes(tier.capacity_bytes())};
      for (const BarStyle& style : kStyles) {
        int64_t bytes = 0;
        for (const v1::LiveClass& line : tier.live())
          bytes += line.class_() == style.buffer_class ? line.bytes() : 0;
        row.push_back(Bytes(bytes));
      }
      table.Add(std::move(row));
    }
  }
  return table;
}

Table AllocatorTable(const v1::GetMemoryResponse& now) {
  Table table({"RANK", "ALLOCATOR", "ALLOCATED", "RESERVED", "PEAK", "FRAGMENTATION", "OF FREE",
               "RETRIES", "OOMS", "OUTSIDE", "GRAPHS", "ALLOWED", "BY DRIVER", "PINNED", "STALLED",
               "AT"});
  for (const v1::RankMemory& memory : now.ranks()) {
    const v1::AllocatorStats& stats = memory.allocator();
    table.Add(
        {absl::StrCat(memory.rank()), stats.mode(), Bytes(stats.allocated_bytes()),
         Bytes(stats.reserved_bytes()), Bytes(stats.step_peak_bytes()),
         Ratio(stats.allocated_bytes(), stats.reserved_bytes()),
         Ratio(stats.largest_free_block_bytes(), stats.reserved_bytes() - stats.allocated_bytes()),
         absl::StrCat(stats.retries()), absl::StrCat(stats.ooms()), Bytes(memory.external_bytes()),
         Bytes(memory.graph_bytes()), Bytes(memory.external_allowed_bytes()),
         Bytes(memory.driver_bytes()), Bytes(memory.host_pinned_bytes()),
         absl::StrFormat("%.1f s", memory.offload_stall_seconds()), Place(memory)});
  }
  return table;
}

std::string Bar(const v1::TierMemory& tier, int64_t whole, int width, bool colour) {
  std::string bar;
  int64_t until = 0;
  int drawn = 0;
  for (const BarStyle& style : kStyles) {
    for (const v1::LiveClass& line : tier.live()) {
      if (line.class_() != style.buffer_class) continue;
      until += line.bytes();
      const int end =
          std::min<int>(width, static_cast<int>((static_cast<double>(until) * width + whole / 2.0) /
                                                static_cast<double>(whole)));
      if (end <= drawn) continue;
      const std::string cells(end - drawn, colour ? ' ' : style.letter);
      absl::StrAppend(&bar, colour ? absl::StrCat("\033[48;5;", style.colour, "m") : "", cells,
                      colour ? "\033[0m" : "");
      drawn = end;
    }
  }
  return absl::StrCat("[", bar, std::string(width - drawn, '.'), "]");
}

// Of the classes that anybody holds.
std::string Legend(const v1::GetMemoryResponse& now, bool colour) {
  std::set<int> held;
  for (const v1::RankMemory& memory : now.ranks()) {
    for (const v1::TierMemory& tier : memory.tiers()) {
      for (const v1::LiveClass& line : tier.live()) held.insert(line.class_());
    }
  }
  std::string legend;
  for (const BarStyle& style : kStyles) {
    if (!held.contains(style.buffer_class)) continue;
    absl::StrAppend(&legend, legend.empty() ? "" : " ",
                    colour ? absl::StrCat("\033[48;5;", style.colour, "m  \033[0m ")
                           : absl::StrCat(std::string(1, style.letter), " "),
                    ClassWord(style.buffer_class));
  }
  return legend + "\n";
}

void AddRank(const v1::RankMemory& memory, const v1::RankMemory* before, int columns, bool colour,
             std::string* out) {
  std::string head =
      absl::StrCat("rank ", memory.rank(), "  step ", memory.step(), "  ", Place(memory));
  if (static_cast<int>(head.size()) >= columns) head.resize(columns - 1);
  absl::StrAppend(out, head, "\n");
  for (const v1::TierMemory& tier : memory.tiers()) {
    const int64_t whole =
        std::max<int64_t>({1, tier.limit_bytes(), tier.reserved_bytes(), tier.predicted_bytes()});
    std::string figures =
        absl::StrFormat("%9s of %s", FormatBytes(LiveBytes(tier)),
                        FormatBytes(std::max(tier.reserved_bytes(), tier.predicted_bytes())));
    if (tier.limit_bytes() > 0)
      absl::StrAppend(&figures, ", limit ", FormatBytes(tier.limit_bytes()));
    const int width =
        std::max(kBarColumnsMin, columns - kLabelColumns - 4 - static_cast<int>(figures.size()));
    absl::StrAppend(out, absl::StrFormat("%-*s", kLabelColumns, TierWord(tier.tier())),
                    Bar(tier, whole, width, colour), " ", figures, "\n");
  }
  const v1::AllocatorStats& stats = memory.allocator();
  absl::StrAppend(
      out, "        outside ", FormatBytes(memory.external_bytes()), " of ",
      FormatBytes(memory.external_allowed_bytes()),
      memory.graph_bytes() > 0 ? absl::StrCat(" (graphs ", FormatBytes(memory.graph_bytes()), ")")
                               : "",
      ", fragmentation ", Ratio(stats.allocated_bytes(), stats.reserved_bytes()), " / ",
      Ratio(stats.largest_free_block_bytes(), stats.reserved_bytes() - stats.allocated_bytes()),
      memory.host_pinned_bytes() > 0
          ? absl::StrCat(", pinned ", FormatBytes(memory.host_pinned_bytes()))
          : "",
      memory.driver_bytes() > 0
          ? absl::StrCat(", by the driver ", FormatBytes(memory.driver_bytes()), " of ",
                         FormatBytes(PlannedBytes(memory)))
          : "",
      "\n");
  if (memory.traffic().empty()) return;
  std::string moved = "        moved";
  for (const v1::OffloadTraffic& traffic : memory.traffic()) {
    absl::StrAppend(&moved, "  ", TierWord(traffic.tier()), traffic.write() ? " write " : " read ",
                    FormatBytes(traffic.bytes()), " (", Rate(memory, before, traffic), ")");
  }
  absl::StrAppend(out, moved, "  stalled ",
                  absl::StrFormat("%.1f s", memory.offload_stall_seconds()), "\n");
}

}  // namespace

int64_t LiveBytes(const v1::TierMemory& tier) {
  int64_t bytes = 0;
  for (const v1::LiveClass& line : tier.live()) bytes += line.bytes();
  return bytes;
}

std::string MemoryTables(const v1::GetMemoryResponse& now, const v1::GetMemoryResponse& before) {
  std::string text = absl::StrCat(TierTable(now).ToString(), "\n", AllocatorTable(now).ToString());
  Table traffic({"RANK", "TIER", "DIRECTION", "MOVED", "BUSY", "RATE"});
  bool any = false;
  for (const v1::RankMemory& memory : now.ranks()) {
    for (const v1::OffloadTraffic& line : memory.traffic()) {
      any = true;
      traffic.Add({absl::StrCat(memory.rank()), TierWord(line.tier()),
                   line.write() ? "write" : "read", FormatBytes(line.bytes()),
                   absl::StrFormat("%.1f s", line.seconds()),
                   Rate(memory, Earlier(before, memory.rank()), line)});
    }
  }
  if (any) absl::StrAppend(&text, "\n", traffic.ToString());
  return text;
}

std::string MemoryPicture(const v1::GetMemoryResponse& now, const v1::GetMemoryResponse& before,
                          int columns, bool colour) {
  std::string text = Legend(now, colour);
  for (const v1::RankMemory& memory : now.ranks())
    AddRank(memory, Earlier(before, memory.rank()), columns, colour, &text);
  return text;
}

}  // namespace terrace
