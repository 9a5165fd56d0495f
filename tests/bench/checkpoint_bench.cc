// What moving the state of ranks to and from files costs: write, resume, given weights, random
// weights, with the state in addressable memory and behind requests. Two layouts: one rank that
// holds whole tensors, and two that hold the columns of each (one run a row). Run by hand; a folder
// on tmpfs measures the arithmetic and the copies, one on a disk the disk.
//
//   checkpoint_bench FOLDER [MiB of state] [rounds]
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/memory_region.h"
#include "tests/unit/worker/checkpoint/layout_fixture.h"
#include "worker/checkpoint/checkpoint.h"

namespace terrace {
namespace {

constexpr int64_t kRows = 2048, kColumns = 2048;

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// A rank of `ranks` that share the columns of every tensor.
class BenchRank {
 public:
  BenchRank(int ranks, int rank, int64_t tensors) {
    program_.mutable_grid()->set_tensor(ranks);
    place_ = CoordinatesOf(program_.grid(), rank);
    program_.add_arenas();
    const int64_t columns = kColumns / ranks, bytes = kRows * columns * sizeof(float);
    for (int64_t t = 0; t < tensors; ++t) {
      const std::string name = "h." + std::to_string(t) + ".weight";
      v1::Initializer* initializer = program_.add_initializers();
      initializer->set_tensor(name);
      initializer->set_kind(v1::Initializer::NORMAL);
      initializer->set_stddev(0.02f);
      initializer->add_shape(kRows);
      initializer->add_shape(kColumns);
      for (const v1::StateKind kind : {v1::WEIGHT, v1::FIRST_MOMENT, v1::SECOND_MOMENT}) {
        v1::Buffer* buffer = program_.add_buffers();
        buffer->set_id(program_.buffers_size() - 1);
        buffer->set_bytes(bytes);
        buffer->set_offset((program_.buffers_size() - 1) * bytes);
        v1::StateRange* range = program_.add_state();
        range->set_tensor(name);
        range->set_kind(kind);
        range->add_shape(kRows);
        range->add_shape(kColumns);
        range->set_rows(kRows);
        range->set_columns(columns);
        range->set_row_stride(columns);
        range->set_split(ranks > 1 ? v1::StateRange::BY_COLUMNS : v1::StateRange::WHOLE);
        range->set_buffer(buffer->id());
        range->set_dtype(v1::F32);
      }
    }
    memory_.assign(program_.buffers_size() * bytes / sizeof(float), 0.5f);
    region_ = MemoryRegion(std::as_writable_bytes(std::span(memory_)));
  }
  RankState state() { return {program_, place_, regions_}; }

 private:
  v1::Program program_;
  Coordinates place_;
  std::vector<float> memory_;
  MemoryRegion region_;
  std::vector<Region*> regions_ = {&region_};
};

void Together(const std::vector<std::unique_ptr<BenchRank>>& ranks,
              const std::function<absl::Status(BenchRank&, CheckpointPeers*)>& body) {
  ThreadPeers peers(static_cast<int>(ranks.size()));
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      ThreadPeers::Peer peer = peers.At(static_cast<int>(i));
      Must(body(*ranks[i], &peer));
    });
  }
}

void Measure(const char* name, int count, int64_t tensors, int rounds, const std::string& folder) {
  std::vector<std::unique_ptr<BenchRank>> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(std::make_unique<BenchRank>(count, i, tensors));
  const std::string path = folder + "/step-00000001";
  struct Case {
    const char* name;
    std::function<absl::Status(BenchRank&, CheckpointPeers*)> run;
    std::vector<double> seconds = {};
  };
  std::vector<Case> cases = {
      {"write",
       [&](BenchRank& rank, CheckpointPeers* peers) {
         return WriteCheckpoint(folder, {.step = 1}, rank.state(), {.keep = 1, .peers = peers})
             .status();
       }},
      {"resume",
       [&](BenchRank& rank, CheckpointPeers* peers) {
         return ReadCheckpoint(path, rank.state(), peers).status();
       }},
      {"weights",
       [&](BenchRank& rank, CheckpointPeers*) { return ReadWeights(path, rank.state()); }},
      {"random", [&](BenchRank& rank, CheckpointPeers*) {
         return InitialiseWeights(7, rank.state(), 2 / count);
       }}};
  for (int round = 0; round < rounds; ++round) {
    for (Case& c : cases) c.seconds.push_back(Seconds([&] { Together(ranks, c.run); }));
  }
  for (Case& c : cases) {
    std::sort(c.seconds.begin(), c.seconds.end());
    std::printf("%-24s %-8s %7.3f s\n", name, c.name, c.seconds[c.seconds.size() / 2]);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: checkpoint_bench FOLDER [MiB of state] [rounds]\n");
    return 1;
  }
  const std::string folder = std::string(argv[1]) + "/checkpoint_bench";
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 768;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  const int64_t tensors =
      (mib << 20) / (3 * terrace::kRows * terrace::kColumns * int64_t{sizeof(float)});
  terrace::Measure("whole", 1, tensors, rounds, folder);
  terrace::Measure("columns", 2, tensors, rounds, folder);
  return 0;
}
