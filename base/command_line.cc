// SPDX-License-Identifier: Apache-2.0
#include "base/command_line.h"

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kShownBytesMax = 300;

absl::Status CheckName(std::string_view what, std::string_view text) {
  if (FindInvalidUtf8(text) == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      CleanLine(what), ": got \"", CleanLine(text, kShownBytesMax),
      "\", must be UTF-8; rename the file or the folder (convmv renames whole trees)"));
}

}  // namespace

absl::Status CheckCommandLine(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    absl::Status argument = CheckName(absl::StrCat("argument ", i), argv[i]);
    if (!argument.ok()) return argument;
  }
  std::error_code none;
  return CheckName("the working folder", std::filesystem::current_path(none).native());
}

}  // namespace terrace
