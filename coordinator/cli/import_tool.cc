// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/import_tool.h"

#include <cstdio>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "coordinator/import/megatron/megatron.h"
#include "coordinator/import/report.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

constexpr int64_t kInputBytesMax = 4 << 20;

absl::StatusOr<SpecDraft> Draft(const ImportOptions& options) {
  const bool flags = options.from == "megatron" && options.input.find("--") != std::string::npos;
  if (flags) return ImportMegatron(options.input, options.context);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.input, kInputBytesMax));
  auto draft = options.from == "megatron" ? ImportMegatron(text, options.context)
                                          : ImportDeepSpeed(text, options.context);
  if (draft.ok()) return draft;
  return absl::Status(draft.status().code(),
                      absl::StrCat(options.input, ": ", draft.status().message()));
}

}  // namespace

absl::StatusOr<bool> ImportConfiguration(const ImportOptions& options) {
  ASSIGN_OR_RETURN(const SpecDraft draft, Draft(options));
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  const absl::Status valid = ParseJobSpec(draft.Yaml(), folder).status();
  std::vector<std::string> problems;
  if (!valid.ok()) problems = absl::StrSplit(std::string(valid.message()), '\n', absl::SkipEmpty());
  if (options.json) {
    std::fputs(ImportJson(draft, problems).c_str(), stdout);
    return valid.ok();
  }
  std::fputs(ImportText(draft, problems).c_str(), stderr);
  std::fputs(draft.Yaml().c_str(), stdout);
  if (!valid.ok()) {
    std::fputs("the imported spec has the problems above; correct it before `terrace plan`\n",
               stderr);
  }
  return valid.ok();
}

}  // namespace terrace
