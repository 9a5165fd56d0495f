// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/duration.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/table.h"

namespace terrace {

int SharesCommand(const GlobalOptions& global) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto shares = (*connection)->ListShares();
  if (!shares.ok()) return Fail(global, shares.status());
  if (global.json()) {
    PrintJson(*shares);
    return 0;
  }
  Table table(
      {"USER", "DEVICE TIME", "OF ALL", "FAIR SHARE", "DEVICES", "QUOTA", "RUNNING", "WAITING"});
  for (const v1::Share& share : shares->shares()) {
    table.Add({share.owner().empty() ? "(unknown)" : share.owner(),
               FormatDuration(share.device_seconds()),
               absl::StrFormat("%.1f %%", 100 * share.usage_ratio()),
               absl::StrFormat("%.3f", share.fair_share_factor()), absl::StrCat(share.devices()),
               share.devices_quota() == 0 ? "-" : absl::StrCat(share.devices_quota()),
               absl::StrCat(share.jobs_running()), absl::StrCat(share.jobs_waiting())});
  }
  std::fputs(table.ToString().c_str(), stdout);
  if (shares->half_life_seconds() > 0) {
    std::printf("device time counts half after %s\n",
                SpanText(shares->half_life_seconds()).c_str());
  } else {
    std::printf("device time does not count for the order of the queue\n");
  }
  return 0;
}

}  // namespace terrace
