// SPDX-License-Identifier: Apache-2.0
#include "proto/report/plan_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "base/text/wrap.h"
#include "proto/peak_flops.h"
#include "proto/report/layout_text.h"
#include "proto/report/plan_text_memory.h"

namespace terrace {
namespace {

bool HasProductsIn(const v1::Layout& layout, std::string_view precision) {
  const auto& layers = layout.layer_precisions();
  return layout.precision() == precision || layout.head_precision() == precision ||
         std::any_of(layers.begin(), layers.end(), [&](const v1::LayerPrecision& layer) {
           return layer.attention() == precision || layer.mlp() == precision;
         });
}

constexpr TextTable::Column kRight = {.align = TextTable::Align::kRight};

constexpr size_t kColumns = 80;
constexpr size_t kIndent = 2, kNames = 11;  // "  checkpoint"

// A name, and beside it as many lines of words as they need.
void PrintLine(std::string_view name, const std::string& words, std::string* out) {
  constexpr size_t kValue = kIndent + kNames + 2;
  const std::string wrapped = Wrapped(words, kColumns, kValue);
  // The first line begins where the others do.
  absl::StrAppendFormat(out, "%*s%-*s  %s\n", int{kIndent}, "", int{kNames}, Absl(name), wrapped);
}

std::string TrainedText(const v1::ModelSummary& model) {
  if (model.frozen_parameters() == 0) return "";
  const int64_t trained = model.parameters() - model.frozen_parameters();
  const std::string adapters =
      model.adapter_parameters() == 0 ? ""
      : model.adapter_parameters() == trained
          ? " of adapters"
          : absl::StrCat(", ", Grouped(model.adapter_parameters()), " of them of adapters,");
  return absl::StrCat(
      " of which ", Grouped(trained), adapters, " are trained (",
      absl::StrFormat("%.3g", 100.0 * static_cast<double>(trained) / model.parameters()), " %),");
}

void PrintModel(const v1::Plan& plan, std::string* out) {
  const v1::ModelSummary& model = plan.model();
  PrintLine("model",
            absl::StrCat(model.family(), ", ", Grouped(model.parameters()), " parameters,",
                         TrainedText(model), " ", model.layers(), " layers x ", model.hidden(),
                         ", ", model.heads(), " heads (", model.kv_heads(), " kv) x ",
                         model.head_dim(), ", vocabulary ", Grouped(model.vocabulary())),
            out);
}

void PrintLayout(const v1::Plan& plan, std::string* out) {
  const v1::Layout& layout = plan.layout();
  PrintLine("layout", LayoutText(layout), out);
  PrintLine(
      "ranks",
      absl::StrCat(layout.ranks(), " on ", layout.nodes(), " node", layout.nodes() == 1 ? "" : "s",
                   layout.threads_per_rank() == 0
                       ? ""
                       : absl::StrCat(", ", layout.threads_per_rank(), " thread",
                                      layout.threads_per_rank() == 1 ? "" : "s", " each")),
      out);
  const int64_t rank_sequences = int64_t{layout.micro_batch()} * layout.micro_batches();
  const int64_t tokens = rank_sequences * layout.data_parallel() * plan.model().sequence_length();
  PrintLine("batch",
            absl::StrCat(layout.micro_batches(), " micro-batches of ", layout.micro_batch(), " x ",
                         Grouped(plan.model().sequence_length()), " tokens a rank, ",
                         Grouped(tokens), " tokens a step"),
            out);
}

void PrintGroups(const v1::Plan& plan, std::string* out) {
  if (plan.parameter_groups().empty()) return;
  absl::StrAppend(out, "\nparameter groups\n");
  const bool rules = std::any_of(plan.parameter_groups().begin(), plan.parameter_groups().end(),
                                 [](const auto& line) { return !line.rule().empty(); });
  TextTable table({{.width_max = 40}, kRight, kRight, kRight, kRight, {}}, 2);
  table.Add({"tensors", "", "parameters", "lr x", "decay", rules ? "rule" : ""});
  for (const v1::ParameterGroupLine& line : plan.parameter_groups()) {
    const std::string rule = !rules                ? ""
                             : line.rule().empty() ? plan.layout().optimizer()
                                                   : line.rule();
    const std::string rate = absl::StrFormat("%.3g", line.max_lr_scale());
    const std::string name = !line.match().empty() ? line.match()
                             : line.rule().empty() ? "all others"
                                                   : "tables, norms and biases";
    if (line.frozen()) {
      table.Add({name, Grouped(line.tensors()), Grouped(line.parameters()), "frozen", "", ""});
      continue;
    }
    table.Add({name, Grouped(line.tensors()), Grouped(line.parameters()),
               line.min_lr_scale() == line.max_lr_scale()
                   ? rate
                   : absl::StrFormat("%.3g to %s", line.min_lr_scale(), rate),
               absl::StrCat(line.weight_decay()), rule});
  }
  table.AppendTo(out);
}

// What the tiers cost, where something is off the device.
void PrintOffload(const v1::Plan& plan, std::string* out) {
  std::string words;
  if (plan.break_even_tokens() > 0) {
    absl::StrAppend(&words, "the offload costs at most 10 % of a step from ",
                    Grouped(std::llround(plan.break_even_tokens())), " tokens a step on\n");
  }
  if (plan.has_nvme()) {
    const v1::NvmePlan& nvme = plan.nvme();
    absl::StrAppendFormat(&words, "NVMe: a rank reads %s and writes %s a step, %.2f TB a day",
                          FormatBytes(nvme.read_bytes_per_step()),
                          FormatBytes(nvme.write_bytes_per_step()),
                          nvme.write_bytes_per_day() * 1e-12);
    if (nvme.drive_life_days() > 0) {
      absl::StrAppendFormat(&words, "; the drives last %s days",
                            Grouped(std::llround(nvme.drive_life_days())));
    }
  }
  while (absl::EndsWith(words, "\n")) words.pop_back();
  if (!words.empty()) absl::StrAppend(out, "  ", Wrapped(words, kColumns, kIndent), "\n");
}

void PrintTime(const v1::Plan& plan, std::string* out) {
  const v1::TimeEstimate& time = plan.time();
  absl::StrAppend(out, "\ntime\n");
  TextTable table({{}, kRight, kRight, {.width_max = 60}}, 2);
  const double step = std::max(time.step_seconds(), 1e-12);
  const auto part = [&](const char* name, double seconds, std::string words = "") {
    table.Add({name, SecondsText(seconds), PercentText(seconds / step), std::move(words)});
  };
  table.Add({"step", SecondsText(time.step_seconds()), "",
             absl::StrCat(Grouped(std::llround(time.tokens_per_second())), " tokens/s, MFU ",
                          PercentText(time.mfu()))});
  part("compute", time.compute_seconds(),
       time.tflops_per_device() > 0
           ? absl::StrFormat("%.4g TFLOP/s of the model a device", time.tflops_per_device())
           : "");
  part("exposed communication", time.exposed_communication_seconds());
  if (plan.break_even_tokens() > 0) part("exposed offload", time.exposed_offload_seconds());
  part("optimizer", time.optimizer_seconds());
  if (plan.layout().pipeline_parallel() > 1) {
    table.Add({"bubble", "", PercentText(time.bubble_ratio()), "of the computation"});
  }
  table.Add({"whole job", SecondsText(time.total_seconds())});
  table.AppendTo(out);
  const std::string expected = UncertaintyText(plan);
  if (!expected.empty()) absl::StrAppend(out, "  ", Wrapped(expected, kColumns, kIndent), "\n");
  PrintOffload(plan, out);
  const v1::HardwareProfile& profile = plan.profile();
  const bool tf32 = HasProductsIn(plan.layout(), "tf32") && profile.tf32_flops_per_second() > 0;
  const bool fp8 = HasProductsIn(plan.layout(), "fp8") && profile.fp8_flops_per_second() > 0;
  const bool fp16 = plan.layout().precision() == "fp16" && !profile.shared_cores() &&
                    PeakFlops(profile, "fp16") != profile.bf16_flops_per_second();
  const std::string rates =
      absl::StrCat("on ", profile.name(), profile.measured() ? " (measured): " : " (catalogue): ",
                   RateText(profile.f32_flops_per_second(), "FLOP"), " f32, ",
                   tf32 ? RateText(profile.tf32_flops_per_second(), "FLOP") + " tf32, " : "",
                   fp16 ? RateText(PeakFlops(profile, "fp16"), "FLOP") + " fp16, "
                        : RateText(profile.bf16_flops_per_second(), "FLOP") + " bf16, ",
                   fp8 ? RateText(profile.fp8_flops_per_second(), "FLOP") + " fp8, " : "",
                   RateText(profile.memory_bytes_per_second(), "B"), " memory, ",
                   RateText(profile.link_bytes_per_second(), "B"), " link");
  absl::StrAppend(out, "  ", Wrapped(rates, kColumns, kIndent), "\n");
  if (profile.doubt().empty()) return;
  absl::StrAppend(
      out, "  ",
      Wrapped(absl::StrCat("these rates are in doubt: ", profile.doubt()), kColumns, kIndent),
      "\n");
}

// Each with its numbers, what differs, and why it was not chosen; beside a plan that does not fit,
// the changes that would.
void PrintAlternatives(const v1::Plan& plan, std::string* out) {
  const auto shown = [](const v1::Alternative& other) { return other.compiled(); };
  if (std::none_of(plan.alternatives().begin(), plan.alternatives().end(), shown)) return;
  absl::StrAppend(out, plan.fits() ? "\nalternatives, and why not" : "\nwhat would fit");
  if (plan.search().candidates() > 0) {
    absl::StrAppend(out, " (", Grouped(plan.search().candidates()), " layouts compared, ",
                    Grouped(plan.search().compiled()), " compiled)");
  }
  *out += "\n";
  int number = 0;
  for (const v1::Alternative& other : plan.alternatives()) {
    if (!shown(other)) continue;  // by closed form: in the JSON
    constexpr size_t kText = 5;
    const std::string differences = absl::StrJoin(Differences(plan.layout(), other.layout()), ", ");
    std::string bytes = FormatBytes(other.device_bytes());
    if (other.host_bytes() > 0) absl::StrAppend(&bytes, ", host ", FormatBytes(other.host_bytes()));
    if (other.nvme_bytes() > 0) absl::StrAppend(&bytes, ", NVMe ", FormatBytes(other.nvme_bytes()));
    absl::StrAppendFormat(out, "%*d  %s a step, device %s\n", int{kText - 2}, ++number,
                          SecondsText(other.step_seconds()), bytes);
    for (const std::string& words :
         {differences.empty() ? std::string("the same layout") : differences, other.note()}) {
      if (words.empty()) continue;
      absl::StrAppend(out, std::string(kText, ' '), Wrapped(words, kColumns, kText), "\n");
    }
  }
}

}  // namespace

std::string UncertaintyText(const v1::Plan& plan) {
  if (!plan.time().has_uncertainty()) return "";
  const v1::Uncertainty& uncertainty = plan.time().uncertainty();
  std::string text = absl::StrFormat(
      "a step is expected to take %s to %s: that near to their plans were %.0f %% of %d published "
      "runs that the rates were not fitted to",
      SecondsText(uncertainty.low_seconds()), SecondsText(uncertainty.high_seconds()),
      100 * uncertainty.coverage(), uncertainty.runs());
  if (uncertainty.rate().empty()) return text;
  absl::StrAppendFormat(&text,
                        "; it hangs on the rate of %s most: 10 %% less of it makes a step about "
                        "%.0f %% longer",
                        uncertainty.rate(), 100 * (std::pow(0.9, -uncertainty.rate_share()) - 1));
  return text;
}

std::string PlanText(const v1::Plan& plan) {
  std::string out = absl::StrCat("plan ", plan.job(), "\n");
  PrintModel(plan, &out);
  PrintLayout(plan, &out);
  PrintLine("checkpoint", FormatBytes(plan.checkpoint_bytes()), &out);
  const std::string programs =
      absl::StrJoin(plan.program_sha256(), " ", [](std::string* text, const std::string& hash) {
        absl::StrAppend(text, hash.substr(0, 16));
      });
  if (!programs.empty())
    PrintLine(plan.program_sha256_size() > 1 ? "programs" : "program", programs, &out);
  PrintLine("train step", absl::StrCat(plan.instructions(), " instructions"), &out);
  out += PlanMemoryText(plan);
  PrintTime(plan, &out);
  PrintGroups(plan, &out);
  if (!plan.binding_constraint().empty()) {
    absl::StrAppend(&out, "\nlimit  ", Wrapped(plan.binding_constraint(), kColumns, 7), "\n");
  }
  if (!plan.remarks().empty()) out += '\n';
  for (const std::string& remark : plan.remarks()) {
    absl::StrAppend(&out, "note   ", Wrapped(remark, kColumns, 7), "\n");
  }
  PrintAlternatives(plan, &out);
  return out;
}

}  // namespace terrace
