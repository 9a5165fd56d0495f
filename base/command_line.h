// What a process is given when it starts, its arguments and its working folder, and whether what it
// printed has arrived when it ends.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace terrace {

// Names, paths and ids travel in messages, which must be UTF-8. INVALID_ARGUMENT with the first of
// the arguments, or the working folder, that is not. Thread-safe: no state.
absl::Status CheckCommandLine(int argc, const char* const* argv);

// A whole number as CLI11 is to read it: 010 is ten and 1_000 a thousand, as in a spec, and what
// begins with 0x is hexadecimal. Other texts stay as they are, for CLI11 to refuse.
std::string WholeNumber(std::string text);
// What is wrong with a whole number that 64 bits do not hold, which CLI11 would replace by the
// largest that they do; "" of all others.
std::string WholeNumberProblem(const std::string& text);

// Makes each option of a CLI::App and of its subcommands that takes whole numbers take them so.
template <typename App>
void TakeWholeNumbersAsWritten(App& app) {
  for (auto* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (!type.starts_with("INT") && !type.starts_with("UINT")) continue;
    option->transform([](std::string text) { return WholeNumber(std::move(text)); });
    option->check([](const std::string& text) { return WholeNumberProblem(text); });
  }
  for (App* command : app.get_subcommands([](App*) { return true; })) {
    TakeWholeNumbersAsWritten(*command);
  }
}

// Closes standard output, the last thing that a command does, and returns `exit_code`. Where not
// all that was printed could be written, on a full disk say, a sentence on standard error that
// begins with `program` says so, and 0 becomes 1.
int CloseOutput(std::string_view program, int exit_code);

}  // namespace terrace
