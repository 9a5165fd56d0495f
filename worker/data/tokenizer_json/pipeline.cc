// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/pipeline.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/strings.h"
#include "worker/data/characters.h"

namespace terrace::tokenizer_json {
namespace {

constexpr size_t kCachedPieces = 1 << 18;
constexpr size_t kCachedPieceBytes = 48;
constexpr std::string_view kSpaceSign = "\u2581";  // SentencePiece's writing of a space

// By id, as the decoder takes them: an added token is what it was found by.
std::vector<std::string> TokensOf(const Pipeline& pipeline) {
  std::vector<std::string> tokens = pipeline.model->tokens();
  for (const AddedToken& token : pipeline.added) {
    if (tokens.size() <= static_cast<size_t>(token.id)) tokens.resize(token.id + 1);
    tokens[token.id] =
        token.normalized ? pipeline.normalizer.Applied(token.content) : token.content;
  }
  return tokens;
}

bool IsByteToken(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

// By id, the bytes of text that a token stands for. Such tokens of the decoder's as the model may
// put in front of a text count, too: a space in its own writing.
std::vector<size_t> TextBytesOf(const Pipeline& pipeline, const std::vector<std::string>& tokens) {
  std::vector<size_t> bytes;
  for (const std::string& token : tokens) {
    const auto is_rest = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
    size_t size = token.size();
    if (pipeline.pre_tokenizer.byte_level()) {  // a character of the alphabet for each byte
      size -= std::count_if(token.begin(), token.end(), is_rest);
    } else if (IsByteToken(token)) {
      size = 1;
    } else {
      for (size_t at = token.find(kSpaceSign); at != std::string::npos;
           at = token.find(kSpaceSign, at + kSpaceSign.size())) {
        size -= kSpaceSign.size() - 1;
      }
    }
    bytes.push_back(size);
  }
  for (const AddedToken& token : pipeline.added) bytes[token.id] = token.content.size();
  return bytes;
}

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(Pipeline pipeline, SpecialTokens special, std::string fingerprint)
      : tokens_(TokensOf(pipeline)),
        text_bytes_(TextBytesOf(pipeline, tokens_)),
        normalizer_(std::move(pipeline.normalizer)),
        raw_added_(pipeline.added, /*normalized=*/false,
                   [](const std::string& content) { return content; }),
        normalized_added_(
            pipeline.added, /*normalized=*/true,
            [this](const std::string& content) { return normalizer_.Applied(content); }),
        pre_tokenizer_(std::move(pipeline.pre_tokenizer)),
        decoder_(std::move(pipeline.decoder)),
        special_(std::move(special)),
        fingerprint_(std::move(fingerprint)),
        model_(std::move(pipeline.model)) {}

  int64_t vocabulary() const override { return static_cast<int64_t>(tokens_.size()); }
  const SpecialTokens& special_tokens() const override { return special_; }
  std::string fingerprint() const override { return fingerprint_; }

  void Encode(std::string_view text, std::vector<int32_t>* ids) const override {
    EncodeParts(text, ids, [](size_t) {});
  }

  bool EncodeWithEnds(std::string_view text, std::vector<int32_t>* ids,
                      std::vector<size_t>* ends) const override {
    size_t first = ids->size(), begin = 0;
    bool all = true;
    EncodeParts(text, ids, [&](size_t end) {
      all = all && PlaceTokens(std::span(*ids).subspan(first), begin, end, ends);
      first = ids->size();
      begin = end;
    });
    return all;
  }

  std::string Decode(const std::vector<int32_t>& ids) const override {
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocabulary() && !tokens_[id].empty()) tokens.push_back(tokens_[id]);
    }
    return decoder_.Decode(std::move(tokens));
  }

 private:
  struct CachedIds {
    uint32_t begin;
    uint32_t count;
  };

  // Calls `ended(byte)` behind each part of the text whose tokens depend on that part alone.
  template <typename Ended>
  void EncodeParts(std::string_view text, std::vector<int32_t>* ids, const Ended& ended) const {
    absl::MutexLock lock(&mutex_);
    std::string storage;
    const auto encode = [&](Piece piece)
                            ABSL_NO_THREAD_SAFETY_ANALYSIS { EncodePiece(piece.text, ids); };
    raw_added_.Split(text, [&](std::string_view part, std::optional<int32_t> id) {
      const size_t end = part.data() + part.size() - text.data();
      if (id.has_value()) {
        ids->push_back(*id);
        return ended(end);
      }
      size_t start_bytes = part.data() == text.data() ? CharacterBytes(part) : 0;
      const std::string_view normalized = normalizer_.Apply(part, &storage, &start_bytes);
      normalized_added_.Split(normalized, [&](std::string_view rest, std::optional<int32_t> id) {
        if (id.has_value()) return ids->push_back(*id);
        const size_t offset = rest.data() - normalized.data();
        pre_tokenizer_.Split({rest, start_bytes - std::min(offset, start_bytes)}, encode);
      });
      ended(end);
    });
  }

  // Where tokens of the part [begin, end) of a text end. False where their texts do not add up to
  // it: a normalizer changed its length, or the vocabulary lacks some of it.
  bool PlaceTokens(std::span<const int32_t> ids, size_t begin, size_t end,
                   std::vector<size_t>* ends) const {
    if (ids.size() == 1) {  // an added token takes white space with it
      ends->push_back(end);
      return true;
    }
    size_t sum = 0;
    for (const int32_t id : ids) sum += text_bytes_[id];
    if (ids.empty() || sum < end - begin || sum > end - begin + 1) return false;
    size_t ahead = sum - (end - begin);  // the space that is put in front of a text
    for (const int32_t id : ids) {
      const size_t bytes = text_bytes_[id];
      begin += bytes - std::min(bytes, ahead);
      ahead -= std::min(bytes, ahead);
      ends->push_back(begin);
    }
    return true;
  }

  void EncodePiece(std::string_view piece, std::vector<int32_t>* ids) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (const auto cached = cache_.find(Absl(piece)); cached != cache_.end()) {
      const auto begin = cached_ids_.begin() + cached->second.begin;
      ids->insert(ids->end(), begin, begin + cached->second.count);
      return;
    }
    const size_t before = ids->size();
    model_->Encode(piece, ids);
    if (piece.size() > kCachedPieceBytes || cache_.size() >= kCachedPieces) return;
    cache_[std::string(piece)] = {static_cast<uint32_t>(cached_ids_.size()),
                                  static_cast<uint32_t>(ids->size() - before)};
    cached_ids_.insert(cached_ids_.end(), ids->begin() + before, ids->end());
  }

  const std::vector<std::string> tokens_;  // by id
  const std::vector<size_t> text_bytes_;   // of each
  const Normalizer normalizer_;
  const AddedTokens raw_added_;
  const AddedTokens normalized_added_;
  const PreTokenizer pre_tokenizer_;
  const Decoder decoder_;
  const SpecialTokens special_;
  const std::string fingerprint_;

  // The pieces of real text repeat; their ids are remembered up to a limit.
  mutable absl::Mutex mutex_;
  const std::unique_ptr<Model> model_ ABSL_PT_GUARDED_BY(mutex_);
  mutable absl::flat_hash_map<std::string, CachedIds> cache_ ABSL_GUARDED_BY(mutex_);
  mutable std::vector<int32_t> cached_ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Tokenizer> MakeTokenizer(Pipeline pipeline, SpecialTokens special,
                                         std::string fingerprint) {
  return std::make_unique<PipelineTokenizer>(std::move(pipeline), std::move(special),
                                             std::move(fingerprint));
}

}  // namespace terrace::tokenizer_json
