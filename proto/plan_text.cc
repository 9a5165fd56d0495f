// SPDX-License-Identifier: Apache-2.0
#include "proto/plan_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/program_text.h"
#include "proto/text_table.h"

namespace terrace {
namespace {

constexpr TextTable::Column kRight = {.align = TextTable::Align::kRight};

// 124439808 -> "124,439,808".
std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  const int first = number < 0 ? 1 : 0;
  for (int i = static_cast<int>(digits.size()) - 3; i > first; i -= 3) digits.insert(i, 1, ',');
  return digits;
}

std::string Seconds(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1e3);
  if (seconds < 120) return absl::StrFormat("%.2f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.1f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f days", seconds / 86400);
}

std::string Rate(double per_second, const char* unit) {
  if (per_second >= 1e12) return absl::StrFormat("%.2f T%s/s", per_second / 1e12, unit);
  return absl::StrFormat("%.1f G%s/s", per_second / 1e9, unit);
}

std::string Percent(double ratio) { return absl::StrFormat("%.1f %%", 100 * ratio); }

void PrintModel(const v1::Plan& plan, TextTable* table) {
  const v1::ModelSummary& model = plan.model();
  table->Add(
      {"model", absl::StrCat(model.family(), ", ", Grouped(model.parameters()), " parameters, ",
                             model.layers(), " layers x ", model.hidden(), ", ", model.heads(),
                             " heads (", model.kv_heads(), " kv) x ", model.head_dim(),
                             ", vocabulary ", Grouped(model.vocabulary()))});
}

std::string StagesText(const v1::Layout& layout) {
  std::string text = absl::StrCat("pp ", layout.pipeline_parallel());
  if (layout.pipeline_parallel() <= 1) return text;
  absl::StrAppend(&text, " (", layout.schedule().empty() ? "1f1b" : layout.schedule());
  if (layout.interleave() > 1) absl::StrAppend(&text, ", ", layout.interleave(), " chunks a stage");
  if (layout.stage_layers_size() > 0) {
    absl::StrAppend(&text, ", layers ", absl::StrJoin(layout.stage_layers(), " "));
  }
  return text + ")";
}

std::string ZeroText(const v1::Layout& layout) {
  std::string text = absl::StrCat("zero ", layout.zero_stage());
  std::string details;
  if (layout.shard_size() > 0)
    absl::StrAppend(&details, "shards over ", layout.shard_size(), " ranks");
  if (layout.persistent_parameters() > 0) {
    absl::StrAppend(&details, details.empty() ? "" : ", ", "whole below ",
                    Grouped(layout.persistent_parameters()), " elements");
  }
  return details.empty() ? text : absl::StrCat(text, " (", details, ")");
}

// "3 block, 9 none".
std::string Runs(const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::string text;
  for (int i = 0, end = 0; i < names.size(); i = end) {
    while (end < names.size() && names[end] == names[i]) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ", ", end - i, " ", names[i]);
  }
  return text;
}

std::string RecomputeText(const v1::Layout& layout) {
  std::string text = absl::StrCat("recompute ", layout.recompute());
  if (layout.recompute_every() > 0)
    absl::StrAppend(&text, " ", layout.recompute_every(), " layers");
  if (layout.recompute_layers_size() > 0) {
    absl::StrAppend(&text, " (by layer: ", Runs(layout.recompute_layers()), ")");
  }
  return text;
}

// What is not all on the device.
std::string OffloadText(const v1::Offload& offload) {
  std::string text;
  const auto add = [&text](const char* name, const v1::TierShares& shares) {
    if (shares.host() == 0 && shares.nvme() == 0) return;
    absl::StrAppend(&text, text.empty() ? ", offload " : ", ", name, " ", TierSharesText(shares));
  };
  add("parameter", offload.parameter());
  add("gradient", offload.gradient());
  add("optimizer", offload.optimizer());
  add("activation", offload.activation());
  return text;
}

