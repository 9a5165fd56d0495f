// A program's name: the SHA-256 (lower-case hex) of its deterministic serialisation. The bytes are
// what is sent and stored.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "proto/v1/program.pb.h"

namespace terrace {

// Deterministic: map fields are written in key order.
std::string SerializeProgram(const v1::Program& program);
std::string Sha256Hex(std::string_view bytes);

}  // namespace terrace
