// Puts a copy of a store (terrace backup) in the place of a coordinator's own.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace terrace {

struct RestoreOptions {
  std::string copy;             // the file; a log beside it (FILE-wal) is part of it
  std::string state_directory;  // of the coordinator, which must not run
  bool replace = false;         // a store that is there: it is moved aside
};

struct Restored {
  int64_t jobs = 0;
  int64_t unfinished = 0;  // of these, that go on
  std::string moved_to;    // where the store is now that was there; empty: there was none
};

// Jobs and gangs get numbers that were not given out since the copy was made, so that what still
// runs on workers is never taken for what is started now: gangs that run are stopped, and their
// jobs go on from their newest checkpoints, unless somebody had asked for another end. The store
// belongs to the owner of its folder.
//
// ALREADY_EXISTS: there is a store, and it is not to be replaced. UNAVAILABLE: a coordinator uses
// it. NOT_FOUND, DATA_LOSS, FAILED_PRECONDITION: the copy is missing, damaged or of a newer
// Terrace. Nothing has changed then.
absl::StatusOr<Restored> RestoreStore(const RestoreOptions& options,
                                      const Clock& clock = SystemClock());

}  // namespace terrace
