// Reads a job spec for submission: its text and the folder that its relative paths start from.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// NOT_FOUND names the file; INVALID_ARGUMENT names the place that is not UTF-8.
inline absl::StatusOr<v1::SubmitRequest> ReadSpecFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  std::ifstream in(absolute, std::ios::binary);
  std::stringstream text;
  // Reading an empty file sets a fail bit, which is no reason to say that it cannot be read.
  const bool empty = std::filesystem::is_regular_file(absolute, error) &&
                     std::filesystem::file_size(absolute, error) == 0;
  if (!empty && (std::filesystem::is_directory(absolute, error) || !in || !(text << in.rdbuf()))) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the job spec ", path, "; give the path of a YAML file"));
  }
  v1::SubmitRequest request;
  request.set_yaml(text.str());
  RETURN_IF_ERROR(CheckUtf8("the spec", request.yaml()));
  request.set_base_directory(absolute.parent_path().lexically_normal().string());
  return request;
}

}  // namespace terrace
