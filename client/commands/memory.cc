// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/paths/new_file.h"
#include "base/status_macros.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/live_display.h"
#include "client/memory_html.h"
#include "client/memory_picture.h"
#include "client/memory_snapshot.h"
#include "client/print.h"
#include "proto/report/layer_report.h"

namespace terrace {
namespace {

constexpr auto kRefresh = std::chrono::seconds(1);  // as often as ranks are reported

absl::StatusOr<std::vector<v1::Program>> ProgramsOf(Connection& connection,
                                                    const std::string& job) {
  v1::ExplainRequest request;
  request.set_id(job);
  ASSIGN_OR_RETURN(const v1::ExplainResponse response, connection.Explain(request));
  std::vector<v1::Program> programs;
  for (const std::string& bytes : response.programs()) {
    if (!programs.emplace_back().ParseFromString(bytes))
      return absl::DataLossError("the coordinator sent a program that cannot be read");
  }
  return programs;
}

absl::Status WriteFile(const std::string& path, const std::string& bytes,
                       std::vector<WrittenFile>* written) {
  RETURN_IF_ERROR(WriteOutput(path, bytes));
  written->push_back({path, bytes.size()});
  return absl::OkStatus();
}

// Of jobs that do not run, too: the programs say it.
absl::StatusOr<std::vector<WrittenFile>> WriteFiles(Connection& connection,
                                                    const MemoryOptions& options) {
  std::vector<WrittenFile> written;
  ASSIGN_OR_RETURN(const v1::Job job, connection.Get(options.job));
  ASSIGN_OR_RETURN(const std::vector<v1::Program> programs, ProgramsOf(connection, options.job));
  if (!options.html.empty()) {
    const auto live = connection.GetMemory(options.job);
    ASSIGN_OR_RETURN(const std::string page,
                     MemoryHtml(job, programs, live.ok() ? *live : v1::GetMemoryResponse()));
    RETURN_IF_ERROR(WriteFile(options.html, page, &written));
  }
  if (options.snapshot.empty()) return written;
  ASSIGN_OR_RETURN(const std::string snapshot, MemorySnapshot(programs));
  RETURN_IF_ERROR(WriteFile(options.snapshot, snapshot, &written));
  return written;
}

void Show(const GlobalOptions& global, const v1::GetMemoryResponse& now,
          const v1::GetMemoryResponse& before, int* drawn_lines) {
  if (global.json()) {
    std::printf("%s\n", ToJson(now, false).c_str());
  } else if (now.ranks().empty()) {
    std::printf("no rank has reported yet\n");
  } else if (!StandardOutputIsTerminal()) {
    std::printf("%s", MemoryTables(now, before).c_str());
  } else {
    if (*drawn_lines > 0) std::printf("\033[%dA\033[J", *drawn_lines);
    const std::string picture = MemoryPicture(now, before, TerminalColumns(), true);
    *drawn_lines = static_cast<int>(std::count(picture.begin(), picture.end(), '\n'));
    std::printf("%s", picture.c_str());
  }
  std::fflush(stdout);
}

// Until the job ends or the user has seen enough.
absl::Status Follow(const GlobalOptions& global, Connection& connection, const std::string& job) {
  v1::GetMemoryResponse before;
  int drawn_lines = 0;
  while (true) {
    auto now = connection.GetMemory(job);
    if (absl::IsFailedPrecondition(now.status())) {
      const auto ended = connection.Get(job);
      if (ended.ok() && HasEnded(ended->state())) return absl::OkStatus();
    } else if (!now.ok()) {
      return now.status();
    } else {
      Show(global, *now, before, &drawn_lines);
      before = *std::move(now);
    }
    std::this_thread::sleep_for(kRefresh);
  }
}

// Planned at the peak and, of a job that runs, as its first rank holds it now.
absl::Status ShowLayers(const GlobalOptions& global, Connection& connection,
                        const std::string& id) {
  ASSIGN_OR_RETURN(const v1::Job job, connection.Get(id));
  ASSIGN_OR_RETURN(const std::vector<v1::Program> programs, ProgramsOf(connection, id));
  const v1::Layout& layout = job.plan().layout();
  ASSIGN_OR_RETURN(const std::vector<LayerMemory> planned, LayersOfPrograms(programs));
  std::vector<LayerMemory> now;
  if (const auto live = connection.GetMemory(id); live.ok() && live->ranks_size() > 0) {
    ASSIGN_OR_RETURN(now, LayersOfRank(live->ranks(0), programs, layout));
  }
  if (global.json()) {
    std::printf("{\"planned\": %s, \"now\": %s}\n", LayerJson(planned, layout).c_str(),
                LayerJson(now, layout).c_str());
    return absl::OkStatus();
  }
  std::printf("%s", LayerText(planned, layout, "at the peak").c_str());
  if (!now.empty()) std::printf("\n%s", LayerText(now, layout, "now, of rank 0").c_str());
  return absl::OkStatus();
}

}  // namespace

int MemoryCommand(const GlobalOptions& global, const MemoryOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  if (!options.html.empty() || !options.snapshot.empty()) {
    const auto written = WriteFiles(**connection, options);
    if (!written.ok()) return Fail(global, written.status());
    PrintWritten(global, *written);
    return 0;
  }
  if (!options.by.empty()) {
    const absl::Status shown = ShowLayers(global, **connection, options.job);
    return shown.ok() ? 0 : Fail(global, shown);
  }
  if (options.watch) {
    const absl::Status followed = Follow(global, **connection, options.job);
    return followed.ok() ? 0 : Fail(global, followed);
  }
  const auto now = (*connection)->GetMemory(options.job);
  if (!now.ok()) return Fail(global, now.status());
  int drawn_lines = 0;
  if (global.json()) {
    PrintJson(*now);
  } else {
    Show(global, *now, {}, &drawn_lines);
  }
  return 0;
}

}  // namespace terrace
