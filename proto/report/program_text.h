// Programs as listings for people, and for golden tests: grid, arenas, groups, which parts of which
// weights a rank holds, buffers, then one line an instruction. The format is in docs/program.md.
// Pure: the same program gives the same bytes. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "proto/v1/program.pb.h"

namespace terrace {

struct ProgramTextOptions {
  std::string_view sequence;  // only this sequence; empty: all
  bool buffers = true;        // the tables of state and buffers
};
std::string ProgramText(const v1::Program& program, const ProgramTextOptions& options = {});

}  // namespace terrace
