// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/access.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr May N = May::kNo, O = May::kOwn, Y = May::kYes;
constexpr std::string_view kJobs = "terrace.v1.JobService", kDrains = "terrace.v1.DrainService",
                           kHealth = "grpc.health.v1.Health";
constexpr bool kReads = false, kChanges = true;

// clang-format off
constexpr CallRule kRules[] = {
    //                                                          worker viewer submitter operator
    {kJobs, "Submit",                                kChanges, {N,     N,     Y,        Y}},
    {kJobs, "Get",                                   kReads,   {N,     Y,     Y,        Y}},
    {kJobs, "List",                                  kReads,   {N,     Y,     Y,        Y}},
    {kJobs, "Watch",                                 kReads,   {N,     Y,     Y,        Y}},
    {kJobs, "Cancel",                                kChanges, {N,     N,     O,        Y}},
    {kJobs, "Pause",                                 kChanges, {N,     N,     O,        Y}},
    {kJobs, "Resume",                                kChanges, {N,     N,     O,        Y}},
    {kJobs, "Explain",                               kReads,   {N,     N,     Y,        Y}},
    {kJobs, "Logs",                                  kReads,   {N,     Y,     Y,        Y}},
    {kJobs, "ListNodes",                             kReads,   {N,     Y,     Y,        Y}},
    {kJobs, "GetMemory",                             kReads,   {N,     Y,     Y,        Y}},
    {"terrace.v1.ListService", "ListPage",           kReads,   {N,     Y,     Y,        Y}},
    {"terrace.v1.HoldService", "SubmitHeld",         kChanges, {N,     N,     Y,        Y}},
    {"terrace.v1.QueueService", "SubmitAfter",       kChanges, {N,     N,     Y,        Y}},
    {"terrace.v1.QueueService", "SubmitMember",      kChanges, {N,     N,     Y,        Y}},
    {"terrace.v1.QueueService", "Requeue",           kChanges, {N,     N,     O,        Y}},
    {"terrace.v1.QueueService", "ListShares",        kReads,   {N,     Y,     Y,        Y}},
    {"terrace.v1.EvaluationService", "Evaluate",     kReads,   {N,     N,     Y,        Y}},
    {"terrace.v1.BackupService", "Backup",           kChanges, {N,     N,     N,        Y}},
    {kDrains, "Drain",                               kChanges, {O,     N,     N,        Y}},
    {kDrains, "Undrain",                             kChanges, {O,     N,     N,        Y}},
    {kDrains, "ListDrains",                          kReads,   {Y,     Y,     Y,        Y}},
    {"terrace.v1.WorkerService", "Connect",          kChanges, {O,     N,     N,        N}},
    {kHealth, "Check",                               kReads,   {Y,     Y,     Y,        Y}},
    {kHealth, "Watch",                               kReads,   {Y,     Y,     Y,        Y}},
};
// clang-format on

std::string WhoMay(const CallRule& rule) {
  std::string who;
  for (size_t i = 0; i < kRoles; ++i) {
    if (rule.may[i] == May::kNo) continue;
    const auto role = static_cast<Role>(i);
    absl::StrAppend(&who, who.empty() ? "" : " or ", role == Role::kOperator ? "an " : "a ",
                    Absl(RoleName(role)));
  }
  return who;
}

absl::Status Denied(const CallRule& rule, const Caller& caller, std::string_view what,
                    std::string_view who_may) {
  return absl::PermissionDeniedError(absl::StrCat(caller.identity.ToString(), " may not ",
                                                  Absl(rule.method), Absl(what), ": ",
                                                  Absl(who_may), " may"));
}

}  // namespace

std::span<const CallRule> CallRules() { return kRules; }

const CallRule* RuleOfPath(std::string_view path) {
  for (const CallRule& rule : kRules) {
    if (path.size() == rule.service.size() + rule.method.size() + 2 && path.front() == '/' &&
        path.substr(1, rule.service.size()) == rule.service &&
        path[rule.service.size() + 1] == '/' && path.ends_with(rule.method)) {
      return &rule;
    }
  }
  return nullptr;
}

const CallRule& RuleOf(std::string_view method) {
  const auto found = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const CallRule& rule) { return rule.method == method; });
  if (found == std::end(kRules)) std::abort();  // a test looks for a row of each call
  return *found;
}

std::string Caller::User() const {
  const std::optional<Grant> person = identity.Person();
  return person ? person->name : "";
}

std::string Caller::ToString() const {
  return is_anybody() ? peer : absl::StrCat(identity.ToString(), " at ", peer);
}

May MayCall(const CallRule& rule, const Caller& caller) {
  if (caller.is_anybody()) return May::kYes;
  May most = May::kNo;
  for (const Grant& grant : caller.identity.grants) most = std::max(most, rule.For(grant.role));
  return most;
}

absl::Status CheckCall(const CallRule& rule, const Caller& caller) {
  if (MayCall(rule, caller) != May::kNo) return absl::OkStatus();
  return Denied(rule, caller, "", WhoMay(rule));
}

absl::Status CheckJobCall(const CallRule& rule, const Caller& caller, std::string_view job,
                          std::string_view owner) {
  RETURN_IF_ERROR(CheckCall(rule, caller));
  if (MayCall(rule, caller) == May::kYes) return absl::OkStatus();
  if (!owner.empty() && owner == caller.User()) return absl::OkStatus();
  const std::string whose = owner.empty() ? ", which nobody is known to have submitted"
                                          : absl::StrCat(", which ", Absl(owner), " submitted");
  return Denied(rule, caller, absl::StrCat(" job ", Absl(job), whose),
                owner.empty() ? "an operator" : absl::StrCat(Absl(owner), " or an operator"));
}

absl::Status CheckNodeCall(const CallRule& rule, const Caller& caller, std::string_view node) {
  RETURN_IF_ERROR(CheckCall(rule, caller));
  if (MayCall(rule, caller) == May::kYes || caller.identity.IsWorker(node)) return absl::OkStatus();
  return Denied(rule, caller, absl::StrCat(" worker ", Absl(node)),
                rule.For(Role::kOperator) == May::kNo
                    ? absl::StrCat("worker ", Absl(node), " itself")
                    : absl::StrCat("worker ", Absl(node), " itself or an operator"));
}

}  // namespace terrace
