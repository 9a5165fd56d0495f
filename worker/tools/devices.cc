// terrace-rank devices: the GPUs that a rank started here could use, for the daemon, which links no
// CUDA itself, and for people.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "base/machine.h"
#include "base/text/number_format.h"
#include "nlohmann/json.hpp"
#include "worker/device/backend.h"
#include "worker/probe/device.h"
#include "worker/tools/tools.h"

namespace terrace {
namespace {

// "memory_bytes" is that of the smallest: a job's ranks all get as much.
nlohmann::json Json(const absl::StatusOr<std::vector<DeviceSummary>>& devices) {
  if (!devices.ok()) return {{"devices", 0}, {"problem", std::string(devices.status().message())}};
  int64_t smallest = devices->front().memory_bytes;
  for (const DeviceSummary& device : *devices) smallest = std::min(smallest, device.memory_bytes);
  return {{"devices", devices->size()},
          {"name", devices->front().name},
          {"memory_bytes", smallest},
          {"driver", devices->front().driver},
          {"hardware", DeviceHash(*devices, ProfileVersion(TERRACE_VERSION))}};
}

int Run(const std::string& output) {
  const auto devices = ListCudaDevices();
  if (output == "json") {
    std::cout << Json(devices).dump() << "\n";
    return 0;
  }
  if (!devices.ok()) {
    std::cout << "no GPU: " << devices.status().message() << "\n";
    return 0;
  }
  for (size_t i = 0; i < devices->size(); ++i) {
    std::cout << i << "  " << (*devices)[i].name << "  " << FormatBytes((*devices)[i].memory_bytes)
              << "\n";
  }
  return 0;
}

}  // namespace

void AddDevicesTool(CLI::App* app, int* exit_code) {
  auto output = std::make_shared<std::string>("text");  // lives as long as the callback
  CLI::App* devices = app->add_subcommand("devices", "List the GPUs that a rank could use");
  devices->add_option("-o", *output, "text or json")->check(CLI::IsMember({"text", "json"}));
  devices->callback([output, exit_code] { *exit_code = Run(*output); });
}

}  // namespace terrace