// Sizes always, how they are used where there is a choice.
std::string LayoutText(const v1::Layout& layout) {
  std::string text = absl::StrCat("dp ", layout.data_parallel(), ", tp ", layout.tensor_parallel(),
                                  layout.sequence_parallel() ? " + sequence" : "", ", ",
                                  StagesText(layout), ", cp ", layout.context_parallel());
  if (layout.context_parallel() > 1) {
    absl::StrAppend(&text, " (", layout.context_type().empty() ? "ring" : layout.context_type(),
                    ")");
  }
  absl::StrAppend(&text, ", ", ZeroText(layout), ", ", RecomputeText(layout), ", ",
                  layout.precision());
  if (!layout.communication_dtype().empty() && layout.communication_dtype() != "fp32") {
    absl::StrAppend(&text, ", gradients sent in ", layout.communication_dtype());
  }
  text += OffloadText(layout.offload());
  if (layout.allocator() == "caching") text += ", caching allocator";
  return text;
}

void PrintLayout(const v1::Plan& plan, TextTable* table) {
  const v1::Layout& layout = plan.layout();
  table->Add(
      {"layout", absl::StrCat(layout.ranks(), " rank", layout.ranks() == 1 ? "" : "s", " on ",
                              layout.nodes(), " node", layout.nodes() == 1 ? "" : "s", ", ",
                              layout.threads_per_rank(), " threads each: ", LayoutText(layout))});
  const int64_t rank_sequences = int64_t{layout.micro_batch()} * layout.micro_batches();
  const int64_t tokens = rank_sequences * layout.data_parallel() * plan.model().sequence_length();
  table->Add(
      {"batch", absl::StrCat(layout.micro_batches(), " micro-batches of ", layout.micro_batch(),
                             " x ", Grouped(plan.model().sequence_length()), " tokens a rank, ",
                             Grouped(tokens), " tokens a step")});
}

std::string TierName(v1::Tier tier) { return absl::AsciiStrToLower(v1::Tier_Name(tier)); }

std::string MemoryName(const v1::MemoryLine& line) {
  if (line.class_() == v1::BUFFER_CLASS_UNSPECIFIED) return "gaps";
  if (line.class_() == v1::EXTERNAL) return "outside the arena";
  return absl::AsciiStrToLower(v1::BufferClass_Name(line.class_()));
}

void PrintMemory(const v1::StageMemory& memory, int stages, std::string* out) {
  absl::StrAppend(out, "\nmemory of a rank at the peak");
  if (stages > 1) absl::StrAppend(out, ", stage ", memory.stage());
  if (memory.tier() > v1::DEVICE) absl::StrAppend(out, ", ", TierName(memory.tier()));
  absl::StrAppend(out, "\n");
  const int64_t total = memory.arena_bytes() + memory.external_bytes();
  TextTable table({{}, {}, kRight, kRight, {}}, 2);
  for (const v1::MemoryLine& line : memory.lines()) {
    const double share = total == 0 ? 0 : static_cast<double>(line.bytes()) / total;
    table.Add({TierName(line.tier()), MemoryName(line), FormatBytes(line.bytes()), Percent(share),
               std::string(static_cast<size_t>(std::lround(share * 40)), '#')});
  }
  table.Add({"", "total", FormatBytes(total), "",
             memory.limit_bytes() == 0 ? "no limit"
                                       : absl::StrCat("of ", FormatBytes(memory.limit_bytes()))});
  table.AppendTo(out);
  const double over =
      memory.lower_bound_bytes() == 0
          ? 0
          : static_cast<double>(memory.arena_bytes()) / memory.lower_bound_bytes() - 1;
  absl::StrAppendFormat(out, "  arena %s bytes, %.2f %% over the lower bound\n",
                        Grouped(memory.arena_bytes()), 100 * over);
}

// What the tiers cost, where something is off the device.
void PrintOffload(const v1::Plan& plan, std::string* out) {
  if (plan.break_even_tokens() > 0) {
    absl::StrAppend(out, "  the offload costs at most 10 % of a step from ",
                    Grouped(std::llround(plan.break_even_tokens())), " tokens a step on\n");
  }
  if (!plan.has_nvme()) return;
  const v1::NvmePlan& nvme = plan.nvme();
  absl::StrAppendFormat(out, "  NVMe: a rank reads %s and writes %s a step, %.2f TB a day",
                        FormatBytes(nvme.read_bytes_per_step()),
                        FormatBytes(nvme.write_bytes_per_step()),
                        nvme.write_bytes_per_day() * 1e-12);
  if (nvme.drive_life_days() > 0) {
    absl::StrAppendFormat(out, "; the drives last %s days",
                          Grouped(std::llround(nvme.drive_life_days())));
  }
  absl::StrAppend(out, "\n");
}

