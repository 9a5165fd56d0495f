// What every target demands of what it reads. A promise that is broken ends the process, so that a
// fuzzer keeps the input.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace terrace {

inline void FuzzRequire(bool holds, const char* promise, std::string_view about) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s: %.*s\n", promise, static_cast<int>(about.size()), about.data());
  std::abort();
}

// A refusal says why, in bounded length, and blames the input. What in it is not UTF-8 is made so
// where messages leave the process (base/utf8.h).
inline void JudgeRefusal(const absl::Status& status) {
  constexpr size_t kRefusalBytesMax = 256 << 10;
  const std::string message(status.message());
  FuzzRequire(!message.empty(), "a refusal says why", "");
  FuzzRequire(message.size() <= kRefusalBytesMax, "a refusal has an end", message.substr(0, 200));
  FuzzRequire(status.code() != absl::StatusCode::kInternal, "a bad input is no error of ours",
              message);
}

}  // namespace terrace
