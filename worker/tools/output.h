// How the file tools of terrace-rank answer: one JSON object or text for people, errors in the
// shape the client uses.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace terrace {

enum class ToolFormat { kTable, kJson };

// Where a tool writes: results to `out`, errors and progress to `err`.
struct ToolOutput {
  ToolFormat format = ToolFormat::kTable;
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;  // then progress is drawn as a bar
};

// Progress on one line of a terminal, which is empty again at the end. Draws nothing where `err` is
// no terminal or the answer is JSON. Borrows the output.
class ProgressBar {
 public:
  explicit ProgressBar(const ToolOutput& output) : output_(output) {}
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void Draw(std::string_view text, double fraction);

 private:
  const ToolOutput& output_;
  bool drawn_ = false;
};

// The message as one line of protobuf's JSON with snake_case names, defaults included.
void PrintJson(const google::protobuf::Message& message, std::ostream& out);

// "terrace: <message>" on `err`, or {"error": {"code", "message"}} on `out`. Returns the exit code
// (base/exit_code.h).
int FailTool(const ToolOutput& output, const absl::Status& status);

}  // namespace terrace
