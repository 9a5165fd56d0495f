// What a process is given when it starts: its arguments and its working folder.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"

namespace terrace {

// Names, paths and ids travel in messages, which must be UTF-8. INVALID_ARGUMENT with the first of
// the arguments, or the working folder, that is not. Thread-safe: no state.
absl::Status CheckCommandLine(int argc, const char* const* argv);

}  // namespace terrace
