// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/pipeline.h"

#include <algorithm>
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

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(Pipeline pipeline, SpecialTokens special, std::string fingerprint)
      : tokens_(TokensOf(pipeline)),
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
    absl::MutexLock lock(&mutex_);
    std::string storage;
    const auto encode = [&](Piece piece)
                            ABSL_NO_THREAD_SAFETY_ANALYSIS { EncodePiece(piece.text, ids); };
    raw_added_.Split(text, [&](std::string_view part, std::optional<int32_t> id) {
      if (id.has_value()) return ids->push_back(*id);
      size_t start_bytes = part.data() == text.data() ? CharacterBytes(part) : 0;
      const std::string_view normalized = normalizer_.Apply(part, &storage, &start_bytes);
      normalized_added_.Split(normalized, [&](std::string_view rest, std::optional<int32_t> id) {
        if (id.has_value()) return ids->push_back(*id);
        const size_t offset = rest.data() - normalized.data();
        pre_tokenizer_.Split({rest, start_bytes - std::min(offset, start_bytes)}, encode);
      });
    });
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
