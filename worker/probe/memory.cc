// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/memory.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cpu/stream_copy.h"
#include "worker/memory/arena.h"

namespace terrace {
namespace {

constexpr int64_t kTierBytes = 64 << 20;
constexpr int64_t kCopyBytes = 4 << 20;  // between a small matrix and the optimizer's chunk
constexpr int kRounds = 5;

// Bytes a second of one pass over the tier.
double CopyRate(const Arena& from, const Arena& to) {
  const SystemClock clock;
  const int64_t start_ns = clock.MonotonicNanos();
  for (int64_t offset = 0; offset < kTierBytes; offset += kCopyBytes) {
    kernels::cpu::StreamCopy(to.data() + offset, from.data() + offset, kCopyBytes);
  }
  return static_cast<double>(kTierBytes) * 1e9 /
         static_cast<double>(clock.MonotonicNanos() - start_ns);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

absl::Status MeasureCopies(v1::HardwareProfile* profile) {
  ASSIGN_OR_RETURN(Arena device, Arena::Reserve("terrace-arena-probe-device", kTierBytes));
  ASSIGN_OR_RETURN(Arena host, Arena::Reserve("terrace-arena-probe-host", kTierBytes));
  ASSIGN_OR_RETURN(Arena device_back, Arena::Reserve("terrace-arena-probe-back", kTierBytes));
  ASSIGN_OR_RETURN(Arena host_back, Arena::Reserve("terrace-arena-probe-from", kTierBytes));
  for (Arena* arena : {&device, &host, &device_back, &host_back}) arena->Touch(1);
  std::vector<double> there, back, both;
  for (int round = 0; round < kRounds; ++round) {
    there.push_back(CopyRate(host, device));
    back.push_back(CopyRate(device_back, host_back));
    double other = 0;
    std::jthread opposite([&] { other = CopyRate(device_back, host_back); });
    const double one = CopyRate(host, device);
    opposite.join();
    both.push_back(one + other);
  }
  profile->set_to_device_bytes_per_second(Median(there));
  profile->set_to_host_bytes_per_second(Median(back));
  profile->set_copy_duplex_ratio(
      std::clamp(Median(both) / (Median(there) + Median(back)), 0.1, 1.0));
  return absl::OkStatus();
}

}  // namespace terrace
