// Estimates for people, with bars, and for programs. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coordinator/estimate/memory_arithmetic.h"

namespace terrace {

// Sections as tables: bytes by class, a bar of the device's bytes to one scale a section, formulas.
std::string EstimateText(const EstimateInput& input, const std::vector<EstimateSection>& sections);

// {"model": {...}, "input": {...}, "<section>": {"note", "cases": [{"name", "device": [{"what",
// "formula", "bytes"}], "device_bytes", "host", "host_bytes", "nvme", "nvme_bytes"}]}}
std::string EstimateJson(const EstimateInput& input, const std::vector<EstimateSection>& sections);

}  // namespace terrace
