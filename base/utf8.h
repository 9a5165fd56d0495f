// Text from outside (file contents, paths, names, sentences of libraries and of the kernel), made
// harmless where it enters a message, a log or a terminal.
//
// A message travels in protobuf strings, which must be UTF-8, and ends on terminals, which obey
// escape sequences. One stray byte must not destroy the sentence that tells of it.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace terrace {

// Bytes of the valid UTF-8 sequence that `text`, not empty, begins with; 0 when there is none
// (Unicode, table 3-7).
size_t Utf8Length(std::string_view text);

// Position of the first byte that is not valid UTF-8; text.size() when all is.
size_t FindInvalidUtf8(std::string_view text);

// INVALID_ARGUMENT with the line and the column, from 1 and in bytes, where `text`, named `what`,
// stops being UTF-8.
absl::Status CheckUtf8(std::string_view what, std::string_view text);

// The most bytes that one cleaned message keeps: a full list of a spec's errors fits.
inline constexpr size_t kMessageBytesMax = 16 << 10;

// `text` as valid UTF-8 without control characters: a byte that is not UTF-8 and a control
// character are written as \xe9, one that reorders or breaks lines as \u202e. Line feeds and tabs
// stay. What is longer than `bytes_max` is cut between two characters, and the cut is said.
std::string CleanText(std::string_view text, size_t bytes_max = kMessageBytesMax);

// The same on one line: line feeds are written as \n, so that no text can forge a log line.
std::string CleanLine(std::string_view text, size_t bytes_max = kMessageBytesMax);

}  // namespace terrace
