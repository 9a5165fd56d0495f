// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/link.h"

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

// Runs `measure` for each rank of a group, on a thread each, and returns the first failure.
absl::Status OnMembers(int size, const LinkProbe& probe,
                       const std::function<absl::Status(LinkMember*)>& measure) {
  std::string folder = (std::filesystem::temp_directory_path() / "terrace-probe-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a folder in ",
                                               std::filesystem::temp_directory_path().string(),
                                               " for the link's probe"));
  }
  std::vector<absl::Status> results(size);
  {
    FileRendezvous store(folder);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto member = probe.join(rank, size, &store);
        results[rank] = member.ok() ? measure(member->get()) : member.status();
      });
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

class HostMember final : public LinkMember {
 public:
  static absl::StatusOr<std::unique_ptr<LinkMember>> Join(int rank, int size,
                                                          RendezvousStore* store) {
    auto member = std::make_unique<HostMember>();
    ASSIGN_OR_RETURN(member->group_, ConnectGloo({.name = "probe",
                                                  .rank = rank,
                                                  .size = size,
                                                  .interface_address = "127.0.0.1",
                                                  .timeout_ms = kTimeoutMs},
                                                 store));
    return member;
  }
  Communicator* group() override { return group_.get(); }
  void* data() override { return data_.data(); }

 private:
  std::unique_ptr<Communicator> group_;
  std::vector<float> data_ = std::vector<float>(kElements, 0.0f);
};

// Of one sum: of `calls`, the one that `share` of them are faster than.
absl::StatusOr<double> SumSeconds(LinkMember* member, int64_t elements, int calls, double share) {
  const SystemClock clock;
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const int64_t start_ns = clock.MonotonicNanos();
    RETURN_IF_ERROR(member->group()->AllReduce(member->data(), elements, ReduceType::kF32));
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
absl::StatusOr<Ring> MeasureRing(int size, const LinkProbe& probe) {
  Ring ring;
  RETURN_IF_ERROR(OnMembers(size, probe, [&](LinkMember* member) -> absl::Status {
    ASSIGN_OR_RETURN(const double small, SumSeconds(member, size, kLatencyCalls, kLatencyShare));
    const double busy = ProcessorSeconds();
    ASSIGN_OR_RETURN(const double large,
                     SumSeconds(member, probe.elements, probe.calls, kBandwidthShare));
    if (member->group()->rank() != 0) return absl::OkStatus();
    // Over what most calls take: others stretch the time that passes, not the work.
    ring.cores = (ProcessorSeconds() - busy) / (probe.calls * large) / size;
    const double rounds = 2.0 * (size - 1);
    const double bytes = rounds / size * static_cast<double>(probe.elements * sizeof(float));
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

absl::StatusOr<double> MeasureRings(const LinkProbe& probe, v1::HardwareProfile* profile) {
  double cores = 0;
  for (int size = 2; size <= std::max(2, probe.ranks_max); size *= 2) {
    ASSIGN_OR_RETURN(const Ring ring, MeasureRing(size, probe));
    *profile->add_links() = ring.rate;
    if (size > 2) continue;
    profile->set_link_bytes_per_second(ring.rate.bytes_per_second());
    profile->set_link_latency_seconds(ring.rate.latency_seconds());
    cores = ring.cores;
  }
  return cores;
}

absl::Status MeasureLinks(int ranks_max, int threads, v1::HardwareProfile* profile) {
  ASSIGN_OR_RETURN(const double cores, MeasureRings({.ranks_max = ranks_max,
                                                     .elements = kElements,
                                                     .calls = kBandwidthCalls,
                                                     .join = HostMember::Join},
                                                    profile));
  profile->set_communication_slowdown(cores / threads);
  return absl::OkStatus();
}

}  // namespace terrace
