// SPDX-License-Identifier: Apache-2.0
#include "base/command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kShownBytesMax = 300;

absl::Status CheckName(std::string_view what, std::string_view text) {
  if (FindInvalidUtf8(text) == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(CleanLine(what), ": got \"", CleanLine(text, kShownBytesMax),
                   "\", must be UTF-8; if it is the name of a file or a folder, rename that "
                   "(convmv renames whole trees)"));
}

// The option whose value an argument is, or its place.
std::string NameOfArgument(int index, const char* const* argv) {
  const std::string_view before = index > 1 ? argv[index - 1] : "";
  const bool is_option =
      before.starts_with("--") && before.size() > 2 && before.find('=') == std::string_view::npos;
  return is_option ? std::string(before) : absl::StrCat("argument ", index);
}

bool IsDecimal(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
}

}  // namespace

absl::Status CheckCommandLine(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    absl::Status argument = CheckName(NameOfArgument(i, argv), argv[i]);
    if (!argument.ok()) return argument;
  }
  std::error_code none;
  return CheckName("the working folder", std::filesystem::current_path(none).native());
}

std::string WholeNumber(std::string text) {
  std::string digits = text;
  std::erase(digits, '_');
  const bool has_sign = digits.starts_with('-') || digits.starts_with('+');
  const std::string sign = digits.starts_with('-') ? "-" : "";
  if (has_sign) digits.erase(0, 1);
  if (uint64_t value = 0; digits.starts_with("0x") && absl::SimpleHexAtoi(digits, &value)) {
    return absl::StrCat(sign, value);
  }
  if (!IsDecimal(digits)) return text;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return sign + digits;
}

std::string WholeNumberProblem(const std::string& text) {
  const std::string_view digits = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
  int64_t value = 0;
  const bool is_too_long = IsDecimal(digits) && !absl::SimpleAtoi(text, &value);
  if (!is_too_long && !digits.starts_with("0x")) return "";
  return absl::StrCat("got ", text, ", must be a whole number from ", INT64_MIN, " to ", INT64_MAX);
}

int CloseOutput(std::string_view program, int exit_code) {
  const bool lost_before = std::ferror(stdout) != 0;
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  int error = errno;
  // Some file systems say only now that there was no room. A command that was started without a
  // standard output, and printed nothing, has lost nothing.
  const bool closed = std::fclose(stdout) == 0 || errno == EBADF;
  if (flushed && !closed) error = errno;
  if (!lost_before && flushed && closed) return exit_code;
  const std::string reason =
      error == 0 ? "" : ": " + std::error_code(error, std::generic_category()).message();
  std::fprintf(stderr, "%s: cannot write to standard output%s; what was printed is not complete\n",
               std::string(program).c_str(), reason.c_str());
  return exit_code != 0 ? exit_code : ToInt(ExitCode::kFailure);
}

}  // namespace terrace
