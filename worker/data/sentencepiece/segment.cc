// SPDX-License-Identifier: Apache-2.0
// Sums and comparisons are in the types that the library uses, because ties decide between
// segmentations.
#include "worker/data/sentencepiece/segment.h"

#include <algorithm>
#include <cfloat>
#include <unordered_map>
#include <utility>

namespace terrace {
namespace {

constexpr float kUnknownPenalty = 10.0f;
constexpr int32_t kNone = -1;

// Bytes of the character that `text` begins with, by its lead byte.
size_t CharacterBytes(std::string_view text) {
  constexpr char kBytes[] = "\1\1\1\1\1\1\1\1\1\1\1\1\2\2\3\4";
  return std::min<size_t>(kBytes[static_cast<unsigned char>(text.front()) >> 4], text.size());
}

}  // namespace

SentencePieceSegmenter::SentencePieceSegmenter(const SentencePieceModel* model,
                                               const ByteTrie* symbols)
    : model_(model), symbols_(symbols), lowest_score_(FLT_MAX), highest_score_(FLT_MIN) {
  using enum SentencePieceModel::PieceType;
  for (size_t id = 0; id < model->pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model->pieces[id];
    if (piece.type == kNormal || piece.type == kUserDefined || piece.type == kUnused) {
      trie_.Add(piece.text, id);
    }
    if (piece.type != kNormal) continue;
    lowest_score_ = std::min(lowest_score_, piece.score);
    highest_score_ = std::max(highest_score_, piece.score);
  }
}

void SentencePieceSegmenter::Segment(std::string_view normalized, const Visitor& visit) const {
  if (normalized.empty()) return;
  if (model_->type == SentencePieceModel::Type::kUnigram) return SegmentUnigram(normalized, visit);
  SegmentBpe(normalized, visit);
}

int32_t SentencePieceSegmenter::Find(std::string_view piece) const {
  int32_t node = ByteTrie::kRoot;
  for (const char c : piece) {
    if ((node = trie_.Step(node, c)) == ByteTrie::kNone) return model_->unknown;
  }
  const int32_t id = trie_.value(node);
  return id == ByteTrie::kNone ? model_->unknown : id;
}

// Viterbi over all pieces that begin at each character.
void SentencePieceSegmenter::SegmentUnigram(std::string_view normalized,
                                            const Visitor& visit) const {
  struct BestEnd {
    int32_t id = kNone;
    int32_t begin = kNone;
    float score = 0;
  };
  std::vector<BestEnd> best(normalized.size() + 1);
  const auto offer = [&](size_t end, int32_t begin, int32_t id, float score) {
    if (best[end].begin == kNone || score > best[end].score) best[end] = {id, begin, score};
  };
  const float unknown_score = lowest_score_ - kUnknownPenalty;
  for (size_t begin = 0; begin < normalized.size();) {
    const size_t character = CharacterBytes(normalized.substr(begin));
    const float so_far = best[begin].score;
    bool has_character = false;
    int32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < normalized.size();) {
      if ((node = trie_.Step(node, normalized[end++])) == ByteTrie::kNone) break;
      const int32_t id = trie_.value(node);
      if (id == ByteTrie::kNone || IsUnused(id)) continue;
      const SentencePieceModel::Piece& piece = model_->pieces[id];
      // A user-defined piece always wins.
      const float score = piece.type == SentencePieceModel::PieceType::kUserDefined
                              ? static_cast<float>((end - begin) * highest_score_ - 0.1)
                              : piece.score;
      offer(end, begin, id, score + so_far);
      has_character = has_character || end - begin == character;
    }
    if (!has_character) offer(begin + character, begin, model_->unknown, unknown_score + so_far);
    begin += character;
  }
  std::vector<std::pair<size_t, size_t>> ranges;  // from the last to the first
  for (size_t end = normalized.size(); end > 0; end = best[end].begin) {
    ranges.emplace_back(best[end].begin, end);
  }
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    visit(normalized.substr(range->first, range->second - range->first), best[range->second].id);
  }
}

std::vector<SentencePieceSegmenter::Symbol> SentencePieceSegmenter::SplitCharacters(
    std::string_view normalized) const {
  std::vector<Symbol> symbols;
  while (!normalized.empty()) {
    const size_t symbol = symbols_->LongestPrefix(normalized);
    const size_t bytes = symbol > 0 ? symbol : CharacterBytes(normalized);
    const int32_t index = symbols.size();
    symbols.push_back({normalized.substr(0, bytes), index - 1, index + 1, symbol > 0});
    normalized.remove_prefix(bytes);
  }
  symbols.back().next = kNone;
  return symbols;
}

void SentencePieceSegmenter::SegmentBpe(std::string_view normalized, const Visitor& visit) const {
  std::vector<Symbol> symbols = SplitCharacters(normalized);
  std::vector<Pair> heap;
  // An unused piece may be a step to a used one; where it remains it is taken apart again.
  std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>>
      parts_of_unused;
  const auto propose = [&](int32_t left, int32_t right) {
    if (left == kNone || right == kNone || symbols[left].frozen || symbols[right].frozen) return;
    const std::string_view piece(symbols[left].piece.data(),
                                 symbols[left].piece.size() + symbols[right].piece.size());
    const int32_t id = Find(piece);
    if (id == model_->unknown) return;
    heap.push_back({model_->pieces[id].score, left, right, piece.size()});
    std::push_heap(heap.begin(), heap.end(), WorseThan);
    if (IsUnused(id)) parts_of_unused[piece] = {symbols[left].piece, symbols[right].piece};
  };
  for (size_t i = 1; i < symbols.size(); ++i) propose(i - 1, i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), WorseThan);
    const Pair top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[top.left];
    Symbol& right = symbols[top.right];
    if (left.piece.empty() || right.piece.empty() ||
        left.piece.size() + right.piece.size() != top.bytes) {
      continue;
    }
    left.piece = std::string_view(left.piece.data(), top.bytes);
    left.next = right.next;
    if (right.next != kNone) symbols[right.next].previous = top.left;
    right.piece = {};
    propose(left.previous, top.left);
    propose(top.left, left.next);
  }
  const std::function<void(std::string_view)> emit = [&](std::string_view piece) {
    const int32_t id = Find(piece);
    if (!IsUnused(id)) return visit(piece, id);
    const auto parts = parts_of_unused.find(piece);
    if (parts == parts_of_unused.end()) return visit(piece, model_->unknown);
    emit(parts->second.first);
    emit(parts->second.second);
  };
  for (int32_t i = 0; i != kNone; i = symbols[i].next) emit(symbols[i].piece);
}

}  // namespace terrace
