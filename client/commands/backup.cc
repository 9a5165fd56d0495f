// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/paths/new_file.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "base/unique_fd.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/waiting.h"

namespace terrace {
namespace {

// Into FILE.part first, so that FILE is whole whenever it is there. Returns its size.
absl::StatusOr<size_t> Fetch(Connection& connection, const std::string& path) {
  const std::string part = path + ".part";
  const auto remove_part = absl::MakeCleanup([&part] { unlink(part.c_str()); });
  unlink(part.c_str());
  // Specs and paths are in it: nobody else may read it at any time.
  const UniqueFd file(open(part.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!file.valid()) return FileError(errno, "create", part);
  Waiting waiting("copying");
  int64_t total = 0, written = 0;
  RETURN_IF_ERROR(connection.Backup([&](const v1::BackupChunk& chunk) -> absl::Status {
    if (chunk.total_bytes() > 0) total = chunk.total_bytes();
    written += static_cast<int64_t>(chunk.data().size());
    waiting.Say(absl::StrCat("copying ", FormatBytes(written), " of ", FormatBytes(total)));
    return WriteAll(file, std::as_bytes(std::span(chunk.data())), part);
  }));
  if (written != total || total == 0)
    return absl::DataLossError(
        absl::StrCat("the coordinator sent ", written, " of ", total, " bytes: try again"));
  RETURN_IF_ERROR(SyncFile(file, part));
  RETURN_IF_ERROR(Rename(part, path));
  return static_cast<size_t>(written);
}

}  // namespace

int BackupCommand(const GlobalOptions& global, const BackupOptions& options) {
  std::error_code error;
  if (!options.replace && std::filesystem::exists(options.path, error)) {
    return Fail(global,
                absl::InvalidArgumentError(absl::StrCat(
                    options.path, " is there already: name another file, or --replace it")));
  }
  if (const absl::Status place = CheckCanBeReplaced(options.path); !place.ok()) {
    return Fail(global, place);
  }
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  const auto bytes = Fetch(**connection, options.path);
  if (!bytes.ok()) return Fail(global, bytes.status());
  PrintWritten(global, {{options.path, *bytes}},
               "; put it in place with: terrace-coordinator restore FILE --state-dir FOLDER");
  return 0;
}

}  // namespace terrace
