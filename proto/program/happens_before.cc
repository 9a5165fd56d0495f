// SPDX-License-Identifier: Apache-2.0
#include "proto/program/happens_before.h"

#include <algorithm>

namespace terrace {

HappensBefore::HappensBefore(const v1::Program& program, const v1::Sequence& sequence)
    : streams_(program.streams_size()) {
  const size_t count = sequence.instructions_size();
  stream_.resize(count);
  index_.resize(count);
  clocks_.assign(count * streams_, 0);
  std::vector<int> last(streams_, -1);  // instruction of each stream
  std::vector<int> length(streams_, 0);
  const auto join = [this](int* clock, int other) {
    for (int s = 0; s < streams_; ++s) clock[s] = std::max(clock[s], Known(other, s));
  };
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    const int stream = static_cast<int>(instruction.stream());
    int* clock = &clocks_[static_cast<size_t>(i) * streams_];
    if (last[stream] >= 0) join(clock, last[stream]);
    for (uint32_t wait : instruction.waits()) join(clock, static_cast<int>(wait));
    stream_[i] = stream;
    index_[i] = length[stream]++;
    clock[stream] = length[stream];
    last[stream] = i;
  }
}

}  // namespace terrace
