// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/resume_point.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/spec_changes.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/manifest.h"
#include "worker/rank/failure.h"

namespace terrace {
namespace {

absl::Status Refused(v1::Reason reason, std::string message) {
  return WithReason(absl::FailedPreconditionError(std::move(message)), reason);
}

// Of the spec that the checkpoint keeps. An old one that does not parse is compared with nothing.
absl::StatusOr<std::vector<SpecChange>> ChangesSince(const std::string& path,
                                                     const v1::JobSpec& now) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  v1::JobSpec then;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(manifest.spec_json, &then, options);
  if (!parsed.ok() || !then.has_train()) return std::vector<SpecChange>();
  return SpecChanges(then, now);
}

absl::Status CheckChanges(const CheckpointInfo& from, const v1::JobSpec& spec,
                          ResumePoint* point) {
  ASSIGN_OR_RETURN(const std::vector<SpecChange> changes, ChangesSince(from.path, spec));
  const std::string breaking = DescribeChanges(changes, /*breaking_only=*/true);
  if (!breaking.empty() && spec.checkpoint().resume() != "always") {
    return Refused(
        v1::REASON_WEIGHTS_ERROR,
        absl::StrCat("cannot resume from ", from.path, ": the job has changed since, ", breaking,
                     ", so that its numbers would be no continuation; name another "
                     "checkpoint.directory, or set checkpoint.resume: always to go on from there "
                     "all the same"));
  }
  if (!changes.empty()) {
    point->remarks.push_back(absl::StrCat("since the checkpoint of step ", from.step,
                                          " the job has changed: ",
                                          DescribeChanges(changes, /*breaking_only=*/false)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ResumePoint> FindResumePoint(const v1::JobSpec& spec, int64_t epoch) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  const bool own = epoch > 1;
  if (checkpoint.resume() == "never" && !own) {
    const auto newest = NewestCheckpoint(checkpoint.directory());
    if (!newest.ok()) return ResumePoint();
    return Refused(v1::REASON_CHECKPOINT_ERROR,
                   absl::StrCat("checkpoint.resume: got never, but ", checkpoint.directory(),
                                " holds the checkpoint of step ", newest->step,
                                "; name another checkpoint.directory, remove it, or set resume: "
                                "auto"));
  }
  const absl::StatusOr<WholeCheckpoint> found = NewestWholeCheckpoint(checkpoint.directory());
  if (absl::IsNotFound(found.status())) return ResumePoint();
  if (!found.ok()) return WithReason(found.status(), v1::REASON_WEIGHTS_ERROR);
  ResumePoint point = {.step = found->info.step, .remarks = {}};
  for (const CheckpointInfo& info : found->passed_over) {
    point.remarks.push_back(absl::StrCat("the checkpoint of step ", info.step,
                                         " is damaged and passed over: ", info.problem,
                                         "; the job goes on from step ", point.step));
  }
  if (!own) RETURN_IF_ERROR(CheckChanges(found->info, spec, &point));
  return point;
}

}  // namespace terrace
