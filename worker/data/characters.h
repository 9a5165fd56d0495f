// Characters and white space of UTF-8 text. Bytes that are not UTF-8 count as characters.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace {

// Bytes of the character that `text` begins with; 1 where it is not UTF-8. `text` is not empty.
size_t CharacterBytes(std::string_view text);

// Where the last character of `text` begins; `text` is not empty.
size_t LastCharacter(std::string_view text);

// Bytes of the white-space character (White_Space) at `position`; 0 when there is none.
size_t SpaceLength(std::string_view text, size_t position);

// Bytes of the white space at the two ends of `text`.
size_t LeadingSpaceBytes(std::string_view text);
size_t TrailingSpaceBytes(std::string_view text);

bool IsSpace(uint32_t code);  // White_Space

}  // namespace terrace
