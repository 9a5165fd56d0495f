// SPDX-License-Identifier: Apache-2.0
#include "worker/train/resume_point.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "proto/report/manifest_text.h"
#include "proto/spec_changes.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/manifest.h"
#include "worker/reporting/failure.h"

namespace terrace {
namespace {

absl::Status Refused(v1::Reason reason, std::string message) {
  return WithReason(absl::FailedPreconditionError(std::move(message)), reason);
}

// Of the job that wrote the checkpoint; nothing of an old one whose spec does not parse.
absl::StatusOr<std::optional<v1::JobSpec>> SpecOf(const std::string& checkpoint) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadTextFile(PathIn(checkpoint, kManifestName), kManifestBytesMax));
  std::optional<v1::JobSpec> spec = SpecOfManifest(text);
  if (spec && !spec->has_train()) spec.reset();
  return spec;
}

// A job that must not resume found none in its first epoch, if that came so far: a gang may break
// before. So a later epoch takes only what the job itself can have written.
absl::StatusOr<bool> IsOwn(const std::string& checkpoint, const v1::JobSpec& spec, int64_t epoch) {
  if (epoch <= 1) return false;
  ASSIGN_OR_RETURN(std::optional<v1::JobSpec> then, SpecOf(checkpoint));
  if (!then || then->name() != spec.name()) return false;
  // On other nodes the job may have come to other formats.
  v1::JobSpec now = spec;
  then->clear_formats();
  now.clear_formats();
  return SpecChanges(*then, now).empty();
}

// Files of the same names may hold other tokens by now: the samples would be others.
void CompareTokens(const char* key, const TokenSum& then, const TokenSum& now,
                   std::vector<SpecChange>* changes) {
  if (then == now || then.tokens == 0 || now.tokens == 0) return;
  // Other files are a change already.
  for (const SpecChange& change : *changes) {
    if (change.key == key && change.breaks) return;
  }
  const auto text = [](const TokenSum& sum) {
    return absl::StrCat(sum.tokens, " tokens of checksum ",
                        absl::Hex(sum.hash, absl::PadSpec::kZeroPad16));
  };
  changes->push_back({absl::StrCat("the contents of ", key), text(then), text(now), true});
}

// A file that is moved from the end of one source to the beginning of the next leaves all tokens as
// they were.
void CompareBorders(const std::vector<int64_t>& then, const std::vector<int64_t>& now,
                    std::vector<SpecChange>* changes) {
  if (then.empty() || now.empty() || then == now) return;
  const bool known = std::any_of(changes->begin(), changes->end(), [](const SpecChange& change) {
    return change.breaks && absl::StrContains(change.key, "data.train");
  });
  if (known) return;
  const auto text = [](const std::vector<int64_t>& sizes) {
    return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
  };
  changes->push_back({"the tokens of each source of data.train", text(then), text(now), true});
}

absl::Status CheckChanges(const CheckpointInfo& from, const v1::JobSpec& spec,
                          const TokenSums& data, ResumePoint* point) {
  ASSIGN_OR_RETURN(const std::optional<v1::JobSpec> then, SpecOf(from.path));
  if (!then) return absl::OkStatus();
  std::vector<SpecChange> changes = SpecChanges(*then, spec);
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(from.path));
  CompareTokens("data.train", manifest.data.train, data.train, &changes);
  CompareTokens("data.validation", manifest.data.validation, data.validation, &changes);
  CompareBorders(manifest.data.sources, data.sources, &changes);
  std::string refusal = WhyNoContinuation(from.path, changes, spec);
  if (!refusal.empty()) return Refused(v1::REASON_WEIGHTS_ERROR, std::move(refusal));
  if (!changes.empty()) {
    point->remarks.push_back(
        absl::StrCat("since the checkpoint of step ", from.step,
                     " the job has changed: ", DescribeChanges(changes, /*breaking_only=*/false)));
  }
  return absl::OkStatus();
}

// The beginning, for a job that does not resume; it says what lies there all the same.
ResumePoint BesideDamagedOnes(const std::string& directory) {
  ResumePoint point;
  const auto list = ListCheckpoints(directory);
  if (!list.ok() || list->empty()) return point;
  point.remarks.push_back(absl::StrCat(
      "every checkpoint in ", directory, " is damaged, the newest so: ", list->back().problem,
      "; checkpoint.resume is never, and so the job begins anew: its own checkpoints will take "
      "their place"));
  return point;
}

}  // namespace

absl::StatusOr<ResumePoint> FindResumePoint(const v1::JobSpec& spec, int64_t epoch,
                                            const TokenSums& data) {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  if (checkpoint.resume() == "never") {
    const auto newest = NewestCheckpoint(checkpoint.directory());
    if (!newest.ok()) return BesideDamagedOnes(checkpoint.directory());
    ASSIGN_OR_RETURN(const bool is_own, IsOwn(newest->path, spec, epoch));
    if (!is_own)
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
  RETURN_IF_ERROR(CheckChanges(found->info, spec, data, &point));
  return point;
}

}  // namespace terrace
