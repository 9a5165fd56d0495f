// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace terrace::tokenizer_json {
namespace {

std::array<uint32_t, 256> CodesOfBytes() {
  std::array<uint32_t, 256> codes;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    codes[byte] = printable ? byte : next++;
  }
  return codes;
}

}  // namespace

std::optional<std::string> BytesOfToken(std::string_view token) {
  static const absl::flat_hash_map<uint32_t, char> bytes = [] {
    absl::flat_hash_map<uint32_t, char> map;
    const std::array<uint32_t, 256> codes = CodesOfBytes();
    for (int byte = 0; byte < 256; ++byte) map[codes[byte]] = static_cast<char>(byte);
    return map;
  }();
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {  // all codes of the alphabet take one or two bytes
    uint32_t code = static_cast<unsigned char>(token[i]);
    if (code >= 0xc0 && code < 0xe0 && i + 1 < token.size()) {
      code = (code & 0x1f) << 6 | (token[++i] & 0x3f);
    }
    const auto byte = bytes.find(code);
    if (byte == bytes.end()) return std::nullopt;
    out.push_back(byte->second);
  }
  return out;
}

}  // namespace terrace::tokenizer_json
