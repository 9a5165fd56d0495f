// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/text/text_table.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kSettingWidth = 56, kValueWidth = 24, kTargetWidth = 44, kNoteWidth = 100;

std::string Count(const SpecDraft& draft, Fate fate) {
  int count = 0;
  for (const ImportedSetting& setting : draft.settings()) count += setting.fate == fate;
  return absl::StrCat(count, " ", std::string(FateName(fate)));
}

// Between two characters.
std::string Clipped(std::string_view text, size_t width) {
  if (text.size() <= width) return std::string(text);
  size_t end = 0;
  while (end + Utf8Length(text.substr(end)) <= width - 3) end += Utf8Length(text.substr(end));
  return absl::StrCat(Absl(text.substr(0, end)), "...");
}

}  // namespace

std::string ImportText(const SpecDraft& draft, const std::vector<std::string>& problems) {
  TextTable table({{.width_max = kSettingWidth},
                   {.width_max = kValueWidth},
                   {},
                   {.width_max = kTargetWidth},
                   {.width_max = kNoteWidth}});
  table.Add({"setting", "value", "here", "in the spec", "note"});
  for (const Fate fate : {Fate::kMapped, Fate::kAutomatic, Fate::kAbsent, Fate::kUnknown}) {
    for (const ImportedSetting& setting : draft.settings()) {
      if (setting.fate != fate) continue;
      table.Add({setting.setting, Clipped(setting.value, kValueWidth), std::string(FateName(fate)),
                 Clipped(setting.target, kTargetWidth), setting.note});
    }
  }
  std::string text;
  table.AppendTo(&text);
  absl::StrAppend(&text, Count(draft, Fate::kMapped), ", ", Count(draft, Fate::kAutomatic),
                  " (nothing to set), ", Count(draft, Fate::kAbsent), " (does not exist here), ",
                  Count(draft, Fate::kUnknown), "\n");
  for (const std::string& remark : draft.remarks()) absl::StrAppend(&text, "note: ", remark, "\n");
  for (const std::string& problem : problems) absl::StrAppend(&text, "problem: ", problem, "\n");
  return text;
}

std::string ImportJson(const SpecDraft& draft, const std::vector<std::string>& problems) {
  nlohmann::ordered_json json = {{"spec_yaml", draft.Yaml()},
                                 {"valid", problems.empty()},
                                 {"problems", problems},
                                 {"settings", nlohmann::ordered_json::array()},
                                 {"remarks", draft.remarks()}};
  for (const ImportedSetting& setting : draft.settings()) {
    json["settings"].push_back({{"setting", setting.setting},
                                {"value", setting.value},
                                {"fate", std::string(FateName(setting.fate))},
                                {"target", setting.target},
                                {"note", setting.note}});
  }
  return json.dump(2) + "\n";
}

}  // namespace terrace
