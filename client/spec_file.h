// Reads a job spec for submission: its text and the folder that its relative paths start from.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "proto/v1/job.pb.h"

namespace terrace {

inline constexpr int64_t kSpecFileBytesMax = 1 << 20;  // the coordinator takes no more

// NOT_FOUND names the file; INVALID_ARGUMENT names the place that is not UTF-8.
inline absl::StatusOr<v1::SubmitRequest> ReadSpecFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  absl::StatusOr<std::string> text = ReadTextFile(absolute.string(), kSpecFileBytesMax);
  if (!text.ok()) {
    return absl::NotFoundError(absl::StrCat("cannot read the job spec ", path, " (",
                                            text.status().message(),
                                            "); give the path of a YAML file"));
  }
  v1::SubmitRequest request;
  request.set_yaml(*std::move(text));
  RETURN_IF_ERROR(CheckUtf8("the spec", request.yaml()));
  request.set_base_directory(absolute.parent_path().lexically_normal().string());
  return request;
}

}  // namespace terrace
