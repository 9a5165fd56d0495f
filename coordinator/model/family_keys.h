// Keys of a config.json that one family alone has, and that say more than a row of family.h can.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/model/config.h"
#include "coordinator/model/json_reader.h"

namespace terrace {

// A limit far above any published model, far below what would overflow 64-bit byte counts.
inline constexpr int64_t kMaxHeads = 4096;

// Reads how q, k and v of falcon lie, and which norms there are. REQUIRES: config->heads is read.
void ReadFalcon(JsonReader& json, ModelConfig* config);

// Reads mpt's attention, and refuses what its class has otherwise. Problems go to `problems`.
void ReadMpt(JsonReader& json, std::vector<std::string>* problems, ModelConfig* config);

}  // namespace terrace
