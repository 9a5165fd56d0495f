// SPDX-License-Identifier: Apache-2.0
#include "client/job_pages.h"

#include <algorithm>

#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<int64_t> VisitPages(Connection& connection, v1::ListPageRequest request,
                                   int64_t limit,
                                   const std::function<void(const v1::ListPageResponse&)>& visit) {
  constexpr int64_t kOnAPage = 500;
  int64_t seen = 0;
  while (true) {
    request.set_limit(limit == 0 ? kOnAPage : std::min(kOnAPage, limit - seen));
    ASSIGN_OR_RETURN(const v1::ListPageResponse page, connection.ListPage(request));
    visit(page);
    seen += page.summaries_size() + page.jobs_size();
    if (page.next() == 0 || (limit > 0 && seen >= limit)) return page.next();
    request.set_before(page.next());
  }
}

}  // namespace terrace
