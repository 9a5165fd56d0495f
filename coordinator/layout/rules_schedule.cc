// Which schedules there are, and how many model chunks of how many layers each may have.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/layout/rules.h"

namespace terrace {
namespace {

class ScheduleChecker {
 public:
  ScheduleChecker(const v1::Layout& layout, int64_t layers) : layout_(layout), layers_(layers) {}

  std::vector<std::string> Check() && {
    if (CheckSchedule()) CheckStages();
    return std::move(problems_);
  }

 private:
  bool CheckSchedule();
  void CheckStages();
  void Problem(std::string_view key, const absl::AlphaNum& got, const std::string& must,
               const std::string& way_out) {
    problems_.push_back(LayoutProblem(key, std::string(got.Piece()), must, way_out));
  }

  const v1::Layout& layout_;
  const int64_t layers_;
  std::vector<std::string> problems_;
};

// False when there is nothing to hold the stages against.
bool ScheduleChecker::CheckSchedule() {
  const std::string& schedule = layout_.schedule();
  const uint32_t pp = layout_.pipeline_parallel();
  const uint32_t interleave = layout_.interleave();
  const std::vector<std::string> names = {"gpipe", "1f1b", "interleaved",
                                          "zb-h1", "zbv",  "breadth_first"};
  if (std::find(names.begin(), names.end(), schedule) == names.end()) {
    problems_.push_back(NameProblem("schedule", schedule, names));
    return false;
  }
  if (pp == 1 && schedule != "1f1b" && !ForwardFirst(schedule)) {
    Problem("schedule", schedule, "have layout.pp of 2 or more", "1f1b");
    return false;
  }
  if (schedule == "interleaved" && interleave < 2) {
    Problem("interleave", interleave, "be at least 2 with layout.schedule interleaved", "2");
  } else if (schedule == "zbv" && interleave != 2) {
    Problem("interleave", interleave, "be 2 with layout.schedule zbv", "2");
  } else if (!TwoChunksByDefault(schedule) && !InRuns(schedule) && interleave != 1) {
    Problem("interleave", interleave, absl::StrCat("be 1 with layout.schedule ", schedule),
            pp > 1 ? "layout.schedule interleaved" : "layout.schedule breadth_first");
  } else {
    return true;
  }
  return false;
}

void ScheduleChecker::CheckStages() {
  const int64_t pp = layout_.pipeline_parallel();
  const int64_t interleave = layout_.interleave();
  const int64_t chunks = pp * interleave;
  if (chunks > layers_) {
    const int64_t most = layers_ / interleave;
    return Problem("pp", pp,
                   absl::StrCat("have a layer for each of ", chunks, " model chunks (pp ", pp,
                                " x interleave ", interleave, "), the model has ", layers_),
                   most > 0 ? absl::StrCat(most) : "layout.schedule 1f1b");
  }
  if (layout_.stage_layers().empty()) return;
  int64_t sum = 0;
  bool empty = false;
  for (const uint32_t layers : layout_.stage_layers()) {
    sum += layers;
    empty |= layers == 0;
  }
  if (layout_.stage_layers_size() == chunks && sum == layers_ && !empty) return;
  v1::Layout even = layout_;
  even.clear_stage_layers();
  Problem("stage_layers", absl::StrCat("[", absl::StrJoin(layout_.stage_layers(), ", "), "]"),
          absl::StrCat("be ", chunks, " numbers (pp x interleave) of at least 1 that sum to the ",
                       layers_, " layers"),
          absl::StrCat("[", absl::StrJoin(ChunkLayers(even, layers_), ", "), "]"));
}

}  // namespace

bool TwoChunksByDefault(std::string_view schedule) {
  return schedule == "interleaved" || schedule == "zbv";
}

bool ForwardFirst(std::string_view schedule) { return schedule == "gpipe" || InRuns(schedule); }

bool InRuns(std::string_view schedule) { return schedule == "breadth_first"; }

bool UpdatesAtOnce(const v1::Layout& layout, double clip_grad_norm) {
  if (clip_grad_norm > 0 || layout.precision() == "fp16") return false;
  return layout.pipeline_parallel() <= 1 || InRuns(layout.schedule());
}

std::vector<std::string> ScheduleProblems(const v1::Layout& layout, int64_t layers) {
  return ScheduleChecker(layout, layers).Check();
}

}  // namespace terrace
