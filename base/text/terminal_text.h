// Text that comes in pieces, made fit to be shown on a terminal.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace terrace {

class TerminalText {
 public:
  // What can be shown of this piece and of what was kept of those before, as CleanText() writes it:
  // it moves no cursor and changes no terminal. A character that the next piece may end is kept.
  std::string Next(std::string_view piece);

 private:
  std::string rest_;
};

}  // namespace terrace
