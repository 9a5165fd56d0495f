// Cuts text into the pieces that byte-level BPE merges within, by the patterns of a tokenizer.json.
//
// The patterns in use (GPT-2, Llama 3, Qwen) hold one construct that RE2 lacks, the alternative
// `\s+(?!\S)`: white space, but not the last one before something else. It is recognised and done
// by hand between the alternatives before and after it; any other look-around is refused. `\s`
// means Unicode white space, as in the library that defines the format.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace re2 {
class RE2;
}

namespace terrace {

inline constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// One pattern: every match is a piece, and so is what lies between two matches.
class Splitter {
 public:
  // INVALID_ARGUMENT names the construct that cannot be done.
  static absl::StatusOr<Splitter> Create(std::string_view pattern);
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;
  ~Splitter();

  // End of the piece that begins at `begin` < text.size().
  size_t PieceEnd(std::string_view text, size_t begin) const;

 private:
  Splitter();
  size_t MatchEnd(std::string_view text, size_t begin) const;  // `begin`: no match
  std::unique_ptr<re2::RE2>
      before_;  // the alternatives before the look-ahead; all of them where there is none
  bool has_look_ahead_ = false;
  std::unique_ptr<re2::RE2> after_;  // null when there are none
};

// Several in a row: each cuts the pieces of the one before.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<Splitter> splitters) : splitters_(std::move(splitters)) {}
  void Split(std::string_view text, const std::function<void(std::string_view)>& visit) const {
    Split(text, 0, visit);
  }

 private:
  void Split(std::string_view text, size_t level,
             const std::function<void(std::string_view)>& visit) const;
  std::vector<Splitter> splitters_;
};

}  // namespace terrace
