// SPDX-License-Identifier: Apache-2.0
#include "proto/report/evaluation_words.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "proto/report/layout_text.h"

namespace terrace {
namespace {

std::string Slower(const v1::EvaluatedRow& row) {
  if (row.time_ratio() == 0) return "";
  if (std::abs(row.time_ratio() - 1) < 0.005) return "as fast as with none";
  return row.time_ratio() > 1
             ? absl::StrFormat("a step takes %.2f times as long as with none", row.time_ratio())
             : absl::StrFormat("%.2f times as fast as with none", 1 / row.time_ratio());
}

std::string OfLimit(int64_t bytes, int64_t limit) {
  return limit > 0 ? absl::StrCat(FormatBytes(bytes), " of ", FormatBytes(limit))
                   : FormatBytes(bytes);
}

std::string NoneFinding(const v1::Evaluation& evaluation) {
  const v1::EvaluatedRow& none = evaluation.none();
  if (!none.impossible().empty()) {
    return absl::StrCat("Without any technique the job cannot be planned: ", none.impossible());
  }
  if (none.fits()) {
    return absl::StrCat("Without any technique it fits: ",
                        OfLimit(none.device_bytes(), evaluation.device_limit_bytes()), ", ",
                        SecondsText(none.time().step_seconds()), " a step.");
  }
  return absl::StrCat("Without any technique it does not fit: a rank needs ",
                      OfLimit(none.device_bytes(), evaluation.device_limit_bytes()), ".");
}

// What the refusal says of ways out; where most is held is in the table.
std::string Advice(const std::string& refusal) {
  size_t begin = refusal.find("; ");
  begin = begin == std::string::npos ? 0 : begin + 2;
  return refusal.substr(begin, refusal.find("; the most is held at ") - begin);
}

std::string PlannedFinding(const v1::Evaluation& evaluation) {
  const v1::EvaluatedRow& planned = evaluation.planned();
  if (!planned.fits()) {
    return absl::StrCat("As the spec stands no plan fits; ", Advice(evaluation.advice()), ".");
  }
  std::vector<std::string> differences;
  if (evaluation.none().impossible().empty())
    differences = Differences(evaluation.none().layout(), planned.layout());
  const std::string how = differences.empty() ? "no technique" : absl::StrJoin(differences, ", ");
  const std::string slower = Slower(planned);
  return absl::StrCat("As planned it fits, with ", how, ": ",
                      OfLimit(planned.device_bytes(), evaluation.device_limit_bytes()), ", ",
                      SecondsText(planned.time().step_seconds()), " a step",
                      slower.empty() || differences.empty() ? "" : "; ",
                      differences.empty() ? "" : slower, ".");
}

// Of techniques alone: which of those that fit costs least, or which saves most.
std::string TechniqueFinding(const v1::Evaluation& evaluation) {
  const v1::EvaluatedRow *fastest = nullptr, *smallest = nullptr;
  for (const v1::EvaluatedRow& row : evaluation.techniques()) {
    if (!row.impossible().empty() || row.changes_training() || row.time_ratio() == 0) continue;
    if (row.memory_ratio() < 1 &&
        (smallest == nullptr || row.device_bytes() < smallest->device_bytes())) {
      smallest = &row;
    }
    if (row.fits() && (fastest == nullptr || row.time_ratio() < fastest->time_ratio()))
      fastest = &row;
  }
  if (smallest == nullptr) return "";
  const bool needed = !evaluation.none().fits();
  std::string finding =
      absl::StrCat("Alone, ", RowName(*smallest),
                   " saves the most on the device: ", ChangeText(smallest->memory_ratio()), "; ",
                   Slower(*smallest), ".");
  if (!needed) return finding;
  if (fastest == nullptr) return absl::StrCat(finding, " No technique alone makes it fit.");
  return absl::StrCat("Alone, ", RowName(*fastest),
                      " is the fastest that makes it fit: ", FormatBytes(fastest->device_bytes()),
                      "; ", Slower(*fastest), ". ", fastest == smallest ? "" : finding);
}

std::string SizeFinding(const char* what, const v1::LargestSize& planned,
                        const v1::LargestSize& none) {
  if (planned.value() == 0 && planned.at_least())
    return absl::StrCat("The largest ", what, " was not looked for: its time was over.");
  if (planned.value() == 0) {
    return absl::StrCat("No ", what, " fits: even the smallest ", planned.reason(), ".");
  }
  std::string finding = absl::StrCat("The largest ", what, " is ", SizeText(planned));
  if (planned.refused() > 0) {
    absl::StrAppend(&finding, " (", Grouped(planned.refused()), " ", planned.reason(), ")");
  } else if (!planned.reason().empty()) {
    absl::StrAppend(&finding, " (", planned.reason(), ")");
  }
  const bool known = none.value() > 0 || !none.reason().empty();
  return absl::StrCat(finding, known ? absl::StrCat("; without techniques ", SizeText(none)) : "",
                      ".");
}

}  // namespace

std::string RowName(const v1::EvaluatedRow& row) {
  return row.group().empty() ? row.name() : absl::StrCat(row.group(), " ", row.name());
}

std::string ChangeText(double ratio) {
  if (ratio == 0) return "";
  const double percent = 100 * (ratio - 1);
  if (std::abs(percent) < 0.05) return "0 %";
  return std::abs(percent) < 10 ? absl::StrFormat("%+.1f %%", percent)
                                : absl::StrFormat("%+.0f %%", percent);
}

std::string SizeText(const v1::LargestSize& size) {
  if (size.value() == 0) return size.at_least() ? "" : "none";
  return absl::StrCat(size.at_least() ? "at least " : "", Grouped(size.value()));
}

std::vector<std::string> Findings(const v1::Evaluation& evaluation) {
  std::vector<std::string> findings = {NoneFinding(evaluation), PlannedFinding(evaluation)};
  if (std::string finding = TechniqueFinding(evaluation); !finding.empty())
    findings.push_back(std::move(finding));
  const v1::EvaluatedRow &planned = evaluation.planned(), &none = evaluation.none();
  if (planned.has_micro_batch())
    findings.push_back(SizeFinding("micro-batch", planned.micro_batch(), none.micro_batch()));
  if (planned.has_sequence_length())
    findings.push_back(
        SizeFinding("sequence length", planned.sequence_length(), none.sequence_length()));
  return findings;
}

std::vector<NotPossible> ImpossibleRows(const v1::Evaluation& evaluation) {
  std::vector<NotPossible> all;
  std::map<std::string, int> planned;  // by group
  for (const v1::EvaluatedRow& row : evaluation.techniques())
    planned[row.group()] += row.impossible().empty() ? 1 : 0;
  std::set<std::string> said;
  for (const v1::EvaluatedRow& row : evaluation.techniques()) {
    if (row.impossible().empty()) continue;
    if (planned[row.group()] == 0) {
      // All of a group are left out for what is in the way of its smallest.
      if (said.insert(row.group()).second) all.push_back({{row.group()}, row.impossible()});
      continue;
    }
    auto found = std::find_if(all.begin(), all.end(), [&](const NotPossible& one) {
      return one.reason == row.impossible();
    });
    if (found == all.end()) found = all.insert(all.end(), {{}, row.impossible()});
    found->names.push_back(RowName(row));
  }
  return all;
}

std::vector<HeldBytes> HeldOf(const v1::EvaluatedRow& row) {
  std::map<v1::Tier, const v1::StageMemory*> most;
  for (const v1::StageMemory& memory : row.memory()) {
    const v1::StageMemory*& one = most[memory.tier()];
    const auto bytes = [](const v1::StageMemory& of) {
      return of.arena_bytes() + of.external_bytes();
    };
    if (one == nullptr || bytes(memory) > bytes(*one)) one = &memory;
  }
  std::vector<HeldBytes> held;
  for (const auto& [tier, memory] : most) {
    for (const v1::MemoryLine& line : memory->lines()) {
      if (line.bytes() > 0) held.push_back({tier, line.class_(), line.bytes()});
    }
  }
  return held;
}

std::vector<const v1::EvaluatedRow*> PlannedRows(const v1::Evaluation& evaluation) {
  std::vector<const v1::EvaluatedRow*> rows;
  const auto add = [&rows](const v1::EvaluatedRow& row) {
    if (row.impossible().empty()) rows.push_back(&row);
  };
  add(evaluation.none());
  add(evaluation.planned());
  for (const v1::EvaluatedRow& row : evaluation.techniques()) add(row);
  return rows;
}

}  // namespace terrace
