// How the checker says no: where, what, and the rule. Internal to proto/check. Thread-safe: no
// state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// A part of a message, or what makes it: a function is called when something is refused, so that
// what is right costs no text.
template <typename Part>
decltype(auto) InWords(const Part& part) {
  if constexpr (requires { part(); }) {
    return part();
  } else {
    return (part);
  }
}

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(InWords(parts)...));
}

// Names an instruction and the first buffer that it touches, when called. Borrows all that it is
// given.
class InstructionName {
 public:
  InstructionName(const v1::Program& program, const v1::Sequence& sequence,
                  const v1::Instruction& instruction)
      : program_(program), sequence_(sequence), instruction_(instruction) {}

  void AddBuffer(uint32_t id) { buffer_ = id; }
  std::string operator()() const;

 private:
  const v1::Program& program_;
  const v1::Sequence& sequence_;
  const v1::Instruction& instruction_;
  std::optional<uint32_t> buffer_;
};

// "instruction 12 of 'train' (matmul, h.0 qkv)": the operation and its line for people.
std::string Where(const v1::Sequence& sequence, const v1::Instruction& instruction);

// "buffer 7 'h.0.qkv'", by the id that it has: where loops were written out (written.h), that of
// the original. REQUIRES: `id` is a position.
std::string BufferText(const v1::Program& program, uint32_t id);

}  // namespace terrace::check
