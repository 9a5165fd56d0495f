// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/added_tokens.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/characters.h"
#include "worker/data/unicode/character_class.h"
#include "worker/data/unicode/code_points.h"

namespace terrace::tokenizer_json {
namespace {

constexpr size_t kAddedLimit = 1 << 20;

absl::StatusOr<AddedToken> ReadToken(const Json& json, const std::string& where, Remarks* remarks) {
  AddedToken token;
  ASSIGN_OR_RETURN(const std::optional<std::string> content, StringMember(json, "content", where));
  if (!content.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " must have a \"content\""));
  }
  token.content = *content;
  ASSIGN_OR_RETURN(token.id, IdOf(Member(json, "id"), *content));
  ASSIGN_OR_RETURN(token.single_word, BoolMember(json, "single_word", false, where));
  ASSIGN_OR_RETURN(token.lstrip, BoolMember(json, "lstrip", false, where));
  ASSIGN_OR_RETURN(token.rstrip, BoolMember(json, "rstrip", false, where));
  ASSIGN_OR_RETURN(token.special, BoolMember(json, "special", false, where));
  ASSIGN_OR_RETURN(token.normalized, BoolMember(json, "normalized", !token.special, where));
  RemarkUnknownKeys(json, where,
                    {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"},
                    remarks);
  return token;
}

bool BeginsInWord(std::string_view text) {
  size_t position = 0;
  return !text.empty() && IsWordCharacter(NextCode(text, &position));
}

bool EndsInWord(std::string_view text) {
  return !text.empty() && BeginsInWord(text.substr(LastCharacter(text)));
}

bool SameOptions(const AddedToken& a, const AddedToken& b) {
  return std::tie(a.single_word, a.lstrip, a.rstrip, a.normalized, a.special) ==
         std::tie(b.single_word, b.lstrip, b.rstrip, b.normalized, b.special);
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(
    const Json& list, const std::function<std::optional<int32_t>(const std::string&)>& id_of,
    int64_t model_tokens, Remarks* remarks) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array() || list.size() > kAddedLimit) {
    return Unsupported("added_tokens", "something else",
                       absl::StrCat("a list of at most ", kAddedLimit, " tokens"));
  }
  absl::flat_hash_map<std::string, size_t> known;
  int64_t largest = -1;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(AddedToken token,
                     ReadToken(list[i], absl::StrCat("added_tokens[", i, "]"), remarks));
    if (token.content.empty()) continue;
    const auto [first, is_new] = known.emplace(token.content, tokens.size());
    if (!is_new) {
      if (SameOptions(tokens[first->second], token)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("added_tokens[", i, "] \"", token.content,
                       "\" stands there twice with other options; keep one of the two"));
    }
    const int32_t told = token.id;
    if (const std::optional<int32_t> id = id_of(token.content)) {
      token.id = *id;
    } else {
      token.id = static_cast<int32_t>(std::max(largest + 1, model_tokens));
    }
    largest = std::max<int64_t>(largest, token.id);
    if (token.id != told) {
      remarks->push_back(absl::StrCat("added_tokens[", i, "] \"", token.content,
                                      "\" is told to have the id ", told, " and has ", token.id,
                                      ", as the tokenizers library numbers it"));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::Status CheckPatterns(const std::vector<AddedToken>& tokens,
                           const std::function<std::string(const std::string&)>& normalize) {
  absl::flat_hash_map<std::string, std::string> contents;  // by pattern
  for (const AddedToken& token : tokens) {
    if (!token.normalized) continue;
    const std::string pattern = normalize(token.content);
    if (pattern.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the normalizer leaves nothing of the added token \"", token.content,
                       "\", which would be found everywhere; give it \"normalized\": false"));
    }
    const auto [other, is_new] = contents.emplace(pattern, token.content);
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the normalizer makes the added tokens \"", other->second, "\" and \"", token.content,
        "\" the same, so that chance decides between them in the "
        "tokenizers library; give one of them \"normalized\": false"));
  }
  return absl::OkStatus();
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, bool normalized,
                         const std::function<std::string(const std::string&)>& pattern) {
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    const std::string text = pattern(token.content);
    begins_[static_cast<unsigned char>(text.front())] = true;
    trie_.Add(text, static_cast<int32_t>(tokens_.size()));
    tokens_.push_back(token);
  }
}

// The longest token that `text` begins with; 0 when there is none.
size_t AddedTokens::MatchLength(std::string_view text, const AddedToken** token) const {
  size_t longest = 0;
  int32_t node = ByteTrie::kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((node = trie_.Step(node, text[i])) == ByteTrie::kNone) break;
    if (trie_.value(node) == ByteTrie::kNone) continue;
    longest = i + 1;
    *token = &tokens_[trie_.value(node)];
  }
  return longest;
}

void AddedTokens::Split(std::string_view text, const Visitor& visit) const {
  size_t told = 0;  // up to here the text has been visited
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const AddedToken* token = nullptr;
    const size_t length =
        begins_[static_cast<unsigned char>(text[at])] ? MatchLength(text.substr(at), &token) : 0;
    if (length == 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    if (token->single_word &&
        (EndsInWord(text.substr(0, begin)) || BeginsInWord(text.substr(end)))) {
      continue;
    }
    // As in the library: white space that an earlier token took is not taken twice, but a token
    // within it counts, unless it would take white space itself and nothing is left.
    if (token->lstrip) begin = std::max(begin - TrailingSpaceBytes(text.substr(0, begin)), told);
    if (token->rstrip) end += LeadingSpaceBytes(text.substr(end));
    if (told < begin) visit(text.substr(told, begin - told), std::nullopt);
    if (begin < end) visit(text.substr(begin, end - begin), token->id);
    told = end;
  }
  if (told < text.size()) visit(text.substr(told), std::nullopt);
}

}  // namespace terrace::tokenizer_json
