// A failure in other words.
//
// absl::Status(code, message) loses what is attached to the status that it repeats (the reason of a
// failed rank); this does not.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace terrace {

// Of the same code, with the same payloads. OK stays OK.
inline absl::Status Reworded(const absl::Status& status, absl::string_view message) {
  absl::Status reworded(status.code(), message);
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    reworded.SetPayload(type, payload);
  });
  return reworded;
}

}  // namespace terrace
