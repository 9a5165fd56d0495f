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
    visit({piece.text.substr(part.begin, part.end - part.begin),
           piece.start_bytes - std::min(part.begin, piece.start_bytes)});
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
    visit({with_space, piece.start_bytes + (piece.start_bytes > 0 ? 1 : 0)});
  }
};

class MetaspaceStep final : public PreTokenizerStep {
 public:
  enum class Scheme { kAlways, kFirst, kNever };
  MetaspaceStep(std::string replacement, Scheme scheme)
      : replacement_(std::move(replacement)), scheme_(scheme) {}

  void Apply(Piece piece, const PieceVisitor& visit) const override {
    std::string text;
    size_t start_bytes = piece.start_bytes;
    for (size_t i = 0; i < piece.text.size(); ++i) {
      if (piece.text[i] != ' ') {
        text.push_back(piece.text[i]);
        continue;
      }
      text += replacement_;
      if (i < piece.start_bytes) start_bytes += replacement_.size() - 1;
    }
    const bool wants = scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && start_bytes > 0);
    if (wants && !text.starts_with(replacement_)) {
      text.insert(0, replacement_);
      if (start_bytes > 0) start_bytes += replacement_.size();
    }
    visit({text, start_bytes});
  }

 private:
  const std::string replacement_;
  const Scheme scheme_;
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

std::unique_ptr<PreTokenizerStep> MakeMetaspaceStep(std::string replacement,
                                                    std::string_view scheme) {
  using Scheme = MetaspaceStep::Scheme;
  const Scheme value = scheme == "never"   ? Scheme::kNever
                       : scheme == "first" ? Scheme::kFirst
                                           : Scheme::kAlways;
  return std::make_unique<MetaspaceStep>(std::move(replacement), value);
}

std::unique_ptr<PreTokenizerStep> MakePrefixSpaceStep() {
  return std::make_unique<PrefixSpaceStep>();
}

}  // namespace terrace::tokenizer_json
