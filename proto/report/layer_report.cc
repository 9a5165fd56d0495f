// SPDX-License-Identifier: Apache-2.0
#include "proto/report/layer_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "kernels/optimizer_rule.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kHotSpots = 5;
constexpr double kHotShare = 0.02;  // smaller ones are none
constexpr double kBarColumns = 30;

bool IsOnDevice(const v1::TierShares& shares) { return shares.host() + shares.nvme() == 0; }
bool IsPartOnHost(const v1::TierShares& shares) { return shares.nvme() < 1; }
// Weights are not farther away than the states that are updated with them, and whole on the device
// with ZeRO 1 and 2.
bool MayLeave(const v1::Layout& layout) {
  return layout.zero_stage() == 0 || layout.zero_stage() == 3;
}

// A way to hold less of a class, and whether the layout leaves it open.
struct Lever {
  enum Lowers { kEveryTier, kDevice, kHost };
  v1::BufferClass buffer_class;
  Lowers lowers;
  bool (*is_open)(const v1::Layout&);
  std::string_view advice;
};
constexpr std::array<Lever, 17> kLevers = {{
    {v1::ACTIVATION, Lever::kEveryTier,
     [](const v1::Layout& l) {
       return l.recompute_layers().empty() &&
              (l.recompute() == "none" || l.recompute() == "selective");
     },
     "layout.recompute: block keeps one activation a layer and computes the rest again"},
    {v1::ACTIVATION, Lever::kEveryTier, [](const v1::Layout& l) { return l.micro_batch() > 1; },
     "a smaller layout.micro_batch holds fewer sequences at a time"},
    {v1::ACTIVATION, Lever::kDevice,
     [](const v1::Layout& l) { return IsOnDevice(l.offload().activation()); },
     "layout.offload.activation: host keeps them there until backward"},
    {v1::ACTIVATION, Lever::kHost,
     [](const v1::Layout& l) { return IsPartOnHost(l.offload().activation()); },
     "layout.offload.activation: nvme keeps them there until backward"},
    {v1::PARAMETER, Lever::kEveryTier,
     [](const v1::Layout& l) { return l.zero_stage() < 3 && l.data_parallel() > 1; },
     "layout.zero: 3 shards weights over the data-parallel ranks"},
    {v1::PARAMETER, Lever::kDevice,
     [](const v1::Layout& l) {
       return MayLeave(l) && IsOnDevice(l.offload().parameter()) &&
              !IsOnDevice(l.offload().optimizer());
     },
     "layout.offload.parameter: host keeps weights there while nothing computes with them"},
    {v1::PARAMETER, Lever::kDevice,
     [](const v1::Layout& l) {
       return MayLeave(l) && IsOnDevice(l.offload().parameter()) &&
              IsOnDevice(l.offload().optimizer());
     },
     "layout.offload.parameter: host together with layout.offload.optimizer: host keeps weights "
     "and states there"},
    {v1::PARAMETER, Lever::kHost,
     [](const v1::Layout& l) {
       return MayLeave(l) && IsPartOnHost(l.offload().parameter()) &&
              l.offload().optimizer().nvme() > 0;
     },
     "layout.offload.parameter: nvme keeps weights there while nothing computes with them"},
    {v1::OPTIMIZER, Lever::kEveryTier,
     [](const v1::Layout& l) { return l.zero_stage() < 1 && l.data_parallel() > 1; },
     "layout.zero: 1 shards optimizer states over the data-parallel ranks"},
    {v1::OPTIMIZER, Lever::kDevice,
     [](const v1::Layout& l) { return IsOnDevice(l.offload().optimizer()); },
     "layout.offload.optimizer: host keeps optimizer states there"},
    {v1::OPTIMIZER, Lever::kHost,
     [](const v1::Layout& l) { return IsPartOnHost(l.offload().optimizer()); },
     "layout.offload.optimizer: nvme keeps optimizer states there"},
    {v1::GRADIENT, Lever::kEveryTier,
     [](const v1::Layout& l) { return l.zero_stage() < 2 && l.data_parallel() > 1; },
     "layout.zero: 2 shards gradients over the data-parallel ranks"},
    {v1::GRADIENT, Lever::kDevice,
     [](const v1::Layout& l) {
       return IsOnDevice(l.offload().gradient()) && !IsOnDevice(l.offload().optimizer());
     },
     "layout.offload.gradient: host keeps gradients there until the optimizer"},
    {v1::GRADIENT, Lever::kDevice,
     [](const v1::Layout& l) {
       return IsOnDevice(l.offload().gradient()) && IsOnDevice(l.offload().optimizer());
     },
     "layout.offload.gradient: host together with layout.offload.optimizer: host keeps them there "
     "until the update, which the host does"},
    {v1::GRADIENT, Lever::kHost,
     [](const v1::Layout& l) {
       return IsPartOnHost(l.offload().gradient()) && l.offload().optimizer().nvme() > 0;
     },
     "layout.offload.gradient: nvme keeps gradients there until the optimizer"},
    {v1::COMMUNICATION, Lever::kHost,
     [](const v1::Layout& l) { return !IsOnDevice(l.offload().optimizer()); },
     "a smaller layout.chunk_bytes brings states in smaller pieces"},
    {v1::WORKSPACE, Lever::kEveryTier, [](const v1::Layout& l) { return l.micro_batch() > 1; },
     "a smaller layout.micro_batch computes with smaller operands"},
}};

