// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/pre_tokenizer.h"

#include <re2/re2.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/tokenizer_json/pre_tokenizer_steps.h"

namespace terrace::tokenizer_json {
namespace {

constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

absl::Status PreTokenizer::AddPattern(std::string_view pattern, std::string_view behavior,
                                      bool invert) {
  ASSIGN_OR_RETURN(Splitter splitter, Splitter::Create(pattern));
  ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizerStep> step,
                   MakeSplitStep(std::move(splitter), behavior, invert));
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddSplit(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "pre_tokenizer Split";
  RemarkUnknownKeys(json, kWhere, {"type", "pattern", "behavior", "invert"}, remarks);
  const Json& pattern = Member(json, "pattern");
  ASSIGN_OR_RETURN(const std::optional<std::string> regex,
                   StringMember(pattern, "Regex", "pre_tokenizer Split.pattern"));
  ASSIGN_OR_RETURN(const std::optional<std::string> literal,
                   StringMember(pattern, "String", "pre_tokenizer Split.pattern"));
  if (regex.has_value() == literal.has_value()) {
    return Unsupported("pre_tokenizer Split.pattern", "something else", "one Regex or String");
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> behavior,
                   StringMember(json, "behavior", kWhere));
  ASSIGN_OR_RETURN(const bool invert, BoolMember(json, "invert", false, kWhere));
  return AddPattern(regex.has_value() ? *regex : RE2::QuoteMeta(*literal), behavior.value_or(""),
                    invert);
}

absl::Status PreTokenizer::AddByteLevel(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "pre_tokenizer ByteLevel";
  RemarkUnknownKeys(json, kWhere, {"type", "add_prefix_space", "trim_offsets", "use_regex"},
                    remarks);
  byte_level_ = true;
  ASSIGN_OR_RETURN(const bool add_prefix_space, BoolMember(json, "add_prefix_space", true, kWhere));
  if (add_prefix_space) steps_.push_back(MakePrefixSpaceStep());
  ASSIGN_OR_RETURN(const bool use_regex, BoolMember(json, "use_regex", true, kWhere));
  return use_regex ? AddPattern(kGpt2Pattern, "Isolated") : absl::OkStatus();
}

absl::Status PreTokenizer::Add(const Json& json, Remarks* remarks) {
  const std::string type = TypeOf(json);
  if (type == "null") return absl::OkStatus();
  if (type == "Sequence") {
    RemarkUnknownKeys(json, "pre_tokenizer Sequence", {"type", "pretokenizers"}, remarks);
    ASSIGN_OR_RETURN(const Json* steps,
                     ListMember(json, "pretokenizers", "pre_tokenizer Sequence"));
    for (const Json& step : *steps) RETURN_IF_ERROR(Add(step, remarks));
    return absl::OkStatus();
  }
  if (byte_level_) {
    return Unsupported("pre_tokenizer", absl::StrCat(type, " after ByteLevel"), "in front of it");
  }
  if (type == "Split") return AddSplit(json, remarks);
  if (type == "ByteLevel") return AddByteLevel(json, remarks);
  if (type == "Digits") {
    RemarkUnknownKeys(json, "pre_tokenizer Digits", {"type", "individual_digits"}, remarks);
    ASSIGN_OR_RETURN(const bool individual,
                     BoolMember(json, "individual_digits", false, "pre_tokenizer Digits"));
    return AddPattern(individual ? R"(\p{N})" : R"(\p{N}+)", "Isolated");
  }
  return Unsupported("pre_tokenizer", type, "ByteLevel, Split, Digits or a Sequence of them");
}

absl::StatusOr<PreTokenizer> PreTokenizer::Read(const Json& json, Remarks* remarks) {
  PreTokenizer pre_tokenizer;
  RETURN_IF_ERROR(pre_tokenizer.Add(json, remarks));
  return pre_tokenizer;
}

void PreTokenizer::Run(size_t level, Piece piece, const PieceVisitor& visit) const {
  if (piece.text.empty()) return;
  if (level == steps_.size()) return visit(piece);
  steps_[level]->Apply(piece, [&](Piece part) { Run(level + 1, part, visit); });
}

}  // namespace terrace::tokenizer_json
