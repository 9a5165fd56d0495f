// What the ranks of a job hold, for the terminal: tables that can be read by anything, or a picture
// with one bar a tier, a letter a class. Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/job.pb.h"

namespace terrace {

// Live bytes of the tier, of all classes.
int64_t LiveBytes(const v1::TierMemory& tier);

// `before` is an earlier response, from which rates of the traffic follow; it may be empty.
std::string MemoryTables(const v1::GetMemoryResponse& now, const v1::GetMemoryResponse& before);
// Lines no wider than `columns`. With `colour` the bars are ANSI colours, without it letters.
std::string MemoryPicture(const v1::GetMemoryResponse& now, const v1::GetMemoryResponse& before,
                          int columns, bool colour);

}  // namespace terrace