// What lies on a host already is not lowered by putting it there. A CPU's device memory is memory
// of the host.
std::string Advice(v1::Tier tier, v1::BufferClass buffer_class, const v1::Layout& layout) {
  const bool is_on_host = tier == v1::HOST || (tier == v1::DEVICE && layout.device() == "cpu");
  const kernels::OptimizerRow* rule = kernels::FindOptimizer(layout.optimizer());
  const bool states = buffer_class == v1::PARAMETER || buffer_class == v1::OPTIMIZER ||
                      buffer_class == v1::GRADIENT;
  // With such a rule they stay on the device, and weights are whole there: there is no ZeRO 3
  // (coordinator/layout/rules.cc).
  const bool wholes = states && rule != nullptr && (rule->whole_matrix || rule->factored);
  if (wholes && buffer_class == v1::PARAMETER) return "";
  for (const Lever& lever : kLevers) {
    if (lever.buffer_class != buffer_class) continue;
    if (wholes && lever.lowers != Lever::kEveryTier) continue;
    if (lever.lowers == Lever::kDevice && (is_on_host || tier != v1::DEVICE)) continue;
    if (lever.lowers == Lever::kHost && !is_on_host) continue;
    if (lever.is_open(layout)) return std::string(lever.advice);
  }
  return "";
}

// Layers that follow each other and hold the same, of what is compared.
struct Group {
  const LayerHeld* layer = nullptr;  // the first
  const LayerHeld* last = nullptr;
  int64_t count = 0;
};
std::vector<Group> GroupsOf(
    const LayerMemory& memory,
    absl::FunctionRef<bool(const LayerHeld& a, const LayerHeld& b)> holds_same) {
  std::vector<Group> groups;
  for (const LayerHeld& layer : memory.layers) {
    const bool is_same = !groups.empty() && layer.layer.starts_with("layer ") &&
                         groups.back().layer->layer.starts_with("layer ") &&
                         holds_same(*groups.back().layer, layer);
    if (!is_same) groups.push_back({.layer = &layer, .last = nullptr, .count = 0});
    groups.back().last = &layer;
    ++groups.back().count;
  }
  return groups;
}
std::string NameOf(const Group& group) {
  if (group.count == 1) return group.layer->layer;
  return absl::StrCat("layers ", group.layer->layer.substr(6), " to ", group.last->layer.substr(6));
}

int64_t HeldBytes(const LayerMemory& memory) {
  int64_t bytes = 0;
  for (const LayerHeld& layer : memory.layers) bytes += Total(layer.bytes);
  return bytes;
}

