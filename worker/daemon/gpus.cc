// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/gpus.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace terrace {

Gpus ParseGpus(std::string_view json) {
  Gpus gpus;
  const auto object = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("devices") ||
      !object["devices"].is_number_unsigned()) {
    gpus.problem = "terrace-rank devices lists none";
    return gpus;
  }
  const auto text = [&object](const char* key) {
    return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
  };
  gpus.devices = object["devices"].get<uint32_t>();
  gpus.name = text("name");
  gpus.problem = text("problem");
  if (object.contains("memory_bytes") && object["memory_bytes"].is_number_unsigned())
    gpus.memory_bytes = object["memory_bytes"].get<int64_t>();
  return gpus;
}

absl::StatusOr<bool> OffersGpus(std::string_view wanted, const Gpus& gpus) {
  if (wanted == "cpu") return false;
  if (gpus.devices > 0) return true;
  if (wanted != "cuda") return false;
  return absl::FailedPreconditionError(absl::StrCat(
      "--device: got cuda, but ", gpus.problem,
      "; see that nvidia-smi lists a GPU here, or start the worker with --device cpu"));
}

int64_t MemoryOfEach(const Gpus& gpus, uint32_t devices) {
  const uint32_t sharers = (devices + gpus.devices - 1) / gpus.devices;
  return gpus.memory_bytes / sharers;
}

}  // namespace terrace
