// SPDX-License-Identifier: Apache-2.0
#include "worker/reporting/commands.h"

namespace terrace {

void Commands::Go() {
  absl::MutexLock lock(&mutex_);
  go_ = true;
}

bool Commands::Stop() {
  absl::MutexLock lock(&mutex_);
  stop_.store(true);
  return training_;
}

void Commands::WaitForGo() {
  absl::MutexLock lock(&mutex_);
  const auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return go_ || stop_.load(); };
  mutex_.Await(absl::Condition(&told));
}

bool Commands::BeginTraining() {
  absl::MutexLock lock(&mutex_);
  if (stop_.load()) return false;
  training_ = true;
  return true;
}

}  // namespace terrace
