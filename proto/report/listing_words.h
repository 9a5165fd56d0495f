// Words that listings of programs share (program_text.h, sequence_text.h).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// An enum value as listings write it: lower case; a value of a newer version as its number.
template <typename Enum>
std::string EnumText(Enum value, const std::string& (*name)(Enum)) {
  const std::string& text = name(value);
  return text.empty() ? absl::StrCat(static_cast<int>(value)) : absl::AsciiStrToLower(text);
}

// "?12" for one that the program has not got.
inline std::string BufferName(const v1::Program& program, uint32_t id) {
  if (id >= static_cast<uint32_t>(program.buffers_size())) return absl::StrCat("?", id);
  return program.buffers(id).name();
}

}  // namespace terrace
