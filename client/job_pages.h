// Lists of jobs as the coordinator gives them: page by page, newest first.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "proto/v1/list.pb.h"

namespace terrace {

// Asks for pages until `limit` jobs have come, 0: all that match. `visit` gets each page. The
// `before` with which the list goes on; 0: there are no more.
absl::StatusOr<int64_t> VisitPages(Connection& connection, v1::ListPageRequest request,
                                   int64_t limit,
                                   const std::function<void(const v1::ListPageResponse&)>& visit);

}  // namespace terrace
