// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/commands/commands.h"
#include "client/connection.h"
#include "client/print.h"
#include "client/table.h"
#include "client/waiting.h"

namespace terrace {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(500);
constexpr int kUnansweredMax = 60;  // looks, one after the other: a coordinator that restarts
constexpr absl::Duration kDeadlineMax = absl::Hours(24 * 366);

absl::StatusOr<v1::DrainRequest> RequestOf(const DrainOptions& options) {
  v1::DrainRequest request;
  request.set_node(options.node);
  request.set_reason(options.reason);
  request.set_keep_jobs(options.keep_jobs);
  request.set_until_restart(options.until_restart);
  if (options.force) request.set_deadline_ms(0);
  if (options.force || options.no_deadline) return request;
  absl::Duration deadline;
  if (!absl::ParseDuration(options.deadline, &deadline) || deadline < absl::ZeroDuration() ||
      deadline > kDeadlineMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--deadline: got \"", options.deadline,
                     "\", which must be a time such as 90s, 10m or 1h30m, at most a year; "
                     "--no-deadline waits without one"));
  }
  request.set_deadline_ms(absl::ToInt64Milliseconds(deadline));
  return request;
}

std::string Jobs(const v1::DrainedNode& node) { return absl::StrJoin(node.jobs(), ", "); }

std::string DeadlineText(const v1::Drain& drain) {
  const int64_t left_ms = drain.deadline_unix_ms() - SystemClock().UnixMillis();
  if (drain.deadline_unix_ms() == 0) return "none";
  if (left_ms <= 0) return "passed";
  return absl::StrCat("in ", FormatDuration(static_cast<double>(left_ms) / 1000));
}

int List(const GlobalOptions& global, Connection& connection) {
  const auto drains = connection.ListDrains();
  if (!drains.ok()) return Fail(global, drains.status());
  if (global.json()) {
    PrintJson(*drains);
    return 0;
  }
  Table table({"NODE", "STATE", "JOBS", "SINCE", "DEADLINE", "ASKED BY", "REASON"});
  const int64_t now_ms = SystemClock().UnixMillis();
  for (const v1::DrainedNode& node : drains->nodes()) {
    const v1::Drain& drain = node.drain();
    table.Add({drain.node(), node.state(), node.jobs().empty() ? "-" : Jobs(node),
               FormatAge(drain.since_unix_ms(), now_ms) + " ago",
               node.jobs().empty() ? "-" : DeadlineText(drain), drain.asked_by(),
               drain.reason().empty() ? "-" : drain.reason()});
  }
  if (drains->nodes().empty()) {
    std::puts("no worker is drained");
  } else {
    std::fputs(table.ToString().c_str(), stdout);
  }
  return 0;
}

// The node as it is now. NOT_FOUND: it is drained no more.
absl::StatusOr<v1::DrainedNode> Look(Connection& connection, const std::string& name) {
  ASSIGN_OR_RETURN(const v1::ListDrainsResponse drains, connection.ListDrains());
  const auto found =
      std::find_if(drains.nodes().begin(), drains.nodes().end(),
                   [&](const v1::DrainedNode& node) { return node.drain().node() == name; });
  if (found != drains.nodes().end()) return *found;
  return absl::NotFoundError(
      absl::StrCat("worker ", name, " is back in use: somebody ended its drain"));
}

// Until no job is there.
absl::StatusOr<v1::DrainedNode> AwaitEmpty(Connection& connection, v1::DrainedNode node) {
  const Waiting waiting(absl::StrCat(Jobs(node), node.jobs().empty() ? "" : " to leave"));
  int unanswered = 0;
  while (!node.jobs().empty()) {
    std::this_thread::sleep_for(kLookEvery);
    auto now = Look(connection, node.drain().node());
    const bool again = absl::IsUnavailable(now.status()) && ++unanswered < kUnansweredMax;
    if (again) continue;
    RETURN_IF_ERROR(now.status());
    unanswered = 0;
    node = *std::move(now);
  }
  return node;
}

std::string WhatJobsDo(const DrainOptions& options) {
  if (options.force) return "move now, from their last checkpoint";
  const std::string late =
      options.no_deadline ? "" : absl::StrCat(", after ", options.deadline, " without one");
  if (!options.keep_jobs) return absl::StrCat("move after a checkpoint", late);
  return options.no_deadline ? "run on to their end"
                             : absl::StrCat("run on for ", options.deadline, ", then move");
}

}  // namespace

int DrainCommand(const GlobalOptions& global, const DrainOptions& options) {
  const auto connection = Connection::Open(global);
  if (!connection.ok()) return Fail(global, connection.status());
  if (options.node.empty()) return List(global, **connection);
  if (options.disable) {
    const auto ended = (*connection)->Undrain(options.node);
    if (!ended.ok()) return Fail(global, ended.status());
    if (global.json()) {
      PrintJson(*ended);
    } else {
      std::printf("%s is back in use\n", options.node.c_str());
    }
    return 0;
  }
  const auto request = RequestOf(options);
  if (!request.ok()) return Fail(global, request.status());
  auto node = (*connection)->Drain(*request);
  if (!node.ok()) return Fail(global, node.status());
  if (!global.json() && !node->jobs().empty()) {
    std::printf("no job is placed on %s any more; those there %s: %s\n", options.node.c_str(),
                WhatJobsDo(options).c_str(), Jobs(*node).c_str());
    std::fflush(stdout);
  }
  if (!options.detach) node = AwaitEmpty(**connection, *std::move(node));
  if (!node.ok()) return Fail(global, node.status());
  if (global.json()) {
    PrintJson(*node);
  } else if (node->jobs().empty()) {
    std::printf("%s is drained: no job is there; take it back with: terrace drain %s --disable\n",
                options.node.c_str(), options.node.c_str());
  }
  return 0;
}

}  // namespace terrace
