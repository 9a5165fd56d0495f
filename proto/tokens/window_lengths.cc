// SPDX-License-Identifier: Apache-2.0
#include "proto/tokens/window_lengths.h"

#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

absl::Status CheckLength(int64_t count, int64_t sequence_length, std::string_view what) {
  if (count >= sequence_length + 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(what), " has ", count, " tokens, must be at least ", sequence_length + 1,
      " (data.sequence_length ", sequence_length, " and one to predict); add text or lower it"));
}

}  // namespace

int64_t HeldOutTokens(const v1::DataSpec& spec, int64_t train) {
  return spec.validation_size() > 0 ? 0 : std::llround(spec.validation_fraction() * train);
}

absl::Status CheckWindowLengths(const v1::DataSpec& spec, int64_t train, int64_t validation,
                                std::string_view source) {
  const int64_t held_out = HeldOutTokens(spec, train);
  const std::string name =
      source.empty() ? "data.train" : absl::StrCat("data.train: ", Absl(source));
  RETURN_IF_ERROR(CheckLength(train - held_out, spec.sequence_length(), name));
  if (spec.validation_size() > 0) {
    return CheckLength(validation, spec.sequence_length(), "data.validation");
  }
  if (spec.validation_fraction() <= 0) return absl::OkStatus();
  return CheckLength(held_out, spec.sequence_length(),
                     absl::StrCat("the last ", spec.validation_fraction() * 100, " % of ", name,
                                  " (data.validation_fraction)"));
}

}  // namespace terrace
