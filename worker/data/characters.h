// Characters of UTF-8 text by their class: white space and word characters, as Unicode defines
// them. Bytes that are not UTF-8 count as characters of no class.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace terrace {

// Bytes of the character that `text` begins with; 1 where it is not UTF-8. `text` is not empty.
size_t CharacterBytes(std::string_view text);

// Bytes of the white-space character (White_Space) at `position`; 0 when there is none.
size_t SpaceLength(std::string_view text, size_t position);

// Bytes of the white space at the two ends of `text`.
size_t LeadingSpaceBytes(std::string_view text);
size_t TrailingSpaceBytes(std::string_view text);

// Word characters: letters, marks, decimal digits, connectors, joiners (Unicode Technical Standard
// 18, annex C). As patterns: what stands inside of a class.
inline constexpr std::string_view kWordCharacters =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
bool BeginsWithWordCharacter(std::string_view text);
bool EndsWithWordCharacter(std::string_view text);

}  // namespace terrace
