// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/dependencies.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/life/job_state.h"

namespace terrace {
namespace {

enum class Met { kYes, kNotYet, kNever };

Met IsMet(const v1::Dependency& dependency, v1::JobState state) {
  if (!HasEnded(state)) return Met::kNotYet;
  const bool succeeded = state == v1::SUCCEEDED;
  switch (dependency.condition()) {
    case v1::DEPENDENCY_ENDED:
      return Met::kYes;
    case v1::DEPENDENCY_FAILED:
      return succeeded ? Met::kNever : Met::kYes;
    default:
      return succeeded ? Met::kYes : Met::kNever;
  }
}

std::string_view MustWords(v1::DependencyCondition condition) {
  switch (condition) {
    case v1::DEPENDENCY_ENDED:
      return "must end first";
    case v1::DEPENDENCY_FAILED:
      return "must fail first";
    default:
      return "must succeed first";
  }
}

std::string NeverText(const v1::Dependency& dependency, v1::JobState state) {
  return absl::StrCat("job ", dependency.job(), " is ", v1::JobState_Name(state),
                      ", and this job was to start after it had ",
                      dependency.condition() == v1::DEPENDENCY_FAILED ? "failed" : "succeeded");
}

}  // namespace

absl::Status CheckDependencies(const Dependencies& dependencies, StateLookup state_of) {
  if (static_cast<size_t>(dependencies.size()) > kDependenciesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("after: got ", dependencies.size(), " jobs, the most are ", kDependenciesMax,
                     ": let a job that comes between wait for some of them"));
  }
  std::set<std::string> seen;
  for (const v1::Dependency& dependency : dependencies) {
    const std::string job = CleanLine(dependency.job());
    const auto state = state_of(dependency.job());
    if (!state.has_value()) {
      return absl::NotFoundError(
          absl::StrCat("after: no job ", job, ": `terrace ls --all` lists those there are"));
    }
    if (!v1::DependencyCondition_IsValid(dependency.condition())) {
      return absl::InvalidArgumentError(
          absl::StrCat("after: job ", job, ": an unknown condition ", dependency.condition(),
                       ": this coordinator is older than the client"));
    }
    if (!seen.insert(dependency.job()).second)
      return absl::InvalidArgumentError(absl::StrCat("after: job ", job, " is named twice"));
    if (IsMet(dependency, *state) == Met::kNever) {
      return absl::FailedPreconditionError(
          absl::StrCat("after: ", NeverText(dependency, *state), ": it would never start"));
    }
  }
  return absl::OkStatus();
}

std::string UnmetText(const Dependencies& dependencies, StateLookup state_of) {
  std::string text;
  for (const v1::Dependency& dependency : dependencies) {
    const auto state = state_of(dependency.job());
    if (!state.has_value() || IsMet(dependency, *state) != Met::kNotYet) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", and ", "job ", dependency.job(), " (",
                    v1::JobState_Name(*state), ") ", Absl(MustWords(dependency.condition())));
  }
  return text;
}

std::string NeverMetText(const Dependencies& dependencies, StateLookup state_of) {
  for (const v1::Dependency& dependency : dependencies) {
    const auto state = state_of(dependency.job());
    if (!state.has_value()) {
      return absl::StrCat("job ", dependency.job(),
                          ", after which it was to start, is unknown now");
    }
    if (IsMet(dependency, *state) == Met::kNever) return NeverText(dependency, *state);
  }
  return "";
}

}  // namespace terrace
