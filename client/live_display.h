// What a person sees while a job trains: on a terminal a block of lines that is drawn again in
// place, elsewhere a line every few seconds. Also what `watch` shows.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "proto/v1/job.pb.h"

namespace terrace {

class LiveDisplay {
 public:
  // `job` gives steps and the plan's memory by class. `terminal`: redraw in place, as wide as
  // `columns`.
  LiveDisplay(const v1::Job& job, bool terminal, int columns);

  // Prints what the event changes. `now_ms`: monotonic, to pace lines and estimate the end.
  void Show(const v1::JobEvent& event, int64_t now_ms);
  // A line above the block that stays.
  void Note(const std::string& text);
  // Leaves the last block standing; later output starts on a fresh line.
  void Finish();

  double last_loss() const { return step_.loss(); }
  double last_eval_loss() const { return eval_.loss(); }
  bool has_eval() const { return has_eval_; }
  const std::string& checkpoint() const { return checkpoint_; }

 private:
  std::string Block(int64_t now_ms) const;
  std::string MemoryLine() const;
  void Draw(int64_t now_ms);
  void Erase();

  v1::Job job_;
  bool terminal_;
  int columns_;
  int drawn_lines_ = 0;
  int64_t last_draw_ms_ = 0;
  int64_t first_step_ = 0, first_step_ms_ = 0;
  v1::StepEvent step_;
  v1::EvalEvent eval_;
  bool has_eval_ = false;
  std::string state_, checkpoint_;
  int64_t checkpoint_step_ = 0;
};

bool StandardOutputIsTerminal();
int TerminalColumns();

}  // namespace terrace
