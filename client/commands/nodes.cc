// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/text/number_format.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/table.h"

namespace terrace {

int NodesCommand(const GlobalOptions& global) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto nodes = (*connection)->ListNodes();
  if (!nodes.ok()) return Fail(global, nodes.status());
  if (global.json()) {
    PrintJson(*nodes);
    return 0;
  }
  const int64_t now_ms = SystemClock().UnixMillis();
  Table table({"NODE", "STATE", "DEVICES", "DEVICE", "CORES", "MEMORY", "ISA", "F32", "BF16",
               "SEEN", "METRICS"});
  auto rate = [](double flops) {
    return flops > 0 ? absl::StrFormat("%.2f TFLOP/s", flops / 1e12) : std::string("-");
  };
  for (const v1::Node& node : nodes->nodes()) {
    table.Add({node.name(), node.state(), absl::StrCat(node.devices_used(), "/", node.devices()),
               DeviceText(node), absl::StrCat(node.cores()), FormatBytes(node.memory_bytes()),
               node.instruction_set(), rate(node.profile().f32_flops_per_second()),
               rate(node.profile().bf16_flops_per_second()),
               FormatAge(node.last_heartbeat_unix_ms(), now_ms) + " ago", node.metrics_address()});
  }
  std::fputs(table.ToString().c_str(), stdout);
  for (const v1::Node& node : nodes->nodes()) {
    if (!node.problem().empty()) {
      std::printf("%s: %s\n", node.name().c_str(), node.problem().c_str());
    }
  }
  for (const v1::Node& node : nodes->nodes()) {
    if (!node.profile().doubt().empty()) {
      std::printf("%s: its rates are in doubt: %s\n", node.name().c_str(),
                  node.profile().doubt().c_str());
    }
  }
  if (nodes->nodes().empty())
    std::printf("no worker has registered; start one with terrace-worker --coordinator %s\n",
                global.coordinator.c_str());
  return 0;
}

}  // namespace terrace
