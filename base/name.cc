// SPDX-License-Identifier: Apache-2.0
#include "base/name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kNameBytesMax = 128;
constexpr size_t kShownBytesMax = 160;

}  // namespace

absl::Status CheckName(std::string_view what, std::string_view name) {
  const auto may_be = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '@' ||
           c == '-';
  };
  if (!name.empty() && name.size() <= kNameBytesMax &&
      std::all_of(name.begin(), name.end(), may_be) &&
      absl::ascii_isalnum(static_cast<unsigned char>(name.front()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(what), ": got \"", CleanLine(name, kShownBytesMax), "\", must be 1 to ", kNameBytesMax,
      " letters, digits and \"._@-\", and begin with a letter or digit"));
}

}  // namespace terrace