std::string ClassName(v1::BufferClass buffer_class) {
  return absl::AsciiStrToLower(v1::BufferClass_Name(buffer_class));
}
std::string TierName(v1::Tier tier) {
  return tier == v1::NVME ? "NVMe" : absl::AsciiStrToLower(v1::Tier_Name(tier));
}
std::string Cell(int64_t bytes) { return bytes == 0 ? "-" : FormatBytes(bytes); }

// Classes that hold something in some layer.
std::vector<v1::BufferClass> ClassesOf(const LayerMemory& memory) {
  std::vector<v1::BufferClass> classes;
  for (int i = 0; i < v1::BufferClass_ARRAYSIZE; ++i) {
    const auto holds = [i](const LayerHeld& layer) { return layer.bytes[i] > 0; };
    if (std::any_of(memory.layers.begin(), memory.layers.end(), holds)) {
      classes.push_back(static_cast<v1::BufferClass>(i));
    }
  }
  return classes;
}

void AppendTable(const LayerMemory& memory, std::string* out) {
  const std::vector<v1::BufferClass> classes = ClassesOf(memory);
  std::vector<TextTable::Column> columns(classes.size() + 4, {TextTable::Align::kRight});
  columns.front() = columns.back() = {};
  TextTable table(columns, 2);
  std::vector<std::string> heads = {"layer"};
  for (const v1::BufferClass buffer_class : classes) heads.push_back(ClassName(buffer_class));
  heads.insert(heads.end(), {"each", "at most", ""});
  table.Add(std::move(heads));
  int64_t largest = 1;
  for (const LayerHeld& layer : memory.layers) largest = std::max(largest, Total(layer.bytes));
  for (const LayerGroup& group : LayerGroups(memory)) {
    std::vector<std::string> row = {group.name};
    for (const v1::BufferClass buffer_class : classes) {
      row.push_back(Cell(group.bytes[buffer_class]));
    }
    const int64_t each = Total(group.bytes);
    row.push_back(Cell(each));
    row.push_back(Cell(group.most_bytes));
    row.push_back(std::string(
        static_cast<size_t>(kBarColumns * static_cast<double>(each) / static_cast<double>(largest)),
        '#'));
    table.Add(std::move(row));
  }
  table.AppendTo(out);
}

}  // namespace

std::vector<LayerGroup> LayerGroups(const LayerMemory& memory) {
  const auto is_same = [](const LayerHeld& a, const LayerHeld& b) {
    return a.bytes == b.bytes && a.most_bytes == b.most_bytes;
  };
  std::vector<LayerGroup> groups;
  for (const Group& group : GroupsOf(memory, is_same)) {
    groups.push_back({.name = NameOf(group),
                      .bytes = group.layer->bytes,
                      .most_bytes = group.layer->most_bytes,
                      .count = group.count});
  }
  return groups;
}

std::vector<HotSpot> HotSpots(const LayerMemory& memory, const v1::Layout& layout) {
  const int64_t held = std::max<int64_t>(1, HeldBytes(memory));
  std::vector<HotSpot> spots;
  for (int i = 0; i < v1::BufferClass_ARRAYSIZE; ++i) {
    const auto buffer_class = static_cast<v1::BufferClass>(i);
    const auto is_same = [buffer_class](const LayerHeld& a, const LayerHeld& b) {
      return a.bytes[buffer_class] == b.bytes[buffer_class];
    };
    for (const Group& group : GroupsOf(memory, is_same)) {
      const int64_t bytes = group.layer->bytes[buffer_class] * group.count;
      const double share = static_cast<double>(bytes) / static_cast<double>(held);
      if (share < kHotShare) continue;
      spots.push_back({.layer = NameOf(group),
                       .buffer_class = buffer_class,
                       .bytes = bytes,
                       .share = share,
                       .advice = Advice(memory.tier, buffer_class, layout)});
    }
  }
  std::stable_sort(spots.begin(), spots.end(),
                   [](const HotSpot& a, const HotSpot& b) { return a.bytes > b.bytes; });
  if (spots.size() > kHotSpots) spots.resize(kHotSpots);
  return spots;
}

