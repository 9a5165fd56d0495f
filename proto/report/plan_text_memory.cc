// SPDX-License-Identifier: Apache-2.0
#include "proto/report/plan_text_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "base/text/wrap.h"

namespace terrace {
namespace {

constexpr TextTable::Column kRight = {.align = TextTable::Align::kRight};
constexpr size_t kRowsMost = 18;  // stages of a table; of more, the fullest and some of the others

std::string TierName(v1::Tier tier) {
  return tier == v1::NVME ? "NVMe" : absl::AsciiStrToLower(v1::Tier_Name(tier));
}

std::string ClassName(v1::BufferClass buffer_class) {
  if (buffer_class == v1::BUFFER_CLASS_UNSPECIFIED) return "gaps";
  if (buffer_class == v1::EXTERNAL) return "outside the arena";
  return absl::AsciiStrToLower(v1::BufferClass_Name(buffer_class));
}

int64_t Total(const v1::StageMemory& memory) {
  return memory.arena_bytes() + memory.external_bytes();
}

double Part(int64_t bytes, int64_t of) {
  return of == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(of);
}

double OverBound(const v1::StageMemory& memory) {
  return memory.lower_bound_bytes() == 0
             ? 0
             : static_cast<double>(memory.arena_bytes()) / memory.lower_bound_bytes() - 1;
}

// "of 79.6 GiB, 88.8 %"; "1.3 GiB over the budget of 79.6 GiB".
std::string OfBudget(const v1::StageMemory& memory) {
  const int64_t limit = memory.limit_bytes();
  if (limit == 0) return "no budget";
  if (Total(memory) > limit) {
    return absl::StrCat(FormatBytes(Total(memory) - limit), " over the budget of ",
                        FormatBytes(limit));
  }
  return absl::StrCat("of ", FormatBytes(limit), ", ", PercentText(Part(Total(memory), limit)));
}

std::string Heading(v1::Tier tier) {
  return absl::StrCat("\nmemory of a rank at the peak, ", TierName(tier));
}

std::string ArenaText(int64_t bytes) { return absl::StrCat(Grouped(bytes), " bytes"); }

// What of an arena lies in pages at second addresses; empty: nothing.
std::string PagesText(int64_t paged_bytes) {
  return paged_bytes == 0
             ? ""
             : absl::StrCat(", with ", FormatBytes(paged_bytes), " of pages at second addresses");
}

void PrintOne(const v1::StageMemory& memory, std::string* out) {
  constexpr double kBar = 40;
  absl::StrAppend(out, Heading(memory.tier()), "\n");
  TextTable table({{}, kRight, kRight, {}}, 2);
  for (const v1::MemoryLine& line : memory.lines()) {
    const double share = Part(line.bytes(), Total(memory));
    table.Add({ClassName(line.class_()), FormatBytes(line.bytes()), PercentText(share),
               std::string(static_cast<size_t>(std::lround(share * kBar)), '#')});
  }
  table.Add({"total", FormatBytes(Total(memory)), "", OfBudget(memory)});
  table.AppendTo(out);
  absl::StrAppendFormat(out, "  arena %s, %.2f %% over the lower bound%s\n",
                        ArenaText(memory.arena_bytes()), 100 * OverBound(memory),
                        PagesText(memory.paged_bytes()));
}

// A power of 1024 in which all of a table is written.
struct Unit {
  const char* name = "bytes";
  double bytes = 1;
};
Unit UnitFor(int64_t most) {
  constexpr std::array<const char*, 5> kNames = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  Unit unit;
  for (size_t i = 1; i < kNames.size() && static_cast<double>(most) >= 2 * 1024 * unit.bytes; ++i)
    unit = {kNames[i], unit.bytes * 1024};
  return unit;
}

// The columns of the table; the last has what no other has.
constexpr std::array<v1::BufferClass, 5> kColumns = {v1::PARAMETER, v1::GRADIENT, v1::OPTIMIZER,
                                                     v1::ACTIVATION, v1::BUFFER_CLASS_UNSPECIFIED};

std::array<int64_t, 5> ByColumn(const v1::StageMemory& memory) {
  std::array<int64_t, 5> bytes{};
  for (const v1::MemoryLine& line : memory.lines()) {
    const auto column = std::find(kColumns.begin(), kColumns.end() - 1, line.class_());
    bytes[column - kColumns.begin()] += line.bytes();
  }
  return bytes;
}

// Which of so many stages are shown: all, or the fullest and some of the others.
std::vector<const v1::StageMemory*> Shown(const std::vector<const v1::StageMemory*>& stages) {
  if (stages.size() <= kRowsMost) return stages;
  const auto fullest =
      std::max_element(stages.begin(), stages.end(),
                       [](const auto* a, const auto* b) { return Total(*a) < Total(*b); });
  std::vector<const v1::StageMemory*> shown;
  for (size_t i = 0; i < stages.size(); ++i) {
    const bool edge = i + 3 > stages.size() || i < kRowsMost - 3;
    if (edge || stages[i] == *fullest) shown.push_back(stages[i]);
  }
  return shown;
}

// "0-127": a stage's ranks follow each other.
std::string Ranks(const v1::Plan& plan, const v1::StageMemory& memory) {
  const uint32_t stages = std::max<uint32_t>(1, plan.layout().pipeline_parallel());
  const uint32_t ranks = std::max<uint32_t>(1, plan.layout().ranks() / stages);
  const uint32_t first = memory.stage() * ranks;
  return ranks == 1 ? absl::StrCat(first) : absl::StrCat(first, "-", first + ranks - 1);
}

void PrintStages(const v1::Plan& plan, const std::vector<const v1::StageMemory*>& stages,
                 std::string* out) {
  int64_t most_total = 0, least_arena = INT64_MAX, most_arena = 0, most_paged = 0;
  double over_bound = 0;
  for (const v1::StageMemory* memory : stages) {
    most_total = std::max(most_total, Total(*memory));
    least_arena = std::min(least_arena, memory->arena_bytes());
    most_arena = std::max(most_arena, memory->arena_bytes());
    most_paged = std::max(most_paged, memory->paged_bytes());
    over_bound = std::max(over_bound, OverBound(*memory));
  }
  const Unit unit = UnitFor(std::max(most_total, stages[0]->limit_bytes()));
  const auto amount = [&unit](int64_t bytes) {
    return absl::StrFormat(unit.bytes == 1 ? "%.0f" : "%.1f",
                           static_cast<double>(bytes) / unit.bytes);
  };
  const int64_t budget = stages[0]->limit_bytes();  // of a tier, so that of all stages
  absl::StrAppend(out, Heading(stages[0]->tier()), ", in ", unit.name, "; ",
                  budget == 0 ? "no budget" : "budget " + amount(budget), "\n");
  TextTable table({kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight}, 2);
  // Which ranks a stage has gives way to what is over the budget: there is room for one of them.
  const bool over_budget = most_total > budget && budget > 0;
  table.Add({"stage", over_budget ? "" : "ranks", "parameter", "gradient", "optimizer",
             "activation", "other", "total", over_budget ? "over" : ""});
  const std::vector<const v1::StageMemory*> shown = Shown(stages);
  for (const v1::StageMemory* memory : shown) {
    std::vector<std::string> cells = {absl::StrCat(memory->stage()),
                                      over_budget ? "" : Ranks(plan, *memory)};
    for (const int64_t bytes : ByColumn(*memory)) cells.push_back(amount(bytes));
    cells.push_back(amount(Total(*memory)));
    const int64_t over = Total(*memory) - budget;
    cells.push_back(over > 0 && budget > 0 ? amount(over) : "");
    table.Add(std::move(cells));
  }
  table.AppendTo(out);
  if (shown.size() < stages.size()) {
    absl::StrAppend(out, "  ", stages.size() - shown.size(), " more stages are in -o json\n");
  }
  const std::string arenas =
      absl::StrFormat("arenas of %s%s, at most %.2f %% over the lower bound%s",
                      most_arena > least_arena ? absl::StrCat(Grouped(least_arena), " to ") : "",
                      ArenaText(most_arena), 100 * over_bound,
                      most_paged == 0 ? "" : absl::StrCat(PagesText(most_paged), " at most"));
  absl::StrAppend(out, "  ", Wrapped(arenas, 80, 2), "\n");
}

}  // namespace

std::string PlanMemoryText(const v1::Plan& plan) {
  std::string text;
  for (const v1::Tier tier : {v1::TIER_UNSPECIFIED, v1::DEVICE, v1::HOST, v1::NVME}) {
    std::vector<const v1::StageMemory*> stages;
    for (const v1::StageMemory& memory : plan.memory()) {
      if (memory.tier() == tier) stages.push_back(&memory);
    }
    if (stages.size() == 1) PrintOne(*stages[0], &text);
    if (stages.size() > 1) PrintStages(plan, stages, &text);
  }
  return text;
}

}  // namespace terrace
