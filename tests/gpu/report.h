// What a run of the GPU conformance program found, as a table and as JSON.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace terrace::kernels::conformance {

struct OpResult {
  int checks = 0;
  double worst = 0;  // the largest error, as a part of its bound
  std::vector<std::string> failures;
};

struct Report {
  std::string device;
  uint64_t seed = 0;
  double seconds = 0;
  bool out_of_time = false;
  std::string lost_in;  // the case after which the device answers nothing; empty: it does
  std::map<std::string, OpResult> ops;
  std::vector<std::string> without_kernel;
};

// Something was checked, all of it, and nothing failed.
bool Passed(const Report& report);

void PrintReport(const Report& report);

// False, after saying so, when the file cannot be written.
bool WriteJson(const Report& report, const std::string& file);

}  // namespace terrace::kernels::conformance
