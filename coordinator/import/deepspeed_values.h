// Values of a DeepSpeed configuration as DeepSpeed takes them: its sections are pydantic models,
// which read "true", "on" and 1 as true and "3" as 3, and leave out what is "auto".
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace terrace {

enum class Switch { kOff, kOn, kAuto };

bool IsAuto(const nlohmann::json& value);

// Nothing for what is neither true nor false.
std::optional<bool> BoolOf(const nlohmann::json& value);

// At a JSON pointer, "/fp16/enabled"; off where it is left out, null, or no switch.
Switch SwitchOf(const nlohmann::json& config, std::string_view pointer);

// A count, which DeepSpeed lets people write as 5e8 or "5"; those that no count can be are the
// largest. Throws nlohmann's exception for what is no number.
int64_t WholeOf(const nlohmann::json& value);

// The value at a JSON pointer; null where there is none.
nlohmann::json At(const nlohmann::json& config, std::string_view pointer);

}  // namespace terrace
