// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/duplex.h"

#include <algorithm>
#include <array>

namespace terrace {
namespace {

struct Link {
  v1::CopyKind there;
  v1::CopyKind back;
  double ratio;  // in (0, 1]
};

std::array<Link, 2> LinksOf(const v1::HardwareProfile& profile) {
  const auto ratio = [](double given) { return given > 0 && given < 1 ? given : 1.0; };
  return {{{v1::TO_DEVICE, v1::TO_HOST, ratio(profile.copy_duplex_ratio())},
           {v1::NVME_LOAD, v1::NVME_STORE, ratio(profile.nvme_duplex_ratio())}}};
}

bool Is(const v1::Instruction& instruction, v1::CopyKind kind) {
  return instruction.has_copy() && instruction.copy().kind() == kind;
}

bool Has(const v1::Sequence& sequence, v1::CopyKind kind) {
  return std::any_of(sequence.instructions().begin(), sequence.instructions().end(),
                     [kind](const v1::Instruction& instruction) { return Is(instruction, kind); });
}

struct Interval {
  double begin = 0;
  double end = 0;
};

// In order of time: the copies of a direction are on one stream.
std::vector<Interval> BusyTimes(const v1::Sequence& sequence, v1::CopyKind kind,
                                const std::vector<RunInstruction>& run) {
  std::vector<Interval> times;
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    if (Is(sequence.instructions(i), kind)) {
      times.push_back({run[i].start_seconds, run[i].end_seconds});
    }
  }
  return times;
}

// Adds to each copy of `kind` what it loses while `others` run.
void Stretch(const v1::Sequence& sequence, v1::CopyKind kind, double ratio,
             const std::vector<RunInstruction>& run, const std::vector<Interval>& others,
             std::vector<double>* seconds) {
  size_t first = 0;  // of the others that may not be over yet
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    if (!Is(sequence.instructions(i), kind)) continue;
    const RunInstruction& copy = run[i];
    while (first < others.size() && others[first].end <= copy.start_seconds) ++first;
    double together = 0;
    for (size_t k = first; k < others.size() && others[k].begin < copy.end_seconds; ++k) {
      together +=
          std::min(others[k].end, copy.end_seconds) - std::max(others[k].begin, copy.start_seconds);
    }
    (*seconds)[i] += together * (1 - ratio);
  }
}

}  // namespace

bool SharesLinks(const StageInput& alone, const v1::HardwareProfile& profile) {
  const auto links = LinksOf(profile);
  return std::any_of(links.begin(), links.end(), [&](const Link& link) {
    return link.ratio < 1 && Has(*alone.sequence, link.there) && Has(*alone.sequence, link.back);
  });
}

std::vector<double> Stretched(const StageInput& alone, const std::vector<RunInstruction>& run,
                              const v1::HardwareProfile& profile) {
  std::vector<double> seconds = alone.seconds;
  for (const Link& link : LinksOf(profile)) {
    if (link.ratio >= 1) continue;
    const std::vector<Interval> there = BusyTimes(*alone.sequence, link.there, run);
    const std::vector<Interval> back = BusyTimes(*alone.sequence, link.back, run);
    Stretch(*alone.sequence, link.there, link.ratio, run, back, &seconds);
    Stretch(*alone.sequence, link.back, link.ratio, run, there, &seconds);
  }
  return seconds;
}

}  // namespace terrace
