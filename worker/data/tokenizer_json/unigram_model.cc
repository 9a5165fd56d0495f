// SPDX-License-Identifier: Apache-2.0
// ReadUnigramModel: the most probable segmentation into tokens (Kudo 2018, arXiv 1804.10959).
//
// Sums are doubles and are formed in the order of the library, because ties decide between
// segmentations.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/byte_trie.h"
#include "worker/data/characters.h"
#include "worker/data/tokenizer_json/model.h"

namespace terrace::tokenizer_json {
namespace {

constexpr int32_t kNone = -1;
constexpr double kUnknownPenalty = 10.0;

class UnigramModel final : public Model {
 public:
  absl::Status Read(const Json& model);

  void Encode(std::string_view piece, std::vector<int32_t>* ids) override;
  std::optional<int32_t> IdOfToken(const std::string& token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::vector<std::string>& tokens() const override { return tokens_; }
  int64_t token_count() const override { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> unknown() const override { return unknown_; }

 private:
  // The best segmentation of what ends at a position.
  struct Best {
    double score = 0;
    int32_t begin = kNone;  // of its last token; kNone: nothing ends here
    int32_t id = kNone;
  };
  absl::Status Add(const Json& entry);
  void Search(std::string_view piece);
  void Emit(std::string_view text, std::vector<int32_t>* ids) const;

  std::vector<std::string> tokens_;
  std::vector<double> scores_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  ByteTrie trie_;
  std::optional<int32_t> unknown_;
  std::array<int32_t, 256> byte_ids_;
  bool byte_fallback_ = false;
  double lowest_score_ = std::numeric_limits<double>::infinity();
  std::vector<Best> best_;                                   // scratch: by end
  std::vector<std::pair<std::string_view, bool>> segments_;  // scratch: text, whether unknown
};

// ["token", -3.5]
absl::Status UnigramModel::Add(const Json& entry) {
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
    return absl::InvalidArgumentError("each of model.vocab must be [\"token\", score]");
  }
  const std::string& token = entry[0].get_ref<const std::string&>();
  const int32_t id = static_cast<int32_t>(tokens_.size());
  ids_[token] = id;
  if (!token.empty()) trie_.Add(token, id);
  tokens_.push_back(token);
  scores_.push_back(entry[1].get<double>());
  lowest_score_ = std::min(lowest_score_, scores_.back());
  return absl::OkStatus();
}

absl::Status UnigramModel::Read(const Json& model) {
  ASSIGN_OR_RETURN(const Json* vocabulary, ListMember(model, "vocab", "model"));
  if (vocabulary->empty() || vocabulary->size() > static_cast<size_t>(kVocabularyLimit)) {
    return Unsupported("the length of model.vocab", absl::StrCat(vocabulary->size()),
                       absl::StrCat("1 to ", kVocabularyLimit));
  }
  for (const Json& entry : *vocabulary) RETURN_IF_ERROR(Add(entry));
  ASSIGN_OR_RETURN(byte_fallback_, BoolMember(model, "byte_fallback", false, "model"));
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = IdOfToken(absl::StrFormat("<0x%02X>", byte)).value_or(kNone);
  }
  // The library fails on the first text that holds an unknown character.
  ASSIGN_OR_RETURN(const int64_t unknown, IntMember(model, "unk_id", "model"));
  if (unknown < 0 || unknown >= token_count()) {
    return Unsupported("model.unk_id", absl::StrCat(unknown), "the position of a token");
  }
  unknown_ = static_cast<int32_t>(unknown);
  return absl::OkStatus();
}

void UnigramModel::Search(std::string_view piece) {
  best_.assign(piece.size() + 1, {});
  const double unknown_score = lowest_score_ - kUnknownPenalty;
  for (size_t begin = 0; begin < piece.size();) {
    const double so_far = best_[begin].score;
    const auto offer = [&](size_t end, double score, int32_t id) {
      Best& best = best_[end];
      if (best.begin != kNone && score <= best.score) return;
      best = {score, static_cast<int32_t>(begin), id};
    };
    const size_t character = CharacterBytes(piece.substr(begin));
    bool has_character = false;
    int32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < piece.size();) {
      if ((node = trie_.Step(node, piece[end++])) == ByteTrie::kNone) break;
      const int32_t id = trie_.value(node);
      if (id == ByteTrie::kNone) continue;
      offer(end, scores_[id] + so_far, id);
      has_character |= end - begin == character;
    }
    if (!has_character) offer(begin + character, unknown_score + so_far, *unknown_);
    begin += character;
  }
}

// The token of a segment; of neighbours that were unknown together, bytes or the unknown token.
void UnigramModel::Emit(std::string_view text, std::vector<int32_t>* ids) const {
  if (const auto found = ids_.find(Absl(text)); found != ids_.end()) {
    ids->push_back(found->second);
    return;
  }
  const bool has_bytes =
      byte_fallback_ && std::all_of(text.begin(), text.end(),
                                    [&](unsigned char byte) { return byte_ids_[byte] != kNone; });
  if (!has_bytes) {
    ids->push_back(*unknown_);
    return;
  }
  for (const unsigned char byte : text) ids->push_back(byte_ids_[byte]);
}

void UnigramModel::Encode(std::string_view piece, std::vector<int32_t>* ids) {
  Search(piece);
  segments_.clear();
  for (size_t end = piece.size(); end > 0; end = best_[end].begin) {
    const size_t begin = best_[end].begin;
    const bool is_unknown = best_[end].id == *unknown_;
    if (is_unknown && !segments_.empty() && segments_.back().second) {
      std::string_view& next = segments_.back().first;
      next = {piece.data() + begin, next.size() + end - begin};
    } else {
      segments_.emplace_back(piece.substr(begin, end - begin), is_unknown);
    }
  }
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    Emit(segment->first, ids);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> ReadUnigramModel(const Json& model, Remarks* remarks) {
  RemarkUnknownKeys(model, "model", {"type", "unk_id", "vocab", "byte_fallback"}, remarks);
  auto unigram = std::make_unique<UnigramModel>();
  RETURN_IF_ERROR(unigram->Read(model));
  return unigram;
}

}  // namespace terrace::tokenizer_json
