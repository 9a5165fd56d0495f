// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/queue_flags.h"

#include <cstdint>
#include <optional>
#include <string>

#include "base/text/duration.h"

namespace terrace {
namespace {

// A time of at least a second, as of time_limit in a spec.
void AddSpan(CLI::App& app, const std::string& flag, int64_t& seconds, const std::string& meaning) {
  app.add_option_function<std::string>(
         flag,
         [flag, &seconds](const std::string& text) {
           const std::optional<int64_t> read = ParseSpan(text);
           if (!read.has_value() || *read < 1) {
             throw CLI::ValidationError(
                 flag, "got \"" + text + "\", which must be a time such as 90s, 45m, 2h30m or 1d12h");
           }
           seconds = *read;
         },
         meaning)
      ->type_name("TIME");
}

}  // namespace

void AddQueueFlags(CLI::App& app, QueueOptions& queue) {
  AddSpan(app, "--time-limit-default", queue.time_limit_default_seconds,
          "time_limit of jobs whose spec has none (12h); none if absent");
  AddSpan(app, "--time-limit-max", queue.time_limit_max_seconds,
          "the longest time_limit that a job may ask for, and what it gets without one (7d)");
}

}  // namespace terrace
