// Finds the matches of a pattern of a tokenizer.json in a text.
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
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace re2 {
class RE2;
}

namespace terrace::tokenizer_json {

// One pattern: its matches, and what lies between two of them.
class Splitter {
 public:
  // INVALID_ARGUMENT names the construct that cannot be done.
  static absl::StatusOr<Splitter> Create(std::string_view pattern);
  // Matches `text` itself.
  static Splitter Literal(std::string text);
  // Matches every character for which `holds`, one at a time.
  static Splitter Characters(bool (*holds)(uint32_t code));
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;
  ~Splitter();

  struct Part {
    size_t end;
    bool is_match;
  };
  // The part that begins at `begin` < text.size().
  Part Next(std::string_view text, size_t begin) const;

 private:
  Splitter();
  Part NextCharacter(std::string_view text, size_t begin) const;
  size_t MatchEnd(std::string_view text, size_t begin) const;  // `begin`: no match
  bool (*holds_)(uint32_t code) = nullptr;  // not null: asked instead of a pattern
  std::string literal_;                     // not empty: looked for instead of a pattern
  std::unique_ptr<re2::RE2>
      before_;  // the alternatives before the look-ahead; all of them where there is none
  bool has_look_ahead_ = false;
  std::unique_ptr<re2::RE2> after_;  // null when there are none
};

}  // namespace terrace::tokenizer_json
