// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/probe_link.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker/comm/communicator.h"
#include "worker/comm/file_rendezvous.h"

namespace terrace {
namespace {

constexpr int64_t kElements = 1 << 20;  // a bucket of gradients
constexpr int kLatencyCalls = 31, kBandwidthCalls = 101;
// A busy machine stretches small sums without end: what they take is what the fast ones take. Large
// ones, like kernels, come as they come in a step too.
constexpr double kLatencyShare = 0.1, kBandwidthShare = 0.5;
constexpr int64_t kTimeoutMs = 5000;

// A value that a tenth (0.1), a half (0.5) of all are below.
double Quantile(double share, std::vector<double> values) {
  const auto at = values.begin() + static_cast<int64_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Runs `member` for each rank of a group, on a thread each, and returns the first failure.
class Group {
 public:
  using Member = std::function<absl::Status(Communicator*)>;

  static absl::Status Run(int size, const Member& member) {
    std::string folder = (std::filesystem::temp_directory_path() / "terrace-probe-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot make a folder in ",
                                                 std::filesystem::temp_directory_path().string(),
                                                 " for the link's probe"));
    }
    std::vector<absl::Status> results(size);
    {
      FileRendezvous store(folder);
      std::vector<std::jthread> members;
      for (int rank = 0; rank < size; ++rank) {
        members.emplace_back([&, rank] { results[rank] = Join(rank, size, &store, member); });
      }
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    for (const absl::Status& result : results) RETURN_IF_ERROR(result);
    return absl::OkStatus();
  }

 private:
  static absl::Status Join(int rank, int size, RendezvousStore* store, const Member& member) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     ConnectGloo({.name = "probe",
                                  .rank = rank,
                                  .size = size,
                                  .interface_address = "127.0.0.1",
                                  .timeout_ms = kTimeoutMs},
                                 store));
    return member(group.get());
  }
};

// Of one sum: of `calls`, the one that `share` of them are faster than.
absl::StatusOr<double> SumSeconds(Communicator* group, std::vector<float>* data, int64_t elements,
                                  int calls, double share) {
  const SystemClock clock;
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const int64_t start_ns = clock.MonotonicNanos();
    RETURN_IF_ERROR(group->AllReduce(data->data(), elements, ReduceType::kF32));
    seconds.push_back(static_cast<double>(clock.MonotonicNanos() - start_ns) * 1e-9);
  }
  return Quantile(share, std::move(seconds));
}

// Of all threads of this process.
double ProcessorSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Ring {
  v1::LinkRate rate;
  double cores = 0;  // that one member keeps busy
};

// A ring of n members passes 2 (n - 1) messages of a part of the payload.
absl::StatusOr<Ring> MeasureRing(int size) {
  Ring ring;
  RETURN_IF_ERROR(Group::Run(size, [&](Communicator* group) -> absl::Status {
    std::vector<float> data(kElements, 0.0f);
    ASSIGN_OR_RETURN(const double small,
                     SumSeconds(group, &data, size, kLatencyCalls, kLatencyShare));
    const double busy = ProcessorSeconds();
    ASSIGN_OR_RETURN(const double large,
                     SumSeconds(group, &data, kElements, kBandwidthCalls, kBandwidthShare));
    if (group->rank() != 0) return absl::OkStatus();
    // Over what most calls take: others stretch the time that passes, not the work.
    ring.cores = (ProcessorSeconds() - busy) / (kBandwidthCalls * large) / size;
    const double rounds = 2.0 * (size - 1);
    const double bytes = rounds / size * static_cast<double>(kElements * sizeof(float));
    ring.rate.set_latency_seconds(small / rounds);
    // A busy machine may have stretched the small sums.
    ring.rate.set_bytes_per_second(bytes / std::max(large - small, large / 2));
    return absl::OkStatus();
  }));
  ring.rate.set_scope("node");
  ring.rate.set_ranks(static_cast<uint32_t>(size));
  return ring;
}

}  // namespace

absl::Status MeasureLinks(int ranks_max, int threads, v1::HardwareProfile* profile) {
  for (int size = 2; size <= std::max(2, ranks_max); size *= 2) {
    ASSIGN_OR_RETURN(const Ring ring, MeasureRing(size));
    *profile->add_links() = ring.rate;
    if (size > 2) continue;
    profile->set_link_bytes_per_second(ring.rate.bytes_per_second());
    profile->set_link_latency_seconds(ring.rate.latency_seconds());
    profile->set_communication_slowdown(ring.cores / threads);
  }
  return absl::OkStatus();
}

}  // namespace terrace
