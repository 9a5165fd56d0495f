// A message as a JSON object for scripts: its own field names, and integers as numbers, which
// protobuf's own writer makes strings of when they have 64 bits. A string of digits becomes a
// number too where another message of it has an integer of that name.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "google/protobuf/message.h"

namespace terrace {

// Fields with their default are there too; messages that are absent are not.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

}  // namespace terrace
