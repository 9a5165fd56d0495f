// SPDX-License-Identifier: Apache-2.0
// ReadBpeModel: byte-pair encoding over bytes (GPT-2, Llama 3, Qwen) or over characters.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/characters.h"
#include "worker/data/tokenizer_json/bpe_merges.h"
#include "worker/data/tokenizer_json/byte_alphabet.h"
#include "worker/data/tokenizer_json/model.h"

namespace terrace::tokenizer_json {
namespace {

constexpr int32_t kNone = -1;

struct Options {
  bool byte_level = false;
  bool ignore_merges = false;  // a piece that is a token is that token
  bool fuse_unknown = false;   // neighbours that are unknown become one
  bool byte_fallback = false;  // what is unknown becomes tokens "<0x41>"
  std::optional<std::string> unknown;
};

class BpeModel final : public Model {
 public:
  explicit BpeModel(Options options) : options_(std::move(options)) {
    byte_ids_.fill(kNone);
    fallback_ids_.fill(kNone);
  }

  absl::Status ReadVocabulary(const Json& vocabulary);
  absl::Status ReadMerges(const Json& list);
  absl::Status ReadUnknown();
  absl::Status CheckBytes(Remarks* remarks) const;

  void Encode(std::string_view piece, std::vector<int32_t>* ids) override;
  std::optional<int32_t> IdOfToken(const std::string& token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::vector<std::string>& tokens() const override { return tokens_; }
  int64_t token_count() const override { return static_cast<int64_t>(ids_.size()); }
  std::optional<int32_t> unknown() const override { return unknown_id_; }

 private:
  int32_t IdOfUnit(std::string_view unit) const {
    if (options_.byte_level) return byte_ids_[static_cast<unsigned char>(unit.front())];
    const auto found = ids_.find(Absl(unit));
    return found == ids_.end() ? kNone : found->second;
  }
  bool FallBack(std::string_view unit);
  void Start(std::string_view piece);

  const Options options_;
  std::vector<std::string> tokens_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<std::string, int32_t> whole_pieces_;  // bytes; for ignore_merges
  std::array<int32_t, 256> byte_ids_;
  std::array<int32_t, 256> fallback_ids_;
  std::optional<int32_t> unknown_id_;
  BpeMerges merges_;
  BpeMerges::Scratch scratch_;
  std::vector<int32_t> start_;
};

absl::Status BpeModel::ReadVocabulary(const Json& vocabulary) {
  if (!vocabulary.is_object()) {
    return absl::InvalidArgumentError("model.vocab must be an object of token: id");
  }
  for (const auto& [token, value] : vocabulary.items()) {
    ASSIGN_OR_RETURN(const int32_t id, IdOf(value, token));
    ids_[token] = id;
    if (tokens_.size() <= static_cast<size_t>(id)) tokens_.resize(id + 1);
    tokens_[id] = token;
    if (!options_.byte_level) continue;
    const std::optional<std::string> bytes = BytesOfToken(token);
    if (!bytes.has_value()) continue;
    if (bytes->size() == 1) byte_ids_[static_cast<unsigned char>(bytes->front())] = id;
    if (options_.ignore_merges) whole_pieces_[*bytes] = id;
  }
  for (int byte = 0; byte < 256 && options_.byte_fallback; ++byte) {
    const auto found = ids_.find(absl::StrFormat("<0x%02X>", byte));
    if (found != ids_.end()) fallback_ids_[byte] = found->second;
  }
  return absl::OkStatus();
}

// Both forms: "left right" and ["left", "right"].
absl::StatusOr<std::pair<std::string, std::string>> ReadPair(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const std::string& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && space == text.rfind(' ')) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return absl::InvalidArgumentError(
      "each of model.merges must be \"left right\" or [\"left\", \"right\"]");
}

absl::Status BpeModel::ReadMerges(const Json& list) {
  if (!list.is_array()) return absl::InvalidArgumentError("model.merges must be a list");
  for (const Json& merge : list) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    ASSIGN_OR_RETURN(const auto pair, ReadPair(merge));
    int32_t ids[3];
    const std::string tokens[3] = {pair.first, pair.second, pair.first + pair.second};
    for (int i = 0; i < 3; ++i) {
      const std::optional<int32_t> id = IdOfToken(tokens[i]);
      if (!id.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("model.merges uses the token ", tokens[i],
                                                       ", which is not in model.vocab"));
      }
      ids[i] = *id;
    }
    merges_.Add(ids[0], ids[1], ids[2]);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ReadUnknown() {
  if (!options_.unknown.has_value()) return absl::OkStatus();
  unknown_id_ = IdOfToken(*options_.unknown);
  if (unknown_id_.has_value()) return absl::OkStatus();
  return Unsupported("model.unk_token", *options_.unknown, "a token of model.vocab, or null");
}

// The library drops a byte that the vocabulary lacks when there is no unknown token either.
absl::Status BpeModel::CheckBytes(Remarks* remarks) const {
  if (!options_.byte_level) return absl::OkStatus();
  const auto missing = std::count(byte_ids_.begin(), byte_ids_.end(), kNone);
  if (missing > 0 && options_.byte_fallback) {
    return Unsupported("model.byte_fallback", "true",
                       "false where the pre_tokenizer is ByteLevel and model.vocab lacks bytes");
  }
  if (missing == 0 || unknown_id_.has_value()) return absl::OkStatus();
  remarks->push_back(absl::StrCat("model.vocab has no token for ", missing,
                                  " of the 256 bytes and no unk_token: these bytes are left out of "
                                  "the ids; train it with initial_alphabet=ByteLevel.alphabet()"));
  return absl::OkStatus();
}

// The tokens of the bytes of `unit`, when the vocabulary has them all.
bool BpeModel::FallBack(std::string_view unit) {
  if (!options_.byte_fallback) return false;
  for (const unsigned char byte : unit) {
    if (fallback_ids_[byte] == kNone) return false;
  }
  for (const unsigned char byte : unit) start_.push_back(fallback_ids_[byte]);
  return true;
}

// What the merges begin with. An unknown character waits until the next known one, because
// neighbours may become one; bytes that stand for one overtake it, as in the library.
void BpeModel::Start(std::string_view piece) {
  start_.clear();
  bool waiting = false;
  while (!piece.empty()) {
    const std::string_view unit = piece.substr(0, options_.byte_level ? 1 : CharacterBytes(piece));
    piece.remove_prefix(unit.size());
    const int32_t id = IdOfUnit(unit);
    if (id != kNone) {
      if (waiting) start_.push_back(*unknown_id_);
      waiting = false;
      start_.push_back(id);
    } else if (!FallBack(unit) && unknown_id_.has_value()) {
      if (waiting && !options_.fuse_unknown) start_.push_back(*unknown_id_);
      waiting = true;
    }
  }
  if (waiting) start_.push_back(*unknown_id_);
}

void BpeModel::Encode(std::string_view piece, std::vector<int32_t>* ids) {
  if (options_.ignore_merges) {
    const auto& whole = options_.byte_level ? whole_pieces_ : ids_;
    if (const auto found = whole.find(Absl(piece)); found != whole.end()) {
      ids->push_back(found->second);
      return;
    }
  }
  Start(piece);
  merges_.Merge(start_, &scratch_, ids);
}

absl::Status CheckOptions(const Json& model) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const std::optional<std::string> value, StringMember(model, key, "model"));
    if (value.has_value() && !value->empty()) {
      return Unsupported(absl::StrCat("model.", key), *value, "empty");
    }
  }
  const Json& dropout = Member(model, "dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0)) {
    return Unsupported("model.dropout", dropout.dump(), "null: ids must not depend on chance");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> ReadBpeModel(const Json& model, bool byte_level,
                                                    Remarks* remarks) {
  RETURN_IF_ERROR(CheckOptions(model));
  Options options = {.byte_level = byte_level};
  ASSIGN_OR_RETURN(options.ignore_merges, BoolMember(model, "ignore_merges", false, "model"));
  ASSIGN_OR_RETURN(options.fuse_unknown, BoolMember(model, "fuse_unk", false, "model"));
  ASSIGN_OR_RETURN(options.byte_fallback, BoolMember(model, "byte_fallback", false, "model"));
  ASSIGN_OR_RETURN(options.unknown, StringMember(model, "unk_token", "model"));
  RemarkUnknownKeys(
      model, "model",
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
      remarks);
  auto bpe = std::make_unique<BpeModel>(std::move(options));
  RETURN_IF_ERROR(bpe->ReadVocabulary(Member(model, "vocab")));
  RETURN_IF_ERROR(bpe->ReadMerges(Member(model, "merges")));
  RETURN_IF_ERROR(bpe->ReadUnknown());
  RETURN_IF_ERROR(bpe->CheckBytes(remarks));
  return bpe;
}

}  // namespace terrace::tokenizer_json
