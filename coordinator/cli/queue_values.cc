// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/queue_values.h"

#include <cstddef>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text/duration.h"

namespace terrace {

std::string ReadSpan(const std::string& text, int64_t least, int64_t* seconds) {
  const std::optional<int64_t> read = ParseSpan(text);
  if (!read.has_value() || *read < least) {
    return absl::StrCat("got \"", text, "\", which must be a time such as 90s, 45m, 2h30m or 1d12h",
                        least > 0 ? "" : ", or 0s");
  }
  *seconds = *read;
  return "";
}

std::string ReadQuota(const std::string& text, QueueOptions* queue) {
  const size_t equals = text.find('=');
  uint32_t devices = 0;
  if (equals == 0 || equals == std::string::npos ||
      !absl::SimpleAtoi(text.substr(equals + 1), &devices)) {
    return absl::StrCat("got \"", text,
                        "\", which must be a user and a number of devices, such as alice=16, or "
                        "alice=0 for any number");
  }
  queue->devices_quota_of[text.substr(0, equals)] = devices;
  return "";
}

}  // namespace terrace
