// SPDX-License-Identifier: Apache-2.0
#include "proto/report/evaluation_text.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "base/text/wrap.h"
#include "proto/report/evaluation_words.h"
#include "proto/report/message_json.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr TextTable::Column kRight = {.align = TextTable::Align::kRight};
constexpr size_t kColumns = 80, kIndent = 2;

std::string Paragraph(const std::string& words) {
  return absl::StrCat(std::string(kIndent, ' '), Wrapped(words, kColumns, kIndent), "\n");
}

std::string Head(const v1::Evaluation& evaluation) {
  const v1::ModelSummary& model = evaluation.model();
  const v1::HardwareProfile& profile = evaluation.profile();
  return absl::StrCat(
      "evaluation of ", evaluation.job(), "\n",
      Paragraph(absl::StrCat(model.family(), ", ", Grouped(model.parameters()), " parameters, ",
                             evaluation.precision(), ", sequences of ",
                             Grouped(model.sequence_length()), " tokens")),
      Paragraph(absl::StrCat(
          evaluation.ranks(), evaluation.ranks() == 1 ? " rank on " : " ranks on ",
          evaluation.nodes(), evaluation.nodes() == 1 ? " node" : " nodes",
          evaluation.device_limit_bytes() > 0
              ? absl::StrCat(" with ", FormatBytes(evaluation.device_limit_bytes()), " each")
              : "",
          ", ", profile.name(), profile.measured() ? " (measured)" : " (catalogue)")),
      "\n");
}

// A heading where a group begins, and the row's own name.
void AddGroup(const v1::EvaluatedRow& row, std::string* group, TextTable* table) {
  if (row.group() != *group && !row.group().empty()) table->Add({row.group()});
  *group = row.group();
}
std::string Indented(const v1::EvaluatedRow& row) {
  return row.group().empty() ? row.name() : "  " + row.name();
}

std::string CostTable(const v1::Evaluation& evaluation) {
  TextTable table({{.width_max = 16}, kRight, kRight, kRight, kRight, kRight, kRight}, kIndent);
  table.Add({"", "device", "change", "off device", "step", "tokens/s", "time"});
  std::string group;
  bool any_unfit = false;
  for (const v1::EvaluatedRow* row : PlannedRows(evaluation)) {
    AddGroup(*row, &group, &table);
    any_unfit |= !row->fits();
    const int64_t elsewhere = row->host_bytes() + row->nvme_bytes();
    const bool first = row == &evaluation.none();
    table.Add({Indented(*row), FormatBytes(row->device_bytes()) + (row->fits() ? " " : "!"),
               first ? "" : ChangeText(row->memory_ratio()),
               elsewhere > 0 ? FormatBytes(elsewhere) : "", SecondsText(row->time().step_seconds()),
               Grouped(std::llround(row->time().tokens_per_second())),
               first ? "" : ChangeText(row->time_ratio())});
  }
  std::string text = "\ncost of each technique, against none\n";
  table.AppendTo(&text);
  if (any_unfit) {
    text += Paragraph("! does not fit: its time is what a device with enough memory would take");
  }
  return text;
}

std::string SizeTable(const v1::Evaluation& evaluation) {
  TextTable table({{.width_max = 16}, kRight, kRight}, kIndent);
  table.Add({"", "micro-batch", "sequence length"});
  std::string group;
  for (const v1::EvaluatedRow* row : PlannedRows(evaluation)) {
    if (!row->has_sequence_length()) continue;
    AddGroup(*row, &group, &table);
    table.Add({Indented(*row), row->has_micro_batch() ? SizeText(row->micro_batch()) : "",
               SizeText(row->sequence_length())});
  }
  std::string text = "\nlargest sizes that fit (sequences at micro-batch 1)\n";
  table.AppendTo(&text);
  return text;
}

std::string ClassName(v1::BufferClass buffer_class) {
  if (buffer_class == v1::BUFFER_CLASS_UNSPECIFIED) return "gaps";
  if (buffer_class == v1::EXTERNAL) return "outside the arena";
  return absl::AsciiStrToLower(v1::BufferClass_Name(buffer_class));
}

std::string Ratio(double ratio) {
  return ratio > 0 ? absl::StrFormat("%.2f %%", 100 * (ratio - 1)) : "";
}

