// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/pipeline.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/strings.h"
#include "worker/data/tokenizer_json/byte_alphabet.h"

namespace terrace::tokenizer_json {
namespace {

constexpr size_t kCachedPieces = 1 << 18;
constexpr size_t kCachedPieceBytes = 48;

// By id: the text that a token stands for.
std::vector<std::string> TextsOf(const Pipeline& pipeline) {
  std::vector<std::string> texts = pipeline.model->tokens();
  if (pipeline.pre_tokenizer.byte_level()) {
    for (std::string& text : texts) text = BytesOfToken(text).value_or(text);
  }
  for (const AddedToken& token : pipeline.added) {
    if (texts.size() <= static_cast<size_t>(token.id)) texts.resize(token.id + 1);
    texts[token.id] = token.content;
  }
  return texts;
}

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(Pipeline pipeline, SpecialTokens special, std::string fingerprint)
      : normalizer_(std::move(pipeline.normalizer)),
        texts_(TextsOf(pipeline)),
        raw_added_(pipeline.added, /*normalized=*/false,
                   [](const std::string& content) { return content; }),
        normalized_added_(pipeline.added, /*normalized=*/true,
                          [this](const std::string& content) { return Normalized(content); }),
        pre_tokenizer_(std::move(pipeline.pre_tokenizer)),
        special_(std::move(special)),
        fingerprint_(std::move(fingerprint)),
        model_(std::move(pipeline.model)) {}

  int64_t vocabulary() const override { return static_cast<int64_t>(texts_.size()); }
  const SpecialTokens& special_tokens() const override { return special_; }
  std::string fingerprint() const override { return fingerprint_; }

  void Encode(std::string_view text, std::vector<int32_t>* ids) const override {
    absl::MutexLock lock(&mutex_);
    std::string storage;
    const auto encode = [&](Piece piece)
                            ABSL_NO_THREAD_SAFETY_ANALYSIS { EncodePiece(piece.text, ids); };
    raw_added_.Split(text, [&](std::string_view part, std::optional<int32_t> id) {
      if (id.has_value()) return ids->push_back(*id);
      bool at_start = part.data() == text.data();
      const std::string_view normalized = normalizer_.Apply(part, &storage, &at_start);
      normalized_added_.Split(normalized, [&](std::string_view rest, std::optional<int32_t> id) {
        if (id.has_value()) return ids->push_back(*id);
        pre_tokenizer_.Split({rest, at_start && rest.data() == normalized.data()}, encode);
      });
    });
  }

  std::string Decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocabulary()) text += texts_[id];
    }
    return text;
  }

 private:
  struct CachedIds {
    uint32_t begin;
    uint32_t count;
  };

  std::string Normalized(const std::string& text) const {
    std::string storage;
    bool at_start = true;
    return std::string(normalizer_.Apply(text, &storage, &at_start));
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

  const Normalizer normalizer_;
  const std::vector<std::string> texts_;  // by id
  const AddedTokens raw_added_;
  const AddedTokens normalized_added_;
  const PreTokenizer pre_tokenizer_;
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
