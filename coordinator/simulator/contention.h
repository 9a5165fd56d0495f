// Contention: how fast an instruction runs beside others, as a share of how fast it runs alone.
//
// Three things slow an instruction down. Copies in both directions of a link between tiers at once
// go at the link's ratio (HardwareProfile: both at once over the sum of each alone). A computation
// beside communication of its rank loses communication_slowdown of the time that the bytes take
// over the node's link, however long they take over the network. And where cores are
// shared, the CPU backend, all that threads do on one node at one time goes at cores over threads,
// when there are more threads than cores: a computation has those of its rank, a copy has one,
// communication has what the slowdown tells of it, a request to NVMe none.
//
// A copy beside a team of threads costs more than its part of the cores. Kernels divide their work
// before they begin (kernels/cpu/parallel.h) and end with their slowest thread, the one that shares
// its core with the copy; the other cores wait. So where a copy finds no free core, teams run at
// the share of the fullest core: one over the threads on it. A rank of one thread waits for no
// other.
//
// Pure. Thread-safe once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// What an instruction keeps busy.
enum class Work : uint8_t {
  kCompute,
  kHostCompute,
  kCommunication,
  kToDevice,
  kToHost,
  kNvmeLoad,
  kNvmeStore,
  kOther,  // inputs and outputs
};
inline constexpr int kWorks = static_cast<int>(Work::kOther) + 1;
using WorkCounts = std::array<int, kWorks>;  // instructions that run, by Work

Work WorkOf(const v1::Program& program, const v1::Instruction& instruction);

class Contention {
 public:
  Contention(const v1::HardwareProfile& profile, const std::vector<const v1::Program*>& stages);

  // Stages with one number share a node and slow each other down.
  int NodeOf(int stage) const { return nodes_[stage]; }
  int nodes() const { return node_count_; }
  bool shared_cores() const { return shared_cores_; }

  // Threads that keep a node busy.
  struct Load {
    double threads = 0;
    double copying = 0;  // of these
  };
  // Adds what all ranks of the stage on its node do with one instruction of the kind, or (-1) takes
  // it away.
  void Count(int stage, Work work, int sign, Load* load) const;
  bool NeedsCores(int stage, Work work) const { return Threads(stage, work) > 0; }
  // The share of an instruction of the stage that needs cores, on a node with this load.
  double CoreShare(int stage, const Load& load) const;
  // The share of the stage's computations while all stages of its node compute and each does one
  // instruction of this kind besides; kOther: nothing.
  double ComputeShare(int stage, Work beside) const;
  // Of an instruction of the stage, beside those of its own rank that `running` counts;
  // `contention`: the sum of theirs (InstructionTime::Contention).
  double Beside(Work work, const WorkCounts& running, double contention) const;

 private:
  double Threads(int stage, Work work) const;

  std::vector<int> nodes_;  // by stage
  int node_count_ = 0;
  std::vector<double> ranks_;    // by stage: of it on one node
  std::vector<double> threads_;  // by stage: of one rank
  bool shared_cores_ = false;
  double cores_ = 0;
  double communication_threads_ = 0;
  double communication_slowdown_ = 0;
  double copy_ratio_ = 1;
  double nvme_ratio_ = 1;
};

}  // namespace terrace
