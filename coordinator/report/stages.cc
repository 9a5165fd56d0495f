// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/stages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text/number_format.h"

namespace terrace {

PlayedProgram DrawnOf(const Prepared& prepared, int stage) {
  return {&prepared.programs[stage], prepared.simulation.left_out};
}

std::string LeftOutText(const Prepared& prepared) {
  const int64_t left_out = prepared.simulation.left_out;
  if (left_out == 0) return "";
  int loops = 0;
  for (const v1::Program& program : prepared.programs)
    loops = std::max(loops, TrainOf(program).loops_size());
  return absl::StrCat(Grouped(left_out), " iterations of ", loops > 1 ? "each" : "its",
                      " loop are left out");
}

const v1::Sequence& TrainOf(const v1::Program& program) {
  const auto& sequences = program.sequences();
  return *std::find_if(sequences.begin(), sequences.end(),
                       [](const v1::Sequence& sequence) { return sequence.name() == "train"; });
}

int IndexOf(const Prepared& prepared, uint32_t stage) {
  const auto& programs = prepared.programs;
  return static_cast<int>(
      std::find_if(programs.begin(), programs.end(),
                   [stage](const v1::Program& program) { return program.stage() == stage; }) -
      programs.begin());
}

std::set<int> EvenlyChosen(int count, size_t most) {
  std::set<int> chosen;
  const int shown = std::min(count, static_cast<int>(most));
  for (int i = 0; i < shown; ++i) chosen.insert(shown == 1 ? 0 : i * (count - 1) / (shown - 1));
  return chosen;
}

}  // namespace terrace
