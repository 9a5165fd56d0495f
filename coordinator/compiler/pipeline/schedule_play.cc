// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/compiler/pipeline/schedule.h"

namespace terrace::compiler {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Advances each stage as far as its order and what the others have done allow, until none moves.
class Player {
 public:
  Player(const ScheduleShape& shape, const std::vector<std::vector<Pass>>& schedule,
         const IdealCosts& costs)
      : shape_(shape),
        schedule_(schedule),
        costs_(costs),
        next_(schedule.size()),
        done_(3 * size_t(shape.stages) * shape.chunks * shape.micro_batches, kNever) {
    for (const std::vector<Pass>& passes : schedule) {
      times_.start.emplace_back(passes.size(), kNever);
      times_.end.emplace_back(passes.size(), kNever);
    }
  }

  IdealTimes Play() && {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) {
        while (Advance(stage)) moved = true;
      }
    }
    double busiest = 0;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      double busy = 0;
      for (const Pass& pass : schedule_[stage]) busy += Cost(pass.kind);
      busiest = std::max(busiest, busy);
      if (!times_.end[stage].empty()) times_.step = std::max(times_.step, times_.end[stage].back());
    }
    if (busiest > 0) times_.bubble_ratio = (times_.step - busiest) / busiest;
    return std::move(times_);
  }

 private:
  bool Advance(int stage) {
    const size_t i = next_[stage];
    if (i == schedule_[stage].size()) return false;
    const Pass& pass = schedule_[stage][i];
    const double start = std::max(i == 0 ? 0 : times_.end[stage][i - 1], Ready(stage, pass));
    if (start == kNever) return false;
    times_.start[stage][i] = start;
    times_.end[stage][i] = start + Cost(pass.kind);
    Done(pass, ModelChunk(shape_, stage, pass.chunk)) = times_.end[stage][i];
    ++next_[stage];
    return true;
  }

  double Ready(int stage, const Pass& pass) {
    double ready = 0;
    if (pass.kind != PassKind::kForward) {
      Pass before = pass;
      before.kind =
          pass.kind == PassKind::kBackwardWeight ? PassKind::kBackwardInput : PassKind::kForward;
      ready = Done(before, ModelChunk(shape_, stage, pass.chunk));
    }
    if (const auto from = ProducerOf(shape_, stage, pass)) {
      const double transfer = from->stage == stage ? 0 : costs_.transfer;
      ready = std::max(ready, Done(pass, ModelChunk(shape_, from->stage, from->chunk)) + transfer);
    }
    return ready;
  }

  double Cost(PassKind kind) const {
    switch (kind) {
      case PassKind::kForward:
        return costs_.forward;
      case PassKind::kBackward:
        return costs_.backward_input + costs_.backward_weight;
      case PassKind::kBackwardInput:
        return costs_.backward_input;
      case PassKind::kBackwardWeight:
        return costs_.backward_weight;
    }
    return 0;
  }

  // When the pass of that kind over a chunk of the model ended. A backward pass has the place of
  // its input gradients.
  double& Done(const Pass& pass, int model_chunk) {
    const int row = pass.kind == PassKind::kForward          ? 0
                    : pass.kind == PassKind::kBackwardWeight ? 2
                                                             : 1;
    const size_t chunks = size_t(shape_.stages) * shape_.chunks;
    return done_[(row * chunks + model_chunk) * shape_.micro_batches + pass.micro_batch];
  }

  const ScheduleShape& shape_;
  const std::vector<std::vector<Pass>>& schedule_;
  const IdealCosts& costs_;
  std::vector<size_t> next_;  // by stage
  std::vector<double> done_;
  IdealTimes times_;
};

std::string Label(const ScheduleShape& shape, const Pass& pass) {
  std::string label;
  if (shape.chunks > 1) label = std::string(1 + pass.chunk / 26, char('a' + pass.chunk % 26));
  absl::StrAppend(&label, pass.micro_batch);
  if (pass.kind == PassKind::kBackwardWeight) return label + "w";
  return pass.kind == PassKind::kForward ? label : label + "'";
}

// The label of each unit of time of one stage.
std::vector<std::string> Cells(const ScheduleShape& shape, const std::vector<Pass>& passes,
                               const IdealTimes& times, int stage) {
  std::vector<std::string> cells(static_cast<size_t>(times.step), ".");
  for (size_t i = 0; i < passes.size(); ++i) {
    const auto begin = static_cast<size_t>(times.start[stage][i]);
    const auto end = static_cast<size_t>(times.end[stage][i]);
    std::fill(cells.begin() + begin, cells.begin() + end, Label(shape, passes[i]));
  }
  return cells;
}

std::string Row(const std::string& head, const std::vector<std::string>& cells, int width,
                int columns) {
  std::string row = absl::StrFormat("%-9s", head);
  constexpr int kMarkWidth = 4;
  for (size_t i = 0; i < cells.size(); ++i) {
    const int mark = i + 1 < cells.size() ? kMarkWidth : 0;  // must still fit
    if (static_cast<int>(row.size()) + width + mark > columns) {
      row += " ...";
      break;
    }
    absl::StrAppendFormat(&row, "%*s", width, cells[i]);
  }
  return row + "\n";
}

}  // namespace

IdealTimes PlayIdeal(const ScheduleShape& shape, const std::vector<std::vector<Pass>>& schedule,
                     const IdealCosts& costs) {
  return Player(shape, schedule, costs).Play();
}

std::string ScheduleTable(const ScheduleShape& shape,
                          const std::vector<std::vector<Pass>>& schedule, int columns) {
  const IdealTimes times = PlayIdeal(shape, schedule, {});
  if (times.step == kNever) return "the order blocks\n";
  std::vector<std::vector<std::string>> rows(1);
  for (int clock = 0; clock < times.step; ++clock) rows[0].push_back(absl::StrCat(clock));
  for (int stage = 0; stage < shape.stages; ++stage) {
    rows.push_back(Cells(shape, schedule[stage], times, stage));
  }
  size_t width = 0;
  for (const auto& row : rows) {
    for (const std::string& cell : row) width = std::max(width, cell.size());
  }
  std::string table = Row("clock", rows[0], static_cast<int>(width) + 1, columns);
  for (int stage = 0; stage < shape.stages; ++stage) {
    table +=
        Row(absl::StrCat("stage ", stage), rows[stage + 1], static_cast<int>(width) + 1, columns);
  }
  return table;
}

}  // namespace terrace::compiler
