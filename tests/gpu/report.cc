// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/report.h"

#include <cmath>
#include <cstdio>

namespace terrace::kernels::conformance {
namespace {

constexpr size_t kMaxPrinted = 5;  // failures of an op

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}

std::string List(const std::vector<std::string>& texts) {
  std::string list = "[";
  for (size_t i = 0; i < texts.size(); ++i) list += (i > 0 ? "," : "") + Quoted(texts[i]);
  return list + "]";
}

// JSON has no infinity.
std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return std::isfinite(value) ? text : "null";
}

}  // namespace

bool Passed(const Report& report) {
  for (const auto& [name, result] : report.ops) {
    if (!result.failures.empty()) return false;
  }
  return !report.ops.empty() && !report.out_of_time && report.lost_in.empty();
}

void PrintReport(const Report& report) {
  std::printf("device  %s\nseed    %llu\n\n", report.device.c_str(),
              static_cast<unsigned long long>(report.seed));
  std::printf("%-24s %7s %14s %9s\n", "op", "checks", "error/bound", "failures");
  int checks = 0;
  size_t failures = 0;
  for (const auto& [name, result] : report.ops) {
    std::printf("%-24s %7d %14.3f %9zu\n", name.c_str(), result.checks, result.worst,
                result.failures.size());
    checks += result.checks;
    failures += result.failures.size();
  }
  for (const std::string& name : report.without_kernel) {
    std::printf("%-24s no CUDA kernel\n", name.c_str());
  }
  for (const auto& [name, result] : report.ops) {
    for (size_t i = 0; i < result.failures.size() && i < kMaxPrinted; ++i) {
      std::printf("FAILED  %s\n", result.failures[i].c_str());
    }
  }
  if (!report.lost_in.empty()) {
    std::printf("the device was lost in %s: nothing after it was run\n", report.lost_in.c_str());
  }
  std::printf("\n%s: %d checks, %zu failures, %.1f s%s\n", Passed(report) ? "PASSED" : "FAILED",
              checks, failures, report.seconds,
              report.out_of_time ? ", out of time before all were run" : "");
}

bool WriteJson(const Report& report, const std::string& file) {
  std::FILE* out = std::fopen(file.c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "conformance: cannot write '%s'\n", file.c_str());
    return false;
  }
  std::fprintf(out,
               "{\"device\":%s,\"seed\":%llu,\"seconds\":%s,\"passed\":%s,\"out_of_time\":%s,"
               "\"lost_in\":%s,",
               Quoted(report.device).c_str(), static_cast<unsigned long long>(report.seed),
               Number(report.seconds).c_str(), Passed(report) ? "true" : "false",
               report.out_of_time ? "true" : "false", Quoted(report.lost_in).c_str());
  std::fprintf(out, "\"without_kernel\":%s,\"ops\":{", List(report.without_kernel).c_str());
  const char* comma = "";
  for (const auto& [name, result] : report.ops) {
    std::fprintf(out, "%s%s:{\"checks\":%d,\"error_of_bound\":%s,\"failures\":%s}", comma,
                 Quoted(name).c_str(), result.checks, Number(result.worst).c_str(),
                 List(result.failures).c_str());
    comma = ",";
  }
  std::fprintf(out, "}}\n");
  return std::fclose(out) == 0;
}

}  // namespace terrace::kernels::conformance
