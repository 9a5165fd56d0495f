// How the checker says no: where, what, and the rule. Internal to proto/check. Thread-safe: no
// state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// "instruction 12 of 'train' (matmul, h.0 qkv)": the operation and its line for people.
std::string Where(const v1::Sequence& sequence, const v1::Instruction& instruction);

// "buffer 7 'h.0.qkv'". REQUIRES: the id exists.
std::string BufferText(const v1::Program& program, uint32_t id);

}  // namespace terrace::check
