// The line on a terminal that says how far an evaluation is, renewed with each part and wiped at
// the end.
//
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

#include "proto/v1/evaluation.pb.h"

namespace terrace {

class EvaluationProgressLine {
 public:
  // Silent unless standard error is a terminal.
  explicit EvaluationProgressLine(bool terminal) : terminal_(terminal) {}
  ~EvaluationProgressLine() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }
  EvaluationProgressLine(const EvaluationProgressLine&) = delete;
  EvaluationProgressLine& operator=(const EvaluationProgressLine&) = delete;

  void Show(const v1::EvaluationProgress& progress) {
    if (!terminal_) return;
    std::fprintf(stderr, "\r\033[K[%u of %u] %s", progress.done() + 1, progress.of(),
                 progress.words().c_str());
    std::fflush(stderr);
    shown_ = true;
  }

 private:
  const bool terminal_;
  bool shown_ = false;
};

}  // namespace terrace
