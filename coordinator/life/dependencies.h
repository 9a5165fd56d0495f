// Jobs that start only after others have ended: whether they may, will, or never can.
//
// A dependency names a job that was there before, so there are no cycles. Pure functions.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/v1/job.pb.h"

namespace terrace {

inline constexpr size_t kDependenciesMax = 64;  // of one job

// The state of a job; nothing: there is no such job.
using StateLookup = absl::FunctionRef<std::optional<v1::JobState>(std::string_view id)>;
using Dependencies = google::protobuf::RepeatedPtrField<v1::Dependency>;

// Of a job that is submitted with them. NOT_FOUND: a job that is unknown. FAILED_PRECONDITION: one
// that has ended in another way than is needed. INVALID_ARGUMENT: a job twice, too many.
absl::Status CheckDependencies(const Dependencies& dependencies, StateLookup state_of);

// "job a-1 (RUNNING) must succeed first"; empty: the job waits for none of them any more.
std::string UnmetText(const Dependencies& dependencies, StateLookup state_of);
// "job a-1 is FAILED, and this job was to start after it had succeeded"; empty: all may still be
// met.
std::string NeverMetText(const Dependencies& dependencies, StateLookup state_of);

}  // namespace terrace