// What holds the memory, without techniques and as planned.
std::string MemoryTable(const v1::Evaluation& evaluation) {
  const std::vector<const v1::EvaluatedRow*> rows = {&evaluation.none(), &evaluation.planned()};
  std::vector<std::vector<std::string>> lines;
  const auto cell = [&](const std::string& name, size_t column, std::vector<std::string> values) {
    auto found =
        std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line[0] == name; });
    if (found == lines.end()) found = lines.insert(lines.end(), {name, "", "", "", ""});
    std::copy(values.begin(), values.end(), found->begin() + 1 + 2 * static_cast<int>(column));
  };
  for (size_t column = 0; column < rows.size(); ++column) {
    const v1::EvaluatedRow& row = *rows[column];
    if (!row.impossible().empty()) continue;
    for (const HeldBytes& held : HeldOf(row)) {
      const bool device = held.tier == v1::DEVICE;
      const std::string name =
          absl::StrCat(ClassName(held.buffer_class),
                       device ? "" : " on " + absl::AsciiStrToLower(v1::Tier_Name(held.tier)));
      cell(name, column,
           {FormatBytes(held.bytes),
            device ? PercentText(static_cast<double>(held.bytes) /
                                 static_cast<double>(std::max<int64_t>(1, row.device_bytes())))
                   : ""});
    }
  }
  std::stable_partition(lines.begin(), lines.end(),
                        [](const auto& line) { return line[0].find(" on ") == std::string::npos; });
  for (size_t column = 0; column < rows.size(); ++column) {
    const v1::EvaluatedRow& row = *rows[column];
    if (!row.impossible().empty()) continue;
    const int64_t limit = evaluation.device_limit_bytes();
    cell("device in all", column,
         {FormatBytes(row.device_bytes()),
          limit > 0
              ? PercentText(static_cast<double>(row.device_bytes()) / static_cast<double>(limit)) +
                    " of it"
              : ""});
    cell("arena over its bound", column, {"", Ratio(row.packing_ratio())});
    cell("states a parameter", column,
         {absl::StrFormat("%.2f B", row.state_bytes_per_parameter()), ""});
    cell("device a parameter", column,
         {absl::StrFormat("%.2f B", row.device_bytes_per_parameter()), ""});
  }
  TextTable table({{}, kRight, kRight, kRight, kRight}, kIndent);
  table.Add({"", "none", "", "as planned", ""});
  for (const auto& line : lines) table.Add(line);
  std::string text = "\nmemory of the rank that needs most, at the peak\n";
  table.AppendTo(&text);
  return text;
}

std::string Impossible(const v1::Evaluation& evaluation) {
  const std::vector<NotPossible> all = ImpossibleRows(evaluation);
  if (all.empty()) return "";
  std::string text = "\nleft out, and why\n";
  for (const NotPossible& one : all) {
    text += absl::StrCat(std::string(kIndent, ' '),
                         Wrapped(absl::StrCat(absl::StrJoin(one.names, ", "), ": ", one.reason),
                                 kColumns, kIndent + 2),
                         "\n");
  }
  return text;
}

Json Settings(const Json& list) {
  Json object = Json::object();
  for (const Json& one : list) object[one["key"].get<std::string>()] = one["value"];
  return object;
}

// Lists of {"key", "value"} become objects.
void MakeObjects(Json* json) {
  for (auto& [key, value] : json->items()) {
    if (json->is_object() && key == "settings") {
      value = Settings(value);
    } else if (value.is_structured()) {
      MakeObjects(&value);
    }
  }
}

}  // namespace

std::string EvaluationText(const v1::Evaluation& evaluation) {
  std::string text = Head(evaluation);
  for (const std::string& finding : Findings(evaluation)) text += Paragraph(finding);
  absl::StrAppend(&text, SizeTable(evaluation), CostTable(evaluation), MemoryTable(evaluation),
                  Impossible(evaluation));
  absl::StrAppend(&text, "\n");
  for (const std::string& remark : evaluation.remarks()) text += Paragraph("note: " + remark);
  text += Paragraph(absl::StrCat(
      evaluation.plans(), " plans compiled and simulated in ", SecondsText(evaluation.seconds()),
      "; batches of ", Grouped(evaluation.global_batch()), " in micro-batches of ",
      evaluation.micro_batch(),
      evaluation.complete() ? "" : "; ended by --seconds before all was tried"));
  return text;
}

std::string EvaluationJson(const v1::Evaluation& evaluation) {
  Json json = MessageJson(evaluation);
  MakeObjects(&json);
  Json findings = Json::array();
  for (const std::string& finding : Findings(evaluation)) findings.push_back(finding);
  json["findings"] = std::move(findings);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace terrace
