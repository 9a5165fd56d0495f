// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/normalizer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/data/tokenizer_json/normalizer_steps.h"
#include "worker/data/tokenizer_json/pattern.h"
#include "worker/data/tokenizer_json/precompiled.h"

namespace terrace::tokenizer_json {
namespace {

// Those without members.
std::optional<Normalizer::Step> PlainStep(const std::string& type) {
  if (type == "NFC") return NormalFormStep(NormalForm::kNfc);
  if (type == "NFD") return NormalFormStep(NormalForm::kNfd);
  if (type == "NFKC") return NormalFormStep(NormalForm::kNfkc);
  if (type == "NFKD") return NormalFormStep(NormalForm::kNfkd);
  if (type == "Lowercase") return LowercaseStep();
  if (type == "StripAccents") return MapStep(&WithoutMarks);
  if (type == "Nmt") return MapStep(&WithoutControls);
  return std::nullopt;
}

}  // namespace

absl::Status Normalizer::AddReplace(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "normalizer Replace";
  RemarkUnknownKeys(json, kWhere, {"type", "pattern", "content"}, remarks);
  ASSIGN_OR_RETURN(Splitter pattern, ReadPattern(json, kWhere));
  ASSIGN_OR_RETURN(const std::optional<std::string> content, StringMember(json, "content", kWhere));
  if (!content.has_value()) return Unsupported("normalizer Replace.content", "missing", "a text");
  steps_.push_back(ReplaceStep(std::move(pattern), *content));
  return absl::OkStatus();
}

absl::Status Normalizer::AddStrip(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "normalizer Strip";
  RemarkUnknownKeys(json, kWhere, {"type", "strip_left", "strip_right"}, remarks);
  ASSIGN_OR_RETURN(const bool left, BoolMember(json, "strip_left", true, kWhere));
  ASSIGN_OR_RETURN(const bool right, BoolMember(json, "strip_right", true, kWhere));
  steps_.push_back(StripStep(left, right));
  return absl::OkStatus();
}

absl::Status Normalizer::Add(const Json& json, Remarks* remarks) {
  const std::string type = TypeOf(json);
  if (type == "null") return absl::OkStatus();
  if (type == "Replace") return AddReplace(json, remarks);
  if (type == "Strip") return AddStrip(json, remarks);
  if (type == "Sequence") {
    RemarkUnknownKeys(json, "normalizer Sequence", {"type", "normalizers"}, remarks);
    ASSIGN_OR_RETURN(const Json* steps, ListMember(json, "normalizers", "normalizer Sequence"));
    for (const Json& step : *steps) RETURN_IF_ERROR(Add(step, remarks));
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    RemarkUnknownKeys(json, "normalizer Prepend", {"type", "prepend"}, remarks);
    ASSIGN_OR_RETURN(const std::optional<std::string> prefix,
                     StringMember(json, "prepend", "normalizer Prepend"));
    if (!prefix.has_value() || prefix->empty()) {  // the library writes the first character twice
      return Unsupported("normalizer Prepend.prepend", "empty", "a text");
    }
    steps_.push_back(PrependStep(*prefix));
    return absl::OkStatus();
  }
  if (type == "Precompiled") {
    ASSIGN_OR_RETURN(Step step, ReadPrecompiled(json, remarks));
    steps_.push_back(std::move(step));
    return absl::OkStatus();
  }
  const std::optional<Step> step = PlainStep(type);
  if (!step.has_value()) {
    return Unsupported(
        "normalizer", type,
        "null, NFC, NFD, NFKC, NFKD, Lowercase, Nmt, Precompiled, Prepend, Replace, Strip, "
        "StripAccents or a Sequence of them");
  }
  RemarkUnknownKeys(json, absl::StrCat("normalizer ", type), {"type"}, remarks);
  steps_.push_back(*step);
  return absl::OkStatus();
}

absl::StatusOr<Normalizer> Normalizer::Read(const Json& json, Remarks* remarks) {
  Normalizer normalizer;
  RETURN_IF_ERROR(normalizer.Add(json, remarks));
  return normalizer;
}

std::string_view Normalizer::Apply(std::string_view text, std::string* storage,
                                   size_t* start_bytes) const {
  std::string next;
  for (const Step& step : steps_) {
    next.clear();
    if (!step(text, &next, start_bytes)) continue;
    storage->swap(next);
    text = *storage;
  }
  return text;
}

std::string Normalizer::Applied(std::string_view text) const {
  std::string storage;
  size_t start_bytes = 0;
  return std::string(Apply(text, &storage, &start_bytes));
}

}  // namespace terrace::tokenizer_json
