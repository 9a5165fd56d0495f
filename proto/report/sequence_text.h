// The instructions of a sequence as lines for people: part of ProgramText (program_text.h), in the
// format of docs/program.md. A loop is written once, with i for its iteration: `mb.layer0.x[i+1]`
// is the value that the next iteration's `mb.layer0.x[i]` is.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "proto/v1/program.pb.h"

namespace terrace {

// "161 instructions"; with loops "161 instructions, 20,522 executed".
std::string CountText(int64_t instructions, int64_t executed);

void AppendSequence(const v1::Program& program, const v1::Sequence& sequence, std::string* out);

}  // namespace terrace
