// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/pre_tokenizer_steps.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace::tokenizer_json {
namespace {

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
    {"Removed", Behavior::kRemoved},
    {"Isolated", Behavior::kIsolated},
    {"MergedWithPrevious", Behavior::kMergedWithPrevious},
    {"MergedWithNext", Behavior::kMergedWithNext},
    {"Contiguous", Behavior::kContiguous}};

class SplitStep final : public PreTokenizerStep {
 public:
  SplitStep(Splitter splitter, Behavior behavior, bool invert)
      : splitter_(std::move(splitter)), behavior_(behavior), invert_(invert) {}

  void Apply(Piece piece, const PieceVisitor& visit) const override {
    if (behavior_ == Behavior::kIsolated || behavior_ == Behavior::kRemoved) {
      for (size_t begin = 0; begin < piece.text.size();) {
        const Part part = Next(piece.text, begin);
        if (behavior_ == Behavior::kIsolated || !part.is_match) Visit(piece, part, visit);
        begin = part.end;
      }
      return;
    }
    for (const Part& part : Merge(piece.text)) Visit(piece, part, visit);
  }

 private:
  struct Part {
    size_t begin;
    size_t end;
    bool is_match;
  };

  Part Next(std::string_view text, size_t begin) const {
    const Splitter::Part part = splitter_.Next(text, begin);
    return {begin, part.end, part.is_match != invert_};
  }

  static void Visit(Piece piece, const Part& part, const PieceVisitor& visit) {
    visit(
        {piece.text.substr(part.begin, part.end - part.begin), piece.at_start && part.begin == 0});
  }

  // A match joins its neighbour; of several in a row only the one next to the neighbour does.
  std::vector<Part> Merge(std::string_view text) const {
    std::vector<Part> parts;
    for (size_t begin = 0; begin < text.size(); begin = parts.back().end) {
      parts.push_back(Next(text, begin));
    }
    const bool backwards = behavior_ == Behavior::kMergedWithNext;
    if (backwards) std::reverse(parts.begin(), parts.end());
    std::vector<Part> merged;
    bool after_match = false;
    for (const Part& part : parts) {
      const bool joins = behavior_ == Behavior::kContiguous
                             ? !merged.empty() && part.is_match == after_match
                             : !merged.empty() && part.is_match && !after_match;
      after_match = part.is_match;
      if (!joins) {
        merged.push_back(part);
      } else {
        merged.back().begin = std::min(merged.back().begin, part.begin);
        merged.back().end = std::max(merged.back().end, part.end);
      }
    }
    if (backwards) std::reverse(merged.begin(), merged.end());
    return merged;
  }

  const Splitter splitter_;
  const Behavior behavior_;
  const bool invert_;
};

class PrefixSpaceStep final : public PreTokenizerStep {
 public:
  void Apply(Piece piece, const PieceVisitor& visit) const override {
    if (piece.text.starts_with(' ')) return visit(piece);
    const std::string with_space = absl::StrCat(" ", Absl(piece.text));
    visit({with_space, piece.at_start});
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizerStep>> MakeSplitStep(Splitter splitter,
                                                                std::string_view behavior,
                                                                bool invert) {
  for (const auto& [name, value] : kBehaviors) {
    if (name == behavior) return std::make_unique<SplitStep>(std::move(splitter), value, invert);
  }
  return Unsupported("pre_tokenizer Split.behavior", behavior,
                     "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

std::unique_ptr<PreTokenizerStep> MakePrefixSpaceStep() {
  return std::make_unique<PrefixSpaceStep>();
}

}  // namespace terrace::tokenizer_json
