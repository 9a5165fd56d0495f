// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/queue_values.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text/duration.h"
#include "coordinator/spec/values.h"

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

std::string ReadBytesQuota(const std::string& text, bool of_user, QueueOptions* queue) {
  const size_t equals = text.find('=');
  const size_t colon = of_user ? text.rfind(':', equals) : std::string::npos;
  const bool has_parts =
      equals != std::string::npos && (!of_user || (colon != std::string::npos && colon > 0));
  const size_t begin = of_user && has_parts ? colon + 1 : 0;
  const std::string tier = has_parts ? text.substr(begin, equals - begin) : "";
  const auto found = std::find(kQueueTierNames.begin(), kQueueTierNames.end(), tier);
  const std::optional<double> bytes =
      has_parts ? ParseBytes(text.substr(equals + 1)) : std::nullopt;
  if (found == kQueueTierNames.end() || !bytes.has_value() || *bytes < 0 || *bytes > 9e18) {
    return absl::StrCat("got \"", text, "\", which must be ", of_user ? "a user, " : "",
                        "device, host or nvme and a size, such as ", of_user ? "alice:" : "",
                        "host=512GiB");
  }
  const auto index = static_cast<size_t>(found - kQueueTierNames.begin());
  if (of_user) {
    queue->bytes_quota_of[index][text.substr(0, colon)] = static_cast<int64_t>(*bytes);
  } else {
    queue->bytes_quota[index] = static_cast<int64_t>(*bytes);
  }
  return "";
}

}  // namespace terrace
