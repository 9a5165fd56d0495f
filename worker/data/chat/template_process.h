// The process that renders chat templates: python3 with Debian's jinja2, which transformers renders
// with, and a script that is part of this program (render_chats.py; decision 38).
//
// It is a child that waits until the first line is sent: a rank starts it before it confines
// itself, because afterwards it may start no programs. Its environment holds nothing but PATH and
// TZ, its memory, files and processor time are limited, and it ends with this process.
//
// Used only on one thread at a time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

inline constexpr int kTemplateCpuSecondsMax = 10;  // of one line
inline constexpr size_t kRenderedBytesMax = size_t{16} << 20;
inline constexpr size_t kTemplateMemoryMax = size_t{1} << 30;

// The first binary of that name in PATH, absolute; "" where there is none.
std::string FindPython();

class TemplateProcess {
 public:
  // What the child gives up before it runs the program, whose path it is told. Runs after fork: the
  // process may have one thread only. Null: nothing.
  using Confine = std::function<absl::Status(const std::string& python)>;
  static absl::StatusOr<std::unique_ptr<TemplateProcess>> Start(const Confine& confine = nullptr);
  ~TemplateProcess();
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;

  // One line out, one line back, both without their end. INVALID_ARGUMENT: rendering took too long;
  // FAILED_PRECONDITION: there is no python3, or it ended.
  absl::StatusOr<std::string> Exchange(std::string_view line);

 private:
  TemplateProcess(pid_t child, UniqueFd socket) : child_(child), socket_(std::move(socket)) {}
  absl::Status WhyItEnded();
  void Close();

  pid_t child_;
  UniqueFd socket_;
  std::string read_;  // beyond the line that was asked for
};

}  // namespace terrace
