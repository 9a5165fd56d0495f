// SPDX-License-Identifier: Apache-2.0
#include "coordinator/web/event_wait.h"

#include <memory>
#include <utility>

namespace terrace {
namespace {

struct Waiting {
  std::function<void(const absl::Status&)> done;  // null: it has been called
  uint64_t watcher = 0;
};

void Finish(Control& control, const std::shared_ptr<Waiting>& waiting) {
  if (waiting->done == nullptr) return;
  control.RemoveWatcher(waiting->watcher);
  std::exchange(waiting->done, nullptr)(absl::OkStatus());
}

}  // namespace

void WaitForEvents(Control& control, const std::string& job, int64_t after_sequence,
                   absl::Duration wait, std::function<void(const absl::Status&)> done) {
  if (const auto found = control.reconciler().Get(job); !found.ok()) return done(found.status());
  const auto newer = control.store().Events(job, after_sequence, 1);
  if (!newer.ok()) return done(newer.status());
  const bool is_over = control.reconciler().IsOver(job);
  if (!newer->empty() || is_over || wait <= absl::ZeroDuration()) return done(absl::OkStatus());
  auto waiting = std::make_shared<Waiting>(Waiting{.done = std::move(done)});
  const auto watcher = control.AddWatcher(job, [&control, waiting] { Finish(control, waiting); });
  if (!watcher.ok()) return std::exchange(waiting->done, nullptr)(watcher.status());
  waiting->watcher = *watcher;
  control.CallAfter(wait, [&control, waiting] { Finish(control, waiting); });
}

}  // namespace terrace
