// Cuts normalised text into the pieces of a SentencePiece model: the most probable segmentation of
// a unigram model (Kudo 2018, arXiv 1804.10959) or the merges of a BPE model, best score first.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "worker/data/byte_trie.h"
#include "worker/data/sentencepiece/model.h"

namespace terrace {

class SentencePieceSegmenter {
 public:
  // `model` and `symbols` (the user-defined pieces) are borrowed.
  SentencePieceSegmenter(const SentencePieceModel* model, const ByteTrie* symbols);

  // Calls `visit` with each piece and its id (the unknown piece's where there is none), in order.
  using Visitor = std::function<void(std::string_view piece, int32_t id)>;
  void Segment(std::string_view normalized, const Visitor& visit) const;

 private:
  struct Symbol {
    std::string_view piece;  // empty: merged into the one to its left
    int32_t previous;
    int32_t next;
    bool frozen;
  };
  struct Pair {
    float score;
    int32_t left;
    int32_t right;
    size_t bytes;
  };
  static bool WorseThan(const Pair& a, const Pair& b) {
    return a.score < b.score || (a.score == b.score && a.left > b.left);
  }

  void SegmentUnigram(std::string_view normalized, const Visitor& visit) const;
  void SegmentBpe(std::string_view normalized, const Visitor& visit) const;
  std::vector<Symbol> SplitCharacters(std::string_view normalized) const;
  int32_t Find(std::string_view piece) const;  // the unknown id when there is none
  bool IsUnused(int32_t id) const {
    return model_->pieces[id].type == SentencePieceModel::PieceType::kUnused;
  }

  const SentencePieceModel* model_;
  const ByteTrie* symbols_;
  ByteTrie trie_;  // normal, user-defined and unused pieces
  float lowest_score_ = 0;
  float highest_score_ = 0;
};

}  // namespace terrace
