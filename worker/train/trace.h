// The measured timeline of the first steps, one slice an instruction and stream, in the JSON trace
// event format that Perfetto (ui.perfetto.dev) and chrome://tracing open.
//
// Of a long loop the first and the last iterations are shown; a slice between them says which were
// left out.
//
// Slices are collected between steps and written once; a trace ends before a step with which it
// would outgrow kTraceBytesMax, so that it travels in one piece. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"
#include "worker/vm/prepared_program.h"

namespace terrace {

inline constexpr size_t kTraceBytesMax = 15 << 20;
// What the loops of one step show together, in instructions of all streams; two iterations of each
// loop in any case.
inline constexpr int64_t kTracedInLoopsMax = 8192;

class Trace {
 public:
  // Borrows the program. `rank` becomes the process of the trace.
  Trace(const v1::Program& program, uint32_t rank);

  // Adds the last execution of `sequence`; false when there is no room for it.
  bool Add(const PreparedSequence& sequence, int64_t step);
  // Writes all that was added, whole or not at all. RESOURCE_EXHAUSTED when no step had room; what
  // the system says, with the path, when it cannot be written.
  absl::Status Write(std::string_view path) const;

 private:
  // Iterations at a loop's start and end that are shown.
  struct Shown {
    int64_t head = 0;
    int64_t tail = 0;
  };

  void AddSlice(const PreparedStream& stream, size_t index, const PlayedCursor& at, int64_t step);
  // From the end of one slice to the start of another.
  void AddLeftOut(const PreparedStream& stream, size_t index, const PlayedCursor& at,
                  const Shown& shown);

  const uint32_t rank_;
  int64_t origin_ns_ = 0;  // start of the first slice
  int64_t steps_ = 0;      // that were added
  std::string events_;     // JSON objects, separated by commas
};

}  // namespace terrace
