// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/contention.h"

#include <algorithm>
#include <cmath>

#include "proto/program/grid.h"

namespace terrace {
namespace {

// Something always goes on.
constexpr double kSlowest = 0.02;
constexpr double kRounding = 1e-9;  // of sums of fractions of threads

double Ratio(double given) { return given > 0 && given < 1 ? given : 1.0; }

int Running(const WorkCounts& running, Work work) { return running[static_cast<int>(work)]; }

}  // namespace

Work WorkOf(const v1::Program& program, const v1::Instruction& instruction) {
  if (instruction.has_collective() || instruction.has_transfer()) return Work::kCommunication;
  if (instruction.has_compute()) {
    const v1::StreamKind kind = program.streams(static_cast<int>(instruction.stream())).kind();
    return kind == v1::HOST_COMPUTE ? Work::kHostCompute : Work::kCompute;
  }
  if (!instruction.has_copy()) return Work::kOther;
  switch (instruction.copy().kind()) {
    case v1::TO_HOST:
      return Work::kToHost;
    case v1::NVME_LOAD:
      return Work::kNvmeLoad;
    case v1::NVME_STORE:
      return Work::kNvmeStore;
    default:
      return Work::kToDevice;
  }
}

Contention::Contention(const v1::HardwareProfile& profile,
                       const std::vector<const v1::Program*>& stages)
    : shared_cores_(profile.shared_cores()),
      communication_slowdown_(profile.communication_slowdown()),
      copy_ratio_(Ratio(profile.copy_duplex_ratio())),
      nvme_ratio_(Ratio(profile.nvme_duplex_ratio())) {
  double node_threads = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const v1::Grid& grid = stages[i]->grid();
    const uint64_t pipeline = std::max<uint64_t>(1, AxisSize(grid, v1::PIPELINE));
    const uint64_t ranks = std::max<uint64_t>(1, RanksOf(grid) / pipeline);
    uint64_t per_node = profile.ranks_per_node();
    if (per_node == 0) per_node = ranks * pipeline;
    // Ranks of a stage have consecutive numbers.
    nodes_.push_back(shared_cores_ ? static_cast<int>(stages[i]->stage() * ranks / per_node)
                                   : static_cast<int>(i));
    ranks_.push_back(static_cast<double>(std::min(ranks, per_node)));
    threads_.push_back(std::max<double>(1, stages[i]->threads()));
    node_threads = std::max(node_threads, static_cast<double>(per_node) * threads_.back());
  }
  // Stages may be given in any order and not all: numbers without gaps.
  std::vector<int> numbers = nodes_;
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (int& node : nodes_) {
    node =
        static_cast<int>(std::lower_bound(numbers.begin(), numbers.end(), node) - numbers.begin());
  }
  node_count_ = static_cast<int>(numbers.size());
  cores_ = profile.cores() > 0 ? profile.cores() : node_threads;
  communication_threads_ = communication_slowdown_ * std::max<double>(1, profile.threads());
}

double Contention::Threads(int stage, Work work) const {
  switch (work) {
    case Work::kCompute:
    case Work::kHostCompute:
      return ranks_[stage] * threads_[stage];
    case Work::kCommunication:
      return ranks_[stage] * communication_threads_;
    case Work::kToDevice:
    case Work::kToHost:
      return ranks_[stage];
    default:
      return 0;
  }
}

void Contention::Count(int stage, Work work, int sign, Load* load) const {
  const double threads = sign * Threads(stage, work);
  load->threads += threads;
  if (work == Work::kToDevice || work == Work::kToHost) load->copying += threads;
}

double Contention::CoreShare(int stage, const Load& load) const {
  if (!shared_cores_ || load.threads <= cores_) return 1;
  const double even = cores_ / load.threads;
  if (load.copying <= 0 || threads_[stage] <= 1) return even;
  return std::min(even, 1 / std::ceil(load.threads / cores_ - kRounding));
}

double Contention::ComputeShare(int stage, Work beside) const {
  Load load;
  for (int other = 0; other < static_cast<int>(nodes_.size()); ++other) {
    if (nodes_[other] != nodes_[stage]) continue;
    Count(other, Work::kCompute, 1, &load);
    Count(other, beside, 1, &load);
  }
  return CoreShare(stage, load);
}

double Contention::Beside(Work work, const WorkCounts& running, double contention) const {
  const auto meets = [&running](Work other, double ratio) {
    return Running(running, other) > 0 ? ratio : 1.0;
  };
  switch (work) {
    case Work::kToDevice:
      return meets(Work::kToHost, copy_ratio_);
    case Work::kToHost:
      return meets(Work::kToDevice, copy_ratio_);
    case Work::kNvmeLoad:
      return meets(Work::kNvmeStore, nvme_ratio_);
    case Work::kNvmeStore:
      return meets(Work::kNvmeLoad, nvme_ratio_);
    case Work::kCompute:
      return shared_cores_ ? 1 : std::max(kSlowest, 1 - communication_slowdown_ * contention);
    default:
      return 1;
  }
}

}  // namespace terrace
