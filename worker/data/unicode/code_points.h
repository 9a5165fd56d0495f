// UTF-8 text as code points and back.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

// Marks a byte that is not UTF-8, carried through.
inline constexpr uint32_t kRawByte = 0x80000000;

// The code point at `*position`, which moves behind it.
uint32_t NextCode(std::string_view text, size_t* position);
void AppendCode(uint32_t code, std::string* out);

}  // namespace terrace
