// Logging, so that spdlog's heavy headers are compiled once. One line: time, level, component,
// message, key=value context. Levels as in etcd: debug (how), info (state changes an operator
// wants), warn (may need attention, we go on), error (a request or job failed). Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace terrace::log {

enum class Level { kDebug, kInfo, kWarn, kError };

// Names the component ("coordinator", "worker", "rank") and the place lines go to: standard error
// when `file` is empty. Call once from main before any other thread logs; without it lines go to
// standard error at info.
void Init(std::string_view component, Level level, std::string_view file = {});

// "debug", "info", "warn" or "error"; anything else is info.
Level ParseLevel(std::string_view name);

// One message is one line: see CleanLine in base/utf8.h.
void Write(Level level, std::string_view message);

template <typename... Parts>
void Debug(const Parts&... parts) {
  Write(Level::kDebug, absl::StrCat(parts...));
}
template <typename... Parts>
void Info(const Parts&... parts) {
  Write(Level::kInfo, absl::StrCat(parts...));
}
template <typename... Parts>
void Warn(const Parts&... parts) {
  Write(Level::kWarn, absl::StrCat(parts...));
}
template <typename... Parts>
void Error(const Parts&... parts) {
  Write(Level::kError, absl::StrCat(parts...));
}

}  // namespace terrace::log