void PrintTime(const v1::Plan& plan, std::string* out) {
  const v1::TimeEstimate& time = plan.time();
  absl::StrAppend(out, "\ntime\n");
  TextTable table({{}, kRight, {}}, 2);
  table.Add({"step", Seconds(time.step_seconds()),
             absl::StrCat(Grouped(std::llround(time.tokens_per_second())), " tokens/s, MFU ",
                          Percent(time.mfu()))});
  table.Add({"compute", Seconds(time.compute_seconds())});
  table.Add({"exposed communication", Seconds(time.exposed_communication_seconds())});
  if (plan.break_even_tokens() > 0) {
    table.Add({"exposed offload", Seconds(time.exposed_offload_seconds())});
  }
  table.Add({"optimizer", Seconds(time.optimizer_seconds())});
  table.Add({"whole job", Seconds(time.total_seconds())});
  table.AppendTo(out);
  const v1::HardwareProfile& profile = plan.profile();
  PrintOffload(plan, out);
  absl::StrAppend(out, "  on ", profile.name(),
                  profile.measured() ? " (measured): " : " (catalogue): ",
                  Rate(profile.f32_flops_per_second(), "FLOP"), " f32, ",
                  Rate(profile.bf16_flops_per_second(), "FLOP"), " bf16, ",
                  Rate(profile.memory_bytes_per_second(), "B"), " memory, ",
                  Rate(profile.link_bytes_per_second(), "B"), " link\n");
}

void PrintAlternatives(const v1::Plan& plan, std::string* out) {
  const auto shown = [](const v1::Alternative& other) {
    return other.compiled() || !other.pareto();
  };
  if (std::none_of(plan.alternatives().begin(), plan.alternatives().end(), shown)) return;
  absl::StrAppend(out, "\nalternatives\n");
  TextTable table({{.width_max = 80}, kRight, kRight, kRight, kRight, {}}, 2);
  table.Add({"layout", "micro_batch", "micro_batches", "arena", "step", "note"});
  const std::string chosen = LayoutText(plan.layout());
  for (const v1::Alternative& other : plan.alternatives()) {
    if (!shown(other)) continue;  // by closed form: in the JSON
    const std::string layout = LayoutText(other.layout());
    table.Add({layout == chosen ? "the same" : layout, absl::StrCat(other.layout().micro_batch()),
               absl::StrCat(other.layout().micro_batches()), FormatBytes(other.arena_bytes()),
               Seconds(other.step_seconds()), other.note()});
  }
  table.AppendTo(out);
}

}  // namespace

std::string TierSharesText(const v1::TierShares& shares) {
  std::vector<std::pair<const char*, double>> parts;
  for (const auto& part : {std::pair("device", shares.device()), std::pair("host", shares.host()),
                           std::pair("nvme", shares.nvme())}) {
    if (part.second > 0) parts.push_back(part);
  }
  if (parts.size() == 1) return parts[0].first;
  return absl::StrJoin(parts, " + ", [](std::string* out, const auto& part) {
    absl::StrAppendFormat(out, "%s %.3g %%", part.first, 100 * part.second);
  });
}

std::string PlanText(const v1::Plan& plan) {
  std::string out = absl::StrCat("plan ", plan.job(), "\n");
  TextTable head({{}, {.width_max = 200}}, 2);
  PrintModel(plan, &head);
  PrintLayout(plan, &head);
  head.Add({"checkpoint", FormatBytes(plan.checkpoint_bytes())});
  for (int stage = 0; stage < plan.program_sha256_size(); ++stage) {
    head.Add({"program", plan.program_sha256(stage).substr(0, 16)});
  }
  head.Add({"train step", absl::StrCat(plan.instructions(), " instructions")});
  head.AppendTo(&out);
  int stages = 0;
  for (const v1::StageMemory& memory : plan.memory()) {
    stages = std::max(stages, static_cast<int>(memory.stage()) + 1);
  }
  for (const v1::StageMemory& memory : plan.memory()) PrintMemory(memory, stages, &out);
  PrintTime(plan, &out);
  if (!plan.binding_constraint().empty())
    absl::StrAppend(&out, "\nlimit  ", plan.binding_constraint(), "\n");
  PrintAlternatives(plan, &out);
  return out;
}

}  // namespace terrace
