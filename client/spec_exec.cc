// SPDX-License-Identifier: Apache-2.0
#include "client/spec_exec.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "base/file.h"
#include "base/pipe_text.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace terrace {

absl::StatusOr<std::string> SpecForExec(const std::string& path, const std::string& yaml) {
  if (!IsPipe(path)) return path;
  const UniqueFd text(::memfd_create("terrace-spec", 0));
  if (!text.valid()) return FileError(errno, "make", "a file in memory");
  RETURN_IF_ERROR(WriteAll(text, std::as_bytes(std::span(yaml)), "a file in memory"));
  if (::lseek(text.get(), 0, SEEK_SET) != 0 || ::dup2(text.get(), STDIN_FILENO) < 0) {
    return FileError(errno, "read", "a file in memory");
  }
  return std::string(kStandardInput);
}

}  // namespace terrace