absl::StatusOr<std::vector<LayerMemory>> LayersOfPrograms(std::span<const v1::Program> programs) {
  std::vector<LayerMemory> all;
  for (const v1::Program& program : programs) {
    ASSIGN_OR_RETURN(const LiveMemory memory, LiveMemory::Create(&program));
    for (int i = 0; i < program.sequences_size(); ++i) {
      if (program.sequences(i).name() != "train") continue;
      for (LayerMemory& one : LayersAtPeak(memory, i)) all.push_back(std::move(one));
    }
  }
  return all;
}

// What the reports of ranks say of an instruction begins with its number.
absl::StatusOr<std::vector<LayerMemory>> LayersOfRank(const v1::RankMemory& rank,
                                                      std::span<const v1::Program> programs,
                                                      const v1::Layout& layout) {
  const uint32_t ranks_of_a_stage = layout.ranks() / std::max(1u, layout.pipeline_parallel());
  const size_t stage = rank.rank() / std::max(1u, ranks_of_a_stage);
  uint32_t instruction = 0;
  if (stage >= programs.size() || std::sscanf(rank.instruction().c_str(), "%u", &instruction) != 1)
    return std::vector<LayerMemory>();  // between executions
  ASSIGN_OR_RETURN(const LiveMemory memory, LiveMemory::Create(&programs[stage]));
  for (int i = 0; i < programs[stage].sequences_size(); ++i) {
    const v1::Sequence& sequence = programs[stage].sequences(i);
    const bool is_in = instruction < static_cast<uint32_t>(sequence.instructions_size());
    if (sequence.name() == rank.sequence() && is_in) return LayersAt(memory, i, instruction);
  }
  return std::vector<LayerMemory>();
}

std::string LayerText(std::span<const LayerMemory> memories, const v1::Layout& layout,
                      const std::string& when) {
  std::string out;
  for (const LayerMemory& memory : memories) {
    absl::StrAppend(&out, out.empty() ? "" : "\n", "memory by layer ", when, ", ",
                    TierName(memory.tier));
    if (layout.pipeline_parallel() > 1) absl::StrAppend(&out, ", stage ", memory.stage);
    absl::StrAppend(&out, ": ", FormatBytes(HeldBytes(memory)), " are live at ", memory.words,
                    "\n");
    AppendTable(memory, &out);
    const std::vector<HotSpot> spots = HotSpots(memory, layout);
    if (!spots.empty()) absl::StrAppend(&out, "  hot spots\n");
    for (const HotSpot& spot : spots) {
      absl::StrAppend(&out, "    ", spot.layer, ", ", ClassName(spot.buffer_class), ": ",
                      FormatBytes(spot.bytes), ", ", PercentText(spot.share),
                      spot.advice.empty() ? "" : "; ", spot.advice, "\n");
    }
  }
  return out;
}

std::string LayerJson(std::span<const LayerMemory> memories, const v1::Layout& layout) {
  Json all = Json::array();
  for (const LayerMemory& memory : memories) {
    Json layers = Json::array(), spots = Json::array();
    for (const LayerHeld& layer : memory.layers) {
      Json bytes = Json::object();
      for (const v1::BufferClass buffer_class : ClassesOf(memory)) {
        bytes[ClassName(buffer_class)] = layer.bytes[buffer_class];
      }
      layers.push_back(
          {{"layer", layer.layer}, {"bytes", bytes}, {"most_bytes", layer.most_bytes}});
    }
    for (const HotSpot& spot : HotSpots(memory, layout)) {
      spots.push_back({{"layer", spot.layer},
                       {"class", ClassName(spot.buffer_class)},
                       {"bytes", spot.bytes},
                       {"share", spot.share},
                       {"advice", spot.advice}});
    }
    all.push_back({{"stage", memory.stage},
                   {"tier", absl::AsciiStrToLower(v1::Tier_Name(memory.tier))},
                   {"instruction", memory.words},
                   {"bytes", HeldBytes(memory)},
                   {"layers", layers},
                   {"hot_spots", spots}});
  }
  return Json({{"layers", all}}).dump(2) + "\n";
}

}  // namespace terrace
