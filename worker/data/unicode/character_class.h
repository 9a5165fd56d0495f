// Properties of characters, as the tokenizers library has them.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

// Each character in lower case, whatever stands around it.
std::string Lowercase(std::string_view text);

bool IsMark(uint32_t code);         // an accent, or what else goes with the character before it
bool IsPunctuation(uint32_t code);  // ASCII's signs too
bool IsNumeric(uint32_t code);
bool ExtendsCluster(uint32_t code);    // belongs to the character before it
bool IsClusterControl(uint32_t code);  // stands alone, whatever follows
bool IsWordCharacter(uint32_t code);   // letters, marks, decimal digits, connectors, joiners

}  // namespace terrace
