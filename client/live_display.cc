// SPDX-License-Identifier: Apache-2.0
#include "client/live_display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"
#include "client/print.h"

namespace terrace {
namespace {

constexpr int64_t kRedrawMs = 100;
constexpr int64_t kLineMs = 5000;  // between lines where nothing can be redrawn
constexpr int kBarWidth = 30;
constexpr int kMinColumns = 40;

std::string Bar(double fraction) {
  const int filled = std::clamp(static_cast<int>(fraction * kBarWidth), 0, kBarWidth);
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "]";
}

}  // namespace

bool StandardOutputIsTerminal() { return isatty(STDOUT_FILENO) == 1; }

int TerminalColumns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return std::max<int>(kMinColumns, size.ws_col);
}

LiveDisplay::LiveDisplay(const v1::Job& job, bool terminal, int columns)
    : job_(job), terminal_(terminal), columns_(columns) {}

std::string LiveDisplay::MemoryLine() const {
  if (job_.plan().memory().empty()) return "";
  const v1::StageMemory& memory = job_.plan().memory(0);
  std::string text = absl::StrCat("memory  ", FormatBytes(memory.arena_bytes()), " a rank:");
  for (const v1::MemoryLine& line : memory.lines()) {
    if (line.class_() == v1::EXTERNAL || line.bytes() == 0) continue;
    const std::string name = line.class_() == v1::BUFFER_CLASS_UNSPECIFIED
                                 ? "gaps"
                                 : absl::AsciiStrToLower(v1::BufferClass_Name(line.class_()));
    absl::StrAppend(&text, " ", name, " ", FormatBytes(line.bytes()));
  }
  return text;
}

std::string LiveDisplay::Block(int64_t now_ms) const {
  const int64_t steps = job_.spec().train().steps();
  const double fraction = steps == 0 ? 0 : static_cast<double>(step_.step()) / steps;
  std::string eta = "-";
  if (step_.step() > first_step_) {
    const double per_step = (now_ms - first_step_ms_) / 1e3 / (step_.step() - first_step_);
    eta = FormatDuration(per_step * (steps - step_.step()));
  }
  std::string block = absl::StrFormat("step    %d/%d %s %.0f %%  ETA %s\n", step_.step(), steps,
                                      Bar(fraction), fraction * 100, eta);
  absl::StrAppendFormat(&block, "loss    %.4f  grad norm %.3f  lr %.3g", step_.loss(),
                        step_.grad_norm(), step_.learning_rate());
  if (step_.loss_scale() > 0) absl::StrAppend(&block, "  loss scale ", step_.loss_scale());
  if (has_eval_)
    absl::StrAppendFormat(&block, "  validation %.4f (step %d%s)", eval_.loss(), eval_.step(),
                          eval_.best() ? ", the best" : "");
  absl::StrAppendFormat(&block, "\nspeed   %s tokens/s  %s a step  %s tokens seen\n",
                        FormatCount(step_.tokens_per_second()),
                        FormatDuration(step_.step_seconds()), FormatCount(step_.tokens()));
  absl::StrAppend(&block, MemoryLine(), "\n");
  if (checkpoint_step_ > 0)
    absl::StrAppend(&block, "saved   step ", checkpoint_step_, "  ", checkpoint_, "\n");
  return block;
}

void LiveDisplay::Erase() {
  if (drawn_lines_ > 0) std::printf("\033[%dA\033[J", drawn_lines_);
  drawn_lines_ = 0;
}

void LiveDisplay::Draw(int64_t now_ms) {
  Erase();
  std::string line;
  for (const char c : Block(now_ms)) {
    if (c != '\n') {
      line += c;
      continue;
    }
    if (static_cast<int>(line.size()) >= columns_) line.resize(columns_ - 1);
    std::printf("%s\n", line.c_str());
    ++drawn_lines_;
    line.clear();
  }
  std::fflush(stdout);
  last_draw_ms_ = now_ms;
}

void LiveDisplay::Note(const std::string& text) {
  if (terminal_) Erase();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void LiveDisplay::Show(const v1::JobEvent& event, int64_t now_ms) {
  const int64_t steps = job_.spec().train().steps();
  switch (event.event_case()) {
    case v1::JobEvent::kStep: {
      if (first_step_ms_ == 0) {
        first_step_ = event.step().step();
        first_step_ms_ = now_ms;
      }
      step_ = event.step();
      const bool last = step_.step() >= steps;
      if (terminal_ && (last || now_ms - last_draw_ms_ >= kRedrawMs)) Draw(now_ms);
      if (!terminal_ && (last || last_draw_ms_ == 0 || now_ms - last_draw_ms_ >= kLineMs)) {
        Note(EventText(event, steps));
        last_draw_ms_ = now_ms;
      }
      return;
    }
    case v1::JobEvent::kEval:
      eval_ = event.eval();
      has_eval_ = true;
      if (job_.spec().train().has_preference()) {
        return Note(absl::StrFormat("validation after step %d: loss %.4f over %d pairs (%s)",
                                    eval_.step(), eval_.loss(), eval_.tokens(),
                                    FormatDuration(eval_.seconds())));
      }
      return Note(EventText(event, steps));
    case v1::JobEvent::kCheckpoint:
      checkpoint_ = event.checkpoint().path();
      checkpoint_step_ = event.checkpoint().step();
      if (!terminal_) Note(EventText(event, steps));
      return;
    case v1::JobEvent::kActivity:
      if (terminal_) Erase();
      if (event.activity().text().empty()) return;  // it has ended
      if (terminal_) {
        std::printf("%s\n", EventText(event, steps).c_str());
        drawn_lines_ = 1;
        std::fflush(stdout);
      } else if (now_ms - last_draw_ms_ >= kLineMs) {
        Note(EventText(event, steps));
        last_draw_ms_ = now_ms;
      }
      return;
    case v1::JobEvent::kWarning:
    case v1::JobEvent::kSlow:
      return Note(EventText(event, steps));
    case v1::JobEvent::kState: {
      const std::string text = EventText(event, steps);
      if (text != state_) Note(text);
      state_ = text;
      return;
    }
    case v1::JobEvent::EVENT_NOT_SET:
      return;
  }
}

void LiveDisplay::Finish() {
  if (terminal_ && step_.step() > 0) Draw(last_draw_ms_);
  drawn_lines_ = 0;
}

}  // namespace terrace
