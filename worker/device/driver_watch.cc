// SPDX-License-Identifier: Apache-2.0
#include "worker/device/driver_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/number_format.h"

namespace terrace {
namespace {

int SideOf(const PlannedUse& planned, const DriverUse& use) {
  const int64_t whole = planned.arena_bytes + planned.outside_bytes;
  if (use.bytes == 0) return 0;
  if (use.bytes > whole) return 1;
  const double least = static_cast<double>(whole) * (1 - kDriverAgreement);
  return static_cast<double>(use.bytes) < least ? -1 : 0;
}

}  // namespace

std::string DriverDisagreement(const PlannedUse& planned, const DriverUse& use) {
  const int side = SideOf(planned, use);
  if (side == 0) return "";
  const int64_t whole = planned.arena_bytes + planned.outside_bytes;
  const double percent =
      100 * std::abs(static_cast<double>(use.bytes) / static_cast<double>(whole) - 1);
  return absl::StrCat("the driver counts ", FormatBytes(use.bytes), " of the device, ",
                      absl::StrFormat("%.1f %%", percent), side > 0 ? " more" : " less",
                      " than the plan's ", FormatBytes(whole), " (arena ",
                      FormatBytes(planned.arena_bytes), ", outside of it ",
                      FormatBytes(planned.outside_bytes), "), by ", use.source,
                      side > 0 ? "; what is planned beside this job may not fit"
                               : "; what is not used of the plan's bytes is kept from other jobs");
}

DriverWatch::DriverWatch(Backend* backend, const PlannedUse& planned,
                         std::function<void(const std::string&)> tell, absl::Duration every)
    : backend_(backend), planned_(planned), tell_(std::move(tell)), every_(every) {
  Ask();
  if (latest().bytes > 0) thread_ = std::thread(&DriverWatch::ThreadMain, this);
}

DriverWatch::~DriverWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

DriverUse DriverWatch::latest() const {
  absl::MutexLock lock(&mutex_);
  return latest_;
}

double DriverWatch::EnergyJoules() const {
  absl::MutexLock lock(&mutex_);
  return std::max(0.0, latest_.energy_joules - energy_begin_joules_);
}

void DriverWatch::Ask() {
  DriverUse use = backend_->AskDriver();
  const int side = SideOf(planned_, use);
  if (std::exchange(side_, side) != side && side != 0 && warnings_ < kDriverWarningsMax) {
    ++warnings_;
    tell_(DriverDisagreement(planned_, use));
  }
  absl::MutexLock lock(&mutex_);
  if (energy_begin_joules_ == 0) energy_begin_joules_ = use.energy_joules;
  latest_ = std::move(use);
}

void DriverWatch::ThreadMain() {
  const auto stops = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stops), every_)) return;
    }
    Ask();
  }
}

}  // namespace terrace
