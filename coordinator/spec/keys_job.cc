// The keys of how a job is kept and run: checkpoints, restarts, hangs, time limit, priority.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/key_sections.h"

namespace terrace {

std::vector<SpecKey> JobKeys() {
  using enum KeyKind;
  return {
      {"checkpoint.directory",
       kPath,
       "",
       false,
       0,
       0,
       {},
       "",
       "Folder of the checkpoints, not one of them; without it checkpoints/<name> beside the spec"},
      {"checkpoint.every_steps",
       kInteger,
       "0",
       false,
       0,
       1e9,
       {},
       "",
       "Steps between checkpoints; 0: only at the end"},
      {"checkpoint.save",
       kChoice,
       "auto",
       false,
       0,
       0,
       {"auto", "never"},
       "",
       "auto: every every_steps, at the end and when the job is stopped; never: none, as a job "
       "that "
       "only measures"},
      {"checkpoint.keep", kInteger, "3", false, 0, 1e6, {}, "", "Newest checkpoints kept; 0: all"},
      {"checkpoint.keep_best",
       kBoolean,
       "false",
       false,
       0,
       1,
       {},
       "",
       "A checkpoint is written after each evaluation that was the best so far, and the newest of "
       "these is kept besides the `keep` newest"},
      {"checkpoint.resume",
       kChoice,
       "auto",
       false,
       0,
       0,
       {"auto", "always", "never"},
       "",
       "auto: go on from the newest whole checkpoint in the directory, unless model or samples have "
       "changed since; always: also then; never: refuse a directory that holds one"},

      {"max_restarts",
       kInteger,
       "3",
       false,
       0,
       1000,
       {},
       "",
       "Restarts after failures without progress between them"},
      {"watchdog.on_hang",
       kChoice,
       "restart",
       false,
       0,
       0,
       {"restart", "tell"},
       "",
       "A rank that hangs is told at once; restart: after timeout the job goes on from its newest "
       "checkpoint; tell: nothing more is done"},
      {"watchdog.timeout",
       kInteger,
       "600",
       false,
       10,
       1e7,
       {},
       "watchdog.timeout_seconds",
       "Seconds that a job may hang before it is restarted"},
      {"time_limit",
       kSpan,
       "",
       false,
       1,
       3.16224e7,
       {},
       "time_limit_seconds",
       "Time that the job may have its devices, in all: then it writes a checkpoint and ends; "
       "without it the coordinator's default"},
      {"priority", kInteger, "0", false, -1000, 1000, {}, "", "Higher starts first"},
  };
}

}  // namespace terrace
