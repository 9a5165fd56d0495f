// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"

namespace terrace {

int LogsCommand(const GlobalOptions& global, const LogsOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  v1::LogsRequest request;
  request.set_id(options.job);
  request.set_rank(options.rank);
  request.set_follow(options.follow);
  request.set_tail_lines(options.tail_lines);
  const absl::Status status = (*connection)->Logs(request, [&](const std::string& text) {
    if (global.json()) {
      v1::LogsChunk chunk;
      chunk.set_text(text);
      std::printf("%s\n", ToJson(chunk, /*pretty=*/false).c_str());
    } else {
      std::fwrite(text.data(), 1, text.size(), stdout);
    }
    std::fflush(stdout);
  });
  return status.ok() ? 0 : Fail(global, status);
}

}  // namespace terrace
