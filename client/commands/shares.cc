// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/duration.h"
#include "base/text/number_format.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/table.h"

namespace terrace {
namespace {

std::set<std::string> TiersWithQuotas(const v1::ListSharesResponse& shares) {
  std::set<std::string> tiers;
  for (const v1::Share& share : shares.shares()) {
    for (const v1::Share::Memory& memory : share.memory())
      if (memory.bytes_quota() > 0) tiers.insert(memory.tier());
  }
  return tiers;
}

// "12.0 GiB of 40.0 GiB", without a quota "12.0 GiB".
std::string MemoryText(const v1::Share& share, const std::string& tier) {
  for (const v1::Share::Memory& memory : share.memory()) {
    if (memory.tier() != tier) continue;
    const std::string held = FormatBytes(memory.bytes());
    return memory.bytes_quota() == 0
               ? held
               : absl::StrCat(held, " of ", FormatBytes(memory.bytes_quota()));
  }
  return "-";
}

}  // namespace

int SharesCommand(const GlobalOptions& global) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto shares = (*connection)->ListShares();
  if (!shares.ok()) return Fail(global, shares.status());
  if (global.json()) {
    PrintJson(*shares);
    return 0;
  }
  std::vector<std::string> headers = {"USER",    "DEVICE TIME", "OF ALL",  "FAIR SHARE",
                                      "DEVICES", "QUOTA",       "RUNNING", "WAITING"};
  const std::set<std::string> limited = TiersWithQuotas(*shares);
  for (const std::string& tier : limited)
    headers.push_back(absl::AsciiStrToUpper(tier) + " MEMORY");
  Table table(std::move(headers));
  for (const v1::Share& share : shares->shares()) {
    std::vector<std::string> cells = {
        share.owner().empty() ? "(unknown)" : share.owner(),
        FormatDuration(share.device_seconds()),
        absl::StrFormat("%.1f %%", 100 * share.usage_ratio()),
        absl::StrFormat("%.3f", share.fair_share_factor()),
        absl::StrCat(share.devices()),
        share.devices_quota() == 0 ? "-" : absl::StrCat(share.devices_quota()),
        absl::StrCat(share.jobs_running()),
        absl::StrCat(share.jobs_waiting())};
    for (const std::string& tier : limited) cells.push_back(MemoryText(share, tier));
    table.Add(std::move(cells));
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
