// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/plan_files.h"

#include <cstdio>

#include "base/paths/new_file.h"
#include "base/status_macros.h"
#include "coordinator/report/html.h"
#include "coordinator/report/picture.h"
#include "coordinator/report/trace.h"

namespace terrace {
namespace {

absl::Status Write(const std::string& path, std::string (*make)(const Prepared&),
                   const Prepared& prepared) {
  if (path.empty()) return absl::OkStatus();
  const std::string text = make(prepared);
  RETURN_IF_ERROR(WriteOutput(path, text));
  std::fprintf(stderr, "wrote %s, %zu bytes\n", path.c_str(), text.size());
  return absl::OkStatus();
}

}  // namespace

absl::Status WritePlanFiles(const Prepared& prepared, const PlanFiles& files) {
  RETURN_IF_ERROR(Write(files.html, &PlanHtml, prepared));
  RETURN_IF_ERROR(Write(files.svg, &PlanSvg, prepared));
  return Write(
      files.trace, [](const Prepared& plan) { return PlanTrace(plan); }, prepared);
}

}  // namespace terrace
