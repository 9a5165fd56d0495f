// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/pre_tokenizer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/characters.h"
#include "worker/data/tokenizer_json/metaspace_keys.h"
#include "worker/data/tokenizer_json/pattern.h"
#include "worker/data/tokenizer_json/pre_tokenizer_steps.h"
#include "worker/data/unicode/character_class.h"

namespace terrace::tokenizer_json {
namespace {

constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

absl::Status PreTokenizer::AddPattern(std::string_view pattern, std::string_view behavior,
                                      bool invert) {
  ASSIGN_OR_RETURN(Splitter splitter, Splitter::Create(pattern));
  return AddSplitter(std::move(splitter), behavior, invert);
}

absl::Status PreTokenizer::AddSplitter(Splitter splitter, std::string_view behavior, bool invert) {
  ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizerStep> step,
                   MakeSplitStep(std::move(splitter), behavior, invert));
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddSplit(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "pre_tokenizer Split";
  RemarkUnknownKeys(json, kWhere, {"type", "pattern", "behavior", "invert"}, remarks);
  ASSIGN_OR_RETURN(Splitter pattern, ReadPattern(json, kWhere));
  ASSIGN_OR_RETURN(const std::optional<std::string> behavior,
                   StringMember(json, "behavior", kWhere));
  ASSIGN_OR_RETURN(const bool invert, BoolMember(json, "invert", false, kWhere));
  return AddSplitter(std::move(pattern), behavior.value_or(""), invert);
}

absl::Status PreTokenizer::AddMetaspace(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "pre_tokenizer Metaspace";
  ASSIGN_OR_RETURN(const MetaspaceKeys keys, ReadMetaspaceKeys(json, kWhere, remarks));
  ASSIGN_OR_RETURN(const bool split, BoolMember(json, "split", true, kWhere));
  steps_.push_back(MakeMetaspaceStep(keys.replacement, keys.scheme));
  if (!split) return absl::OkStatus();
  return AddSplitter(Splitter::Literal(keys.replacement), "MergedWithNext");
}

absl::Status PreTokenizer::AddCharacters(bool (*holds)(uint32_t code), std::string_view behavior) {
  return AddSplitter(Splitter::Characters(holds), behavior);
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
  return AddStep(type, json, remarks);
}

absl::Status PreTokenizer::AddStep(const std::string& type, const Json& json, Remarks* remarks) {
  if (type == "Split") return AddSplit(json, remarks);
  if (type == "ByteLevel") return AddByteLevel(json, remarks);
  if (type == "Metaspace") return AddMetaspace(json, remarks);
  if (type == "WhitespaceSplit") return AddCharacters(&IsSpace, "Removed");
  if (type == "Whitespace") {
    RETURN_IF_ERROR(AddCharacters(&IsSpace, "Removed"));
    return AddCharacters(&IsWordCharacter, "Contiguous");
  }
  if (type == "CharDelimiterSplit") {
    ASSIGN_OR_RETURN(const std::optional<std::string> delimiter,
                     StringMember(json, "delimiter", "pre_tokenizer CharDelimiterSplit"));
    if (!delimiter.has_value() || delimiter->empty()) {
      return Unsupported("pre_tokenizer CharDelimiterSplit.delimiter", "missing", "a character");
    }
    return AddSplitter(Splitter::Literal(*delimiter), "Removed");
  }
  if (type == "Punctuation") {
    RemarkUnknownKeys(json, "pre_tokenizer Punctuation", {"type", "behavior"}, remarks);
    ASSIGN_OR_RETURN(const std::optional<std::string> behavior,
                     StringMember(json, "behavior", "pre_tokenizer Punctuation"));
    return AddCharacters(&IsPunctuation, behavior.value_or("Isolated"));
  }
  if (type == "BertPreTokenizer") {
    RETURN_IF_ERROR(AddCharacters(&IsSpace, "Removed"));
    return AddCharacters(&IsPunctuation, "Isolated");
  }
  if (type == "Digits") {
    RemarkUnknownKeys(json, "pre_tokenizer Digits", {"type", "individual_digits"}, remarks);
    ASSIGN_OR_RETURN(const bool individual,
                     BoolMember(json, "individual_digits", false, "pre_tokenizer Digits"));
    return AddCharacters(&IsNumeric, individual ? "Isolated" : "Contiguous");
  }
  return Unsupported(
      "pre_tokenizer", type,
      "ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
      "CharDelimiterSplit, BertPreTokenizer or a Sequence of them");
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
