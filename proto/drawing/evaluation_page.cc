// SPDX-License-Identifier: Apache-2.0
#include "proto/drawing/evaluation_page.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "proto/drawing/evaluation_chart.h"
#include "proto/drawing/html_table.h"
#include "proto/drawing/page.h"
#include "proto/drawing/svg.h"
#include "proto/report/evaluation_words.h"

namespace terrace {
namespace {

std::string Tile(const char* name, const std::string& value, const std::string& words) {
  return absl::StrCat("<div><dt>", name, "</dt><dd>", EscapeXml(value), "<small>", EscapeXml(words),
                      "</small></dd></div>\n");
}

std::string SizeWords(const v1::LargestSize& none) {
  const std::string without = SizeText(none);
  return without.empty() ? "as planned" : absl::StrCat("without techniques ", without);
}

std::string Tiles(const v1::Evaluation& evaluation) {
  const v1::EvaluatedRow &none = evaluation.none(), &planned = evaluation.planned();
  const int64_t limit = evaluation.device_limit_bytes();
  const bool known = none.impossible().empty();
  std::string tiles = "<dl class=\"tiles\">\n";
  tiles += Tile("without techniques", known ? FormatBytes(none.device_bytes()) : "cannot be",
                !known        ? "see below"
                : none.fits() ? "a rank; fits"
                              : "a rank; does not fit");
  tiles += Tile("as planned", FormatBytes(planned.device_bytes()),
                absl::StrCat(limit > 0 ? absl::StrCat("of ", FormatBytes(limit)) : "a rank",
                             planned.fits() ? "; fits" : "; does not fit"));
  tiles += Tile(
      "step as planned", SecondsText(planned.time().step_seconds()),
      absl::StrCat(Grouped(std::llround(planned.time().tokens_per_second())), " tokens a second"));
  if (planned.time_ratio() > 0) {
    tiles +=
        Tile("price of the plan", ChangeText(planned.time_ratio()), "time for the same tokens");
  }
  if (planned.has_micro_batch()) {
    tiles +=
        Tile("largest micro-batch", SizeText(planned.micro_batch()), SizeWords(none.micro_batch()));
  }
  if (planned.has_sequence_length()) {
    tiles += Tile("longest sequence", SizeText(planned.sequence_length()),
                  SizeWords(none.sequence_length()));
  }
  return tiles + "</dl>\n";
}

std::string FindingsSection(const v1::Evaluation& evaluation) {
  const std::vector<std::string> findings = Findings(evaluation);
  std::string section = absl::StrCat("<h2>What was found</h2>\n<p class=\"why",
                                     evaluation.planned().fits() ? "" : " refused", "\">");
  return absl::StrCat(section, EscapeXml(absl::StrJoin(findings, "\n")), "</p>\n");
}

std::string TechniquesSection(const v1::Evaluation& evaluation) {
  const std::vector<const v1::EvaluatedRow*> rows = PlannedRows(evaluation);
  HtmlTable table("", {false, true, true, true, true, true, true, true, true, true});
  table.Head({"technique", "device", "change", "host", "NVMe", "step", "tokens/s", "time",
              "largest micro-batch", "longest sequence"});
  const auto bytes = [](int64_t value) { return value == 0 ? "" : FormatBytes(value); };
  for (const v1::EvaluatedRow* row : rows) {
    table.Add({absl::StrCat("<b>", EscapeXml(RowName(*row)), "</b><br/>", EscapeXml(row->meaning()),
                            row->changes_training() ? " It changes what is learned." : "",
                            row->fits() ? "" : " <b>Does not fit.</b>"),
               FormatBytes(row->device_bytes()), ChangeText(row->memory_ratio()),
               bytes(row->host_bytes()), bytes(row->nvme_bytes()),
               SecondsText(row->time().step_seconds()),
               Grouped(std::llround(row->time().tokens_per_second())),
               ChangeText(row->time_ratio()),
               row->has_micro_batch() ? SizeText(row->micro_batch()) : "",
               row->has_sequence_length() ? SizeText(row->sequence_length()) : ""});
  }
  return absl::StrCat(
      "<section><h2>What each technique saves, and costs</h2>\n<p>Each alone, against none. Red: "
      "does not fit; its pale time is what a device with enough memory would take. Steps of ",
      Grouped(evaluation.global_batch()), " sequences of ",
      Grouped(evaluation.model().sequence_length()), " tokens in micro-batches of ",
      evaluation.micro_batch(), "; longest sequences at micro-batch 1.</p>\n",
      Wide(SvgElement(TechniquesChart(evaluation), "Memory and time of each technique")),
      Wide(table.Finish()), "</section>\n");
}

std::string MemorySection(const v1::Evaluation& evaluation) {
  HtmlTable table("", {false, true, true, true, true, true});
  table.Head({"", "device", "of the budget", "arena over its bound", "states a parameter",
              "device a parameter"});
  for (const v1::EvaluatedRow* row : PlannedRows(evaluation)) {
    if (!row->group().empty()) break;
    const int64_t limit = evaluation.device_limit_bytes();
    table.Add(
        {EscapeXml(RowName(*row)), FormatBytes(row->device_bytes()),
         limit > 0
             ? PercentText(static_cast<double>(row->device_bytes()) / static_cast<double>(limit))
             : "no limit",
         row->packing_ratio() > 0 ? absl::StrFormat("%.2f %%", 100 * (row->packing_ratio() - 1))
                                  : "",
         absl::StrFormat("%.2f bytes", row->state_bytes_per_parameter()),
         absl::StrFormat("%.2f bytes", row->device_bytes_per_parameter())});
  }
  return absl::StrCat(
      "<section><h2>What holds the memory</h2>\n<p>Of the rank that needs most, at its peak. "
      "States "
      "are weights, gradients and the optimizer's, on all tiers; the bound is what no packing can "
      "go below.</p>\n",
      Wide(SvgElement(HeldChart(evaluation), "Device memory by class")), Wide(table.Finish()),
      "</section>\n");
}

std::string ImpossibleSection(const v1::Evaluation& evaluation) {
  const std::vector<NotPossible> all = ImpossibleRows(evaluation);
  if (all.empty()) return "";
  HtmlTable table("", {false, false});
  table.Head({"technique", "why not"});
  for (const NotPossible& one : all) {
    table.Add({EscapeXml(absl::StrJoin(one.names, ", ")), EscapeXml(one.reason)});
  }
  return absl::StrCat("<section><h2>Left out, and why</h2>\n", Wide(table.Finish()),
                      "</section>\n");
}

std::string Words(const v1::Evaluation& evaluation) {
  const v1::ModelSummary& model = evaluation.model();
  const v1::HardwareProfile& profile = evaluation.profile();
  return absl::StrCat(model.family(), ", ", Grouped(model.parameters()), " parameters, ",
                      evaluation.precision(), ", on ", evaluation.ranks(),
                      evaluation.ranks() == 1 ? " rank" : " ranks", " of ", profile.name(),
                      profile.measured() ? " (measured)" : " (catalogue)");
}

}  // namespace

std::string EvaluationPage(const v1::Evaluation& evaluation) {
  std::string remarks;
  for (const std::string& remark : evaluation.remarks())
    absl::StrAppend(&remarks, "<p>Note: ", EscapeXml(remark), "</p>\n");
  return absl::StrCat(
      PageStart(absl::StrCat("Evaluation of ", evaluation.job())), "<h1>Evaluation of ",
      EscapeXml(evaluation.job()), "</h1>\n<p>", EscapeXml(Words(evaluation)), "</p>\n",
      Tiles(evaluation), FindingsSection(evaluation), TechniquesSection(evaluation),
      MemorySection(evaluation), ImpossibleSection(evaluation), remarks, "<p>",
      Grouped(evaluation.plans()), " plans compiled and simulated",
      evaluation.complete() ? "" : "; time ended before all was tried", ".</p>\n", PageEnd());
}

}  // namespace terrace
