// The one place of the client that speaks gRPC: a stub per coordinator, and calls that return
// absl::Status.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/options.h"
#include "proto/v1/backup.pb.h"
#include "proto/v1/drain.pb.h"
#include "proto/v1/evaluation.pb.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/list.pb.h"
#include "proto/v1/queue.pb.h"

namespace terrace {

class Connection {
 public:
  // Does not connect yet. INVALID_ARGUMENT when a TLS file cannot be read.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const GlobalOptions& options);
  virtual ~Connection() = default;

  // Of all calls: UNAVAILABLE, with the address and what to do, when nobody answers;
  // FAILED_PRECONDITION when the coordinator is too old to know the call.
  // A job that is held is PAUSED until it is resumed; one with dependencies starts after them.
  virtual absl::StatusOr<v1::Job> Submit(const v1::SubmitRequest& request, bool hold = false,
                                         const std::vector<v1::Dependency>& dependencies = {}) = 0;
  // One job of an array; with dry_run it is only checked and planned.
  virtual absl::StatusOr<v1::Job> SubmitMember(const v1::SubmitMemberRequest& request) = 0;
  virtual absl::StatusOr<v1::Job> Get(const std::string& id) = 0;
  virtual absl::StatusOr<v1::ListPageResponse> ListPage(const v1::ListPageRequest& request) = 0;
  virtual absl::StatusOr<v1::Job> Cancel(const std::string& id, bool force) = 0;
  virtual absl::StatusOr<v1::Job> Pause(const std::string& id, bool force) = 0;
  virtual absl::StatusOr<v1::Job> Resume(const std::string& id) = 0;
  virtual absl::StatusOr<v1::Job> Requeue(const std::string& id, bool force) = 0;
  virtual absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request) = 0;
  virtual absl::StatusOr<v1::ListNodesResponse> ListNodes() = 0;
  virtual absl::StatusOr<v1::DrainedNode> Drain(const v1::DrainRequest& request) = 0;
  virtual absl::StatusOr<v1::Drain> Undrain(const std::string& node) = 0;
  virtual absl::StatusOr<v1::ListDrainsResponse> ListDrains() = 0;
  virtual absl::StatusOr<v1::ListSharesResponse> ListShares() = 0;
  // Calls `visit` for each chunk until the copy is whole, or it returns an error, which is
  // returned.
  virtual absl::Status Backup(const std::function<absl::Status(const v1::BackupChunk&)>& visit) = 0;
  virtual absl::StatusOr<v1::GetMemoryResponse> GetMemory(const std::string& id) = 0;
  // `tell` is told how far it is.
  virtual absl::StatusOr<v1::Evaluation> Evaluate(
      const v1::EvaluateRequest& request,
      const std::function<void(const v1::EvaluationProgress&)>& tell) = 0;
  // Calls `visit` for each event until the stream ends (OK), fails, or `visit` returns false (OK).
  virtual absl::Status Watch(const v1::WatchJobRequest& request,
                             const std::function<bool(const v1::JobEvent&)>& visit) = 0;
  virtual absl::Status Logs(const v1::LogsRequest& request,
                            const std::function<void(const v1::LogsChunk&)>& visit) = 0;
  // Between two tries to follow something: returns after a second, or as soon as a connection that
  // was lost stands again.
  virtual void PauseBeforeRetry() = 0;
};

}  // namespace terrace
