// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/own_tokens.h"

#include "absl/strings/str_cat.h"

namespace terrace::tokenizer_json {
namespace {

using IdOf = std::function<std::optional<int32_t>(const std::string&)>;

std::optional<SpecialToken> TokenOf(const Json& text, const IdOf& id_of) {
  if (!text.is_string()) return std::nullopt;
  const std::optional<int32_t> id = id_of(text.get<std::string>());
  return id.has_value() ? std::optional(SpecialToken{*id, text.get<std::string>()}) : std::nullopt;
}

// [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...]
void ReadTemplate(const Json& single, const IdOf& id_of, SpecialTokens* own) {
  bool behind = false;
  for (const Json& item : single) {
    if (Member(item, "Sequence").is_object()) behind = true;
    const Json& id = Member(Member(item, "SpecialToken"), "id");
    std::optional<SpecialToken>& token = behind ? own->end : own->begin;
    if (!token.has_value()) token = TokenOf(id, id_of);
  }
}

void ReadPostProcessor(const Json& json, const IdOf& id_of, SpecialTokens* own) {
  const std::string type = TypeOf(json);
  if (type == "TemplateProcessing" && Member(json, "single").is_array()) {
    ReadTemplate(Member(json, "single"), id_of, own);
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    const Json& begin = Member(json, "cls");
    const Json& end = Member(json, "sep");
    if (begin.is_array() && !begin.empty()) own->begin = TokenOf(begin[0], id_of);
    if (end.is_array() && !end.empty()) own->end = TokenOf(end[0], id_of);
  }
  if (type != "Sequence" || !Member(json, "processors").is_array()) return;
  for (const Json& step : Member(json, "processors")) ReadPostProcessor(step, id_of, own);
}

}  // namespace

TokenNames NamesOf(const Pipeline& pipeline, const Json& file, Remarks* remarks) {
  TokenNames names;
  names.id_of = [&pipeline](const std::string& text) -> std::optional<int32_t> {
    for (const AddedToken& token : pipeline.added) {
      if (token.content == text) return token.id;
    }
    return pipeline.model->IdOfToken(text);
  };
  names.special_text = [&pipeline](int64_t id) -> std::optional<std::string> {
    for (const AddedToken& token : pipeline.added) {
      if (token.id == id) return token.content;
    }
    return std::nullopt;
  };
  ReadPostProcessor(Member(file, "post_processor"), names.id_of, &names.own);
  if (names.own.begin.has_value()) {
    remarks->push_back(absl::StrCat("post_processor puts ", names.own.begin->text,
                                    " in front of a text; documents of the training data begin "
                                    "without it"));
  }
  return names;
}

void TakeOnlySpecialToken(const Pipeline& pipeline, SpecialTokens* special, Remarks* remarks) {
  const AddedToken* only = nullptr;
  int candidates = 0;
  for (const AddedToken& token : pipeline.added) {
    const bool has_part = token.id == pipeline.model->unknown() ||
                          (special->begin.has_value() && special->begin->id == token.id) ||
                          (special->padding.has_value() && special->padding->id == token.id);
    if (!token.special || has_part) continue;
    only = &token;
    ++candidates;
  }
  constexpr char kWayOut[] = "name it as eos_token in a tokenizer_config.json beside this file";
  if (candidates == 1) {
    special->end = SpecialToken{only->id, only->content};
    special->stops.insert(special->stops.begin(), only->id);
    remarks->push_back(absl::StrCat("no file names the end token: ", only->content,
                                    ", the only special token, ends every document; or ", kWayOut));
  } else {
    remarks->push_back(absl::StrCat("no file names the end token, and ", candidates,
                                    " special tokens may be meant: nothing ends a document; ",
                                    kWayOut));
  }
}

}  // namespace terrace::tokenizer_json
