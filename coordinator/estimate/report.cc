// SPDX-License-Identifier: Apache-2.0
#include "coordinator/estimate/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "base/text/wrap.h"

namespace terrace {
namespace {

using Align = TextTable::Align;
using Json = nlohmann::ordered_json;

constexpr int kBarWidth = 16;
constexpr size_t kColumns = 80, kIndent = 4;

// Eighths of a cell, so that neighbours of 3 % differ.
std::string Bar(int64_t bytes, int64_t most) {
  static constexpr const char* kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  if (most <= 0) return "";
  const auto eighths = static_cast<int>(
      8.0 * kBarWidth * static_cast<double>(bytes) / static_cast<double>(most) + 0.5);
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  return bar + kParts[eighths % 8];
}

std::string Formulas(const EstimateCase& one) {
  std::string text;
  const auto add = [&](const std::vector<EstimatedBytes>& parts, const char* where) {
    for (const EstimatedBytes& part : parts) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", part.what, where, " ", part.formula, " = ",
                      FormatBytes(part.bytes));
    }
  };
  add(one.device, "");
  add(one.host, " on host");
  add(one.nvme, " on NVMe");
  return text;
}

Json Parts(const std::vector<EstimatedBytes>& parts) {
  Json json = Json::array();
  for (const EstimatedBytes& part : parts) {
    json.push_back({{"what", part.what}, {"formula", part.formula}, {"bytes", part.bytes}});
  }
  return json;
}

}  // namespace

std::string EstimateText(const EstimateInput& input, const std::vector<EstimateSection>& sections) {
  const Model& model = *input.model;
  const std::string symbols = absl::StrCat(
      model.config.family, ", N = ", model.Parameters(), " parameters, L = ", model.config.layers,
      " layers of h = ", model.config.hidden, ", q = ", model.config.heads * model.config.head_dim,
      ", keys and values of kv = ", model.config.kv_heads * model.config.head_dim, " each",
      ", f = ", model.config.intermediate);
  std::string text = Wrapped(symbols, kColumns, 0) + "\n";
  for (const EstimateSection& section : sections) {
    absl::StrAppend(&text, "\n",
                    Wrapped(absl::StrCat(section.name, ": ", section.note), kColumns, 0), "\n");
    int64_t most = 0;
    for (const EstimateCase& one : section.cases)
      most = std::max(most, EstimateCase::Total(one.device));
    TextTable table({{}, {Align::kRight}, {Align::kRight}, {Align::kRight}, {}}, 2);
    const auto any = [&](std::vector<EstimatedBytes> EstimateCase::*tier) {
      return std::any_of(section.cases.begin(), section.cases.end(),
                         [&](const EstimateCase& one) { return !(one.*tier).empty(); });
    };
    table.Add({"", "device", any(&EstimateCase::host) ? "host" : "",
               any(&EstimateCase::nvme) ? "NVMe" : "", ""});
    for (const EstimateCase& one : section.cases) {
      const int64_t device = EstimateCase::Total(one.device);
      const auto there = [](const std::vector<EstimatedBytes>& parts) {
        return parts.empty() ? std::string() : FormatBytes(EstimateCase::Total(parts));
      };
      table.Add(
          {one.name, FormatBytes(device), there(one.host), there(one.nvme), Bar(device, most)});
    }
    table.AppendTo(&text);
    for (const EstimateCase& one : section.cases) {
      const std::string words = absl::StrCat(one.name, ": ", Formulas(one));
      absl::StrAppend(&text, "  ", Wrapped(words, kColumns, kIndent), "\n");
    }
  }
  absl::StrAppend(&text,
                  "\nLibraries, contexts and fragmentation come on top. What a Terrace job\n"
                  "reserves, to the byte: terrace plan.\n");
  return text;
}

std::string EstimateJson(const EstimateInput& input, const std::vector<EstimateSection>& sections) {
  const Model& model = *input.model;
  Json json = {{"model",
                {{"family", model.config.family},
                 {"parameters", model.Parameters()},
                 {"layers", model.config.layers},
                 {"hidden", model.config.hidden}}},
               {"input",
                {{"sequence_length", input.sequence_length},
                 {"batch", input.batch},
                 {"devices", input.devices},
                 {"precision", input.bf16 ? "bf16" : "fp32"},
                 {"lora_rank", input.lora_rank}}}};
  for (const EstimateSection& section : sections) {
    Json cases = Json::array();
    for (const EstimateCase& one : section.cases) {
      cases.push_back({{"name", one.name},
                       {"device", Parts(one.device)},
                       {"device_bytes", EstimateCase::Total(one.device)},
                       {"host", Parts(one.host)},
                       {"host_bytes", EstimateCase::Total(one.host)},
                       {"nvme", Parts(one.nvme)},
                       {"nvme_bytes", EstimateCase::Total(one.nvme)}});
    }
    json[section.name] = {{"note", section.note}, {"cases", cases}};
  }
  return json.dump(2) + "\n";
}

}  // namespace terrace
