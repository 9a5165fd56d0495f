// Reads a job spec for submission: its text and the folder that its relative paths start from,
// which is the present one for a spec from a pipe or from standard input ("-").
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/pipe_text.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "proto/v1/job.pb.h"

namespace terrace {

inline constexpr int64_t kSpecFileBytesMax = 1 << 20;  // the coordinator takes no more

// NOT_FOUND names the file; INVALID_ARGUMENT names the place that is not UTF-8.
inline absl::StatusOr<v1::SubmitRequest> ReadSpecFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadTextOrPipe(path, kSpecFileBytesMax);
  if (!text.ok()) {
    return absl::NotFoundError(absl::StrCat("cannot read the job spec ", path, " (",
                                            text.status().message(),
                                            "); give the path of a YAML file"));
  }
  v1::SubmitRequest request;
  request.set_yaml(*std::move(text));
  RETURN_IF_ERROR(CheckUtf8("the spec", request.yaml()));
  request.set_base_directory(FolderOf(path));
  return request;
}

}  // namespace terrace
