// SPDX-License-Identifier: Apache-2.0
// What the compiler makes of every layout and family: a checkpoint read by all of its ranks and
// written again is the same to the byte.
#include <cstring>
#include <functional>
#include <list>
#include <map>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/support/memory_region.h"
#include "tests/support/request_region.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"
#include "tests/unit/worker/checkpoint/layout_fixture.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {
namespace {

constexpr size_t kEvery = 97;  // of the layouts that there are

float Value(const StateTensor& tensor, int64_t element) {
  return static_cast<float>(std::hash<std::string>()(tensor.stored_name) % 5000 * 1000 + element);
}

// The ranks of a compiled job, each with its own memory; that of every other rank has no addresses.
class CompiledJob {
 public:
  explicit CompiledJob(std::vector<v1::Program> stages) : stages_(std::move(stages)) {
    const v1::Grid& grid = stages_[0].grid();
    for (uint32_t rank = 0; rank < RanksOf(grid); ++rank) {
      places_.push_back(CoordinatesOf(grid, rank));
      const v1::Program& program = stages_[places_[rank].stage];
      std::vector<Region*> regions;
      for (const v1::Arena& arena : program.arenas()) {
        memory_.emplace_back(arena.bytes(), std::byte{0x55});
        regions.push_back(rank % 2 == 0
                              ? static_cast<Region*>(&addressed_.emplace_back(memory_.back()))
                              : &requested_.emplace_back(memory_.back()));
        bytes_[regions.back()] = memory_.back().data();
      }
      regions_.push_back(std::move(regions));
    }
  }
  int size() const { return static_cast<int>(places_.size()); }
  RankState state(int rank) const {
    return {stages_[places_[rank].stage], places_[rank], regions_[rank]};
  }
  std::vector<absl::Status> Run(const std::function<absl::Status(int, CheckpointPeers*)>& body) {
    ThreadPeers peers(size());
    std::vector<absl::Status> statuses(size());
    std::vector<std::jthread> threads;
    for (int i = 0; i < size(); ++i) {
      threads.emplace_back([&, i] {
        ThreadPeers::Peer peer = peers.At(i);
        statuses[i] = body(i, &peer);
      });
    }
    threads.clear();
    return statuses;
  }
  std::vector<absl::Status> Write(const std::string& directory) {
    return Run([&](int rank, CheckpointPeers* peers) {
      return WriteCheckpoint(directory, {.step = 1}, state(rank), {.peers = peers}).status();
    });
  }
  std::vector<absl::Status> Read(const std::string& path) {
    return Run([&](int rank, CheckpointPeers* peers) {
      return ReadCheckpoint(path, state(rank), peers).status();
    });
  }
  // Calls `visit` with every element that each rank holds.
  void Visit(const std::function<void(int, const StateTensor&, int64_t, std::byte*)>& visit) {
    for (int rank = 0; rank < size(); ++rank) {
      const auto tensors = ViewState(state(rank));
      ASSERT_TRUE(tensors.ok()) << tensors.status();
      for (const StateTensor& tensor : *tensors) {
        for (const StateSlice& slice : tensor.slices) {
          std::byte* const held = bytes_.at(slice.region) + slice.offset;
          for (int64_t i = 0; i < slice.elements; ++i) {
            visit(rank, tensor, slice.begin + i, held + i * tensor.element_bytes());
          }
        }
      }
    }
  }

 private:
  const std::vector<v1::Program> stages_;
  std::vector<Coordinates> places_;
  std::list<std::vector<std::byte>> memory_;
  std::list<MemoryRegion> addressed_;
  std::list<RequestRegion> requested_;
  std::map<const Region*, std::byte*> bytes_;
  std::vector<std::vector<Region*>> regions_;
};

std::string FilesOf(const std::string& folder) {
  return ReadTextFile(folder + "/model.safetensors", 1 << 26).value() +
         ReadTextFile(folder + "/optimizer.safetensors", 1 << 26).value();
}

class CompiledLayoutTest : public ::testing::TestWithParam<std::string> {
 protected:
  // A checkpoint of one rank, read and written again by every layout.
  static void ExpectEveryLayoutResumes(bool stochastic_rounding);
};

INSTANTIATE_TEST_SUITE_P(Families, CompiledLayoutTest, ::testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param; });

// The element's value in the tensor's type.
std::vector<std::byte> Bytes(const StateTensor& tensor, int64_t element) {
  const float value = Value(tensor, element);
  std::vector<std::byte> bytes(tensor.element_bytes());
  ConvertElements(kernels::DType::kF32, reinterpret_cast<const std::byte*>(&value), tensor.dtype,
                  bytes.data(), 1);
  return bytes;
}

v1::Layout With(v1::Layout layout, bool stochastic_rounding) {
  layout.set_stochastic_rounding(stochastic_rounding);
  if (stochastic_rounding) layout.set_precision("bf16");
  return layout;
}

void CompiledLayoutTest::ExpectEveryLayoutResumes(bool stochastic_rounding) {
  TemporaryFolder first;
  CompiledJob one(CompileCase({GetParam(), With(MatrixLayout(), stochastic_rounding)}).value());
  int64_t short_ones = 0;
  one.Visit([&](int, const StateTensor& tensor, int64_t element, std::byte* held) {
    const std::vector<std::byte> bytes = Bytes(tensor, element);
    std::memcpy(held, bytes.data(), bytes.size());
    short_ones += bytes.size() == 2;
  });
  EXPECT_EQ(short_ones > 0, stochastic_rounding);
  ASSERT_THAT(one.Write(first.path()), ::testing::Each(absl::OkStatus()));
  const std::string path = first.path("step-00000001"), files = FilesOf(path);
  int layouts = 0;
  for (LayoutCase c : LayoutMatrix(8, kEvery)) {
    if (c.family != GetParam()) continue;
    SCOPED_TRACE(Describe(c));
    c.layout = With(c.layout, stochastic_rounding);
    auto stages = CompileCase(c);
    ASSERT_TRUE(stages.ok()) << stages.status();
    CompiledJob job(*std::move(stages));
    ASSERT_THAT(job.Read(path), ::testing::Each(absl::OkStatus()));
    int64_t wrong = 0;
    job.Visit([&](int, const StateTensor& tensor, int64_t element, std::byte* held) {
      const std::vector<std::byte> bytes = Bytes(tensor, element);
      wrong += std::memcmp(held, bytes.data(), bytes.size()) != 0;
    });
    ASSERT_EQ(wrong, 0);
    TemporaryFolder second;
    ASSERT_THAT(job.Write(second.path()), ::testing::Each(absl::OkStatus()));
    ASSERT_TRUE(FilesOf(second.path("step-00000001")) == files);
    ++layouts;
  }
  EXPECT_GT(layouts, 5);
}

TEST_P(CompiledLayoutTest, EveryLayoutResumesTheOthersCheckpoints) {
  ExpectEveryLayoutResumes(/*stochastic_rounding=*/false);
}

TEST_P(CompiledLayoutTest, SoItDoesWithWeightsInBf16) {
  ExpectEveryLayoutResumes(/*stochastic_rounding=*/true);
}

}  // namespace
}  // namespace terrace
