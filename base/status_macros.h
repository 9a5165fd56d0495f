// Early return on a failed absl::Status or StatusOr. The names are Abseil's own from later
// releases, so that a newer Abseil replaces this file.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TERRACE_CONCAT_INNER(a, b) a##b
#define TERRACE_CONCAT(a, b) TERRACE_CONCAT_INNER(a, b)

// RETURN_IF_ERROR(expression of type absl::Status);
#define RETURN_IF_ERROR(expr)                                         \
  do {                                                                \
    if (absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

// ASSIGN_OR_RETURN(auto x, expression of type absl::StatusOr<X>);
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_INNER(TERRACE_CONCAT(status_or_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_INNER(tmp, lhs, expr)   \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()
