// SPDX-License-Identifier: Apache-2.0
#include "client/run_log/checksum.h"

#include <array>

namespace terrace {
namespace {

using Table = std::array<uint32_t, 256>;

constexpr Table TableOf(uint32_t reflected_polynomial) {
  Table table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1) ^ ((rest & 1) != 0 ? reflected_polynomial : 0);
    }
    table[byte] = rest;
  }
  return table;
}
constexpr Table kIeee = TableOf(0xEDB88320);
constexpr Table kCastagnoli = TableOf(0x82F63B78);

uint32_t Check(const Table& table, std::string_view bytes) {
  uint32_t rest = ~uint32_t{0};
  for (const char byte : bytes) {
    rest = (rest >> 8) ^ table[(rest ^ static_cast<uint8_t>(byte)) & 0xff];
  }
  return ~rest;
}

}  // namespace

uint32_t Crc32(std::string_view bytes) { return Check(kIeee, bytes); }
uint32_t Crc32c(std::string_view bytes) { return Check(kCastagnoli, bytes); }

}  // namespace terrace
