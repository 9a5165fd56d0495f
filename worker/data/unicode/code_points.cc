// SPDX-License-Identifier: Apache-2.0
#include "worker/data/unicode/code_points.h"

namespace terrace {

uint32_t NextCode(std::string_view text, size_t* position) {
  const unsigned char lead = text[(*position)++];
  if (lead < 0x80) return lead;
  const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc2 ? 1 : 0;
  uint32_t code = lead & (0x3f >> more);
  if (more == 0 || *position + more > text.size()) return kRawByte | lead;
  for (int i = 0; i < more; ++i) {
    const unsigned char c = text[*position + i];
    if ((c & 0xc0) != 0x80) return kRawByte | lead;
    code = code << 6 | (c & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[more] || code > 0x10ffff) return kRawByte | lead;
  *position += more;
  return code;
}

void AppendCode(uint32_t code, std::string* out) {
  if (code < 0x80 || (code & kRawByte) != 0) {
    out->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out->append({static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))});
  } else if (code < 0x10000) {
    out->append({static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
                 static_cast<char>(0x80 | (code & 0x3f))});
  } else {
    out->append(
        {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3f)),
         static_cast<char>(0x80 | (code >> 6 & 0x3f)), static_cast<char>(0x80 | (code & 0x3f))});
  }
}

}  // namespace terrace
