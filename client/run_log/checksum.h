// Cyclic redundancy checks that log formats of others ask for: of 32 bits, reflected, with all bits
// set before and inverted after.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

// CRC-32 of IEEE 802.3, as zlib has it.
uint32_t Crc32(std::string_view bytes);
// CRC-32C (Castagnoli), RFC 3720 appendix B.4.
uint32_t Crc32c(std::string_view bytes);

}  // namespace terrace
