// SPDX-License-Identifier: Apache-2.0
// What the compiler makes of every layout and family: a checkpoint read by all of its ranks and
// written again is the same to the byte.
#include <cmath>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <tuple>

#include "base/file.h"
#include "gmock/gmock.h"
#include "kernels/dynamic_map.h"
#include "tests/support/memory_region.h"
#include "tests/support/request_region.h"
#include "tests/unit/coordinator/compiler/factored_jobs.h"
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

struct Kind {
  bool stochastic_rounding = false;
  const char* moments = "f32";
};

class CompiledLayoutTest : public ::testing::TestWithParam<std::string> {
 protected:
  // A checkpoint of one rank, read and written again by every layout.
  static void ExpectEveryLayoutResumes(const Kind& kind);
};

INSTANTIATE_TEST_SUITE_P(Families, CompiledLayoutTest, ::testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param; });

// The element's value in the tensor's type.
std::vector<std::byte> Bytes(const StateTensor& tensor, int64_t element) {
  const float value = Value(tensor, element);
  std::vector<std::byte> bytes(tensor.element_bytes());
  if (tensor.dtype == kernels::DType::kU8) {
    bytes[0] = static_cast<std::byte>(static_cast<int64_t>(value) % 251);
    return bytes;
  }
  ConvertElements(kernels::DType::kF32, reinterpret_cast<const std::byte*>(&value), tensor.dtype,
                  bytes.data(), 1);
  return bytes;
}

v1::Layout With(v1::Layout layout, const Kind& kind) {
  layout.set_stochastic_rounding(kind.stochastic_rounding);
  if (kind.stochastic_rounding) layout.set_precision("bf16");
  layout.set_moments_format(kind.moments);
  return layout;
}

void CompiledLayoutTest::ExpectEveryLayoutResumes(const Kind& kind) {
  TemporaryFolder first;
  CompiledJob one(CompileCase({GetParam(), With(MatrixLayout(), kind)}).value());
  int64_t short_ones = 0;
  one.Visit([&](int, const StateTensor& tensor, int64_t element, std::byte* held) {
    const std::vector<std::byte> bytes = Bytes(tensor, element);
    std::memcpy(held, bytes.data(), bytes.size());
    short_ones += bytes.size() < sizeof(float);
  });
  EXPECT_EQ(short_ones > 0, kind.stochastic_rounding || std::string(kind.moments) != "f32");
  ASSERT_THAT(one.Write(first.path()), ::testing::Each(absl::OkStatus()));
  const std::string path = first.path("step-00000001"), files = FilesOf(path);
  int layouts = 0;
  for (LayoutCase c : LayoutMatrix(8, kEvery)) {
    if (c.family != GetParam()) continue;
    SCOPED_TRACE(Describe(c));
    c.layout = With(c.layout, kind);
    // Where rows are cut blocks are smaller.
    if (std::string(kind.moments) == "int8" && c.layout.tensor_parallel() > 1) continue;
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

TEST_P(CompiledLayoutTest, EveryLayoutResumesTheOthersCheckpoints) { ExpectEveryLayoutResumes({}); }

TEST_P(CompiledLayoutTest, SoItDoesWithWeightsInBf16) {
  ExpectEveryLayoutResumes({.stochastic_rounding = true});
}

TEST_P(CompiledLayoutTest, SoItDoesWithMomentsInFewerBits) {
  ExpectEveryLayoutResumes({.moments = "bf16"});
  ExpectEveryLayoutResumes({.moments = "int8"});
}

// ---- rules that update whole tensors ------------------------------------------------------------

CompiledJob WholeTensorsJob(const std::string& family, const std::string& rule, double beta1,
                            uint32_t data, uint32_t pipeline, uint32_t zero = 0) {
  v1::JobSpec spec = MatrixSpec();
  if (rule == "muon") {
    spec.mutable_train()->mutable_optimizer()->set_ns_steps(5);
  } else {
    SetFactored(rule, beta1, spec.mutable_train()->mutable_optimizer());
  }
  const Model model = MatrixModel(family);
  v1::Layout layout = MatrixLayout();
  layout.set_optimizer(rule);
  layout.set_data_parallel(data);
  layout.set_pipeline_parallel(pipeline);
  layout.set_zero_stage(zero);
  return CompiledJob(Compile({.spec = &spec, .model = &model, .layout = layout}).value());
}

TEST_P(CompiledLayoutTest, StatesOfWholeTensorsMoveWithThem) {
  for (const auto& [rule, beta1] : {std::pair("adafactor", 0.0), std::pair("adafactor", 0.9),
                                    std::pair("came", 0.9), std::pair("muon", 0.0)}) {
    const bool factored = std::string(rule) != "muon";
    TemporaryFolder first;
    CompiledJob one = WholeTensorsJob(GetParam(), rule, beta1, 1, 1);
    one.Visit([&](int, const StateTensor& tensor, int64_t element, std::byte* held) {
      const std::vector<std::byte> bytes = Bytes(tensor, element);
      std::memcpy(held, bytes.data(), bytes.size());
    });
    ASSERT_THAT(one.Write(first.path()), ::testing::Each(absl::OkStatus()));
    const std::string path = first.path("step-00000001"), files = FilesOf(path);
    for (const char* state : {"_row", "_column", "_v"})
      EXPECT_EQ(files.find(std::string(".") + rule + state) != std::string::npos, factored);
    EXPECT_EQ(files.find(std::string(".") + rule + "_m") != std::string::npos,
              beta1 > 0 || !factored);
    for (const auto& [data, pipeline, zero] :
         {std::tuple(2, 1, 0), std::tuple(1, 2, 0), std::tuple(2, 4, 0), std::tuple(2, 1, 1),
          std::tuple(4, 1, 2), std::tuple(2, 2, 1), std::tuple(3, 1, 1)}) {
      CompiledJob job = WholeTensorsJob(GetParam(), rule, beta1, data, pipeline, zero);
      ASSERT_THAT(job.Read(path), ::testing::Each(absl::OkStatus()));
      TemporaryFolder second;
      ASSERT_THAT(job.Write(second.path()), ::testing::Each(absl::OkStatus()));
      ASSERT_TRUE(FilesOf(second.path("step-00000001")) == files) << rule << " " << pipeline;
    }
  }
}

// ---- moments in another format than the job's ---------------------------------------------------

using Numbers = std::map<std::string, std::vector<float>>;  // by stored name

CompiledJob JobWith(const char* family, const char* moments, uint32_t tensor = 1) {
  v1::Layout layout = MatrixLayout();
  layout.set_moments_format(moments);
  layout.set_tensor_parallel(tensor);
  return CompiledJob(CompileCase({family, layout}).value());
}

// Of all ranks, codes as they are.
Numbers NumbersOf(CompiledJob& job) {
  Numbers numbers;
  job.Visit([&](int, const StateTensor& tensor, int64_t element, const std::byte* held) {
    std::vector<float>& of = numbers[tensor.stored_name];
    if (static_cast<int64_t>(of.size()) <= element) of.resize(element + 1);
    if (tensor.dtype == kernels::DType::kU8) {
      of[element] = static_cast<float>(*held);
    } else {
      ConvertElements(tensor.dtype, held, kernels::DType::kF32,
                      reinterpret_cast<std::byte*>(&of[element]), 1);
    }
  });
  return numbers;
}

// The moments that these codes and scales stand for.
Numbers Decoded(const Numbers& held, int64_t block) {
  Numbers moments;
  for (const auto& [name, numbers] : held) {
    if (name.ends_with("_scales")) continue;
    std::vector<float>& of = moments[name] = numbers;
    const auto scales = held.find(name + "_scales");
    if (scales == held.end()) continue;
    const kernels::DynamicMap& map =
        name.ends_with("adam_m") ? kernels::kSignedMap : kernels::kUnsignedMap;
    for (size_t i = 0; i < of.size(); ++i)
      of[i] = map.number[static_cast<size_t>(numbers[i])] * scales->second[i / block];
  }
  return moments;
}

float MomentAt(const std::string& name, int64_t element) {
  const float m = std::ldexp(std::sin(static_cast<float>(element)), -static_cast<int>(element % 9));
  return name.ends_with("adam_v") ? m * m : m;
}

TEST(MomentFormatsTest, ACheckpointInAnotherFormatIsConverted) {
  TemporaryFolder exact_folder, int8_folder;
  CompiledJob exact = JobWith("gpt2", "f32");
  exact.Visit([](int, const StateTensor& tensor, int64_t element, std::byte* held) {
    const float value = MomentAt(tensor.stored_name, element);
    std::memcpy(held, &value, sizeof(value));
  });
  ASSERT_THAT(exact.Write(exact_folder.path()), ::testing::Each(absl::OkStatus()));
  const Numbers want = NumbersOf(exact);

  CompiledJob halves = JobWith("gpt2", "bf16");
  ASSERT_THAT(halves.Read(exact_folder.path("step-00000001")), ::testing::Each(absl::OkStatus()));
  for (const auto& [name, numbers] : NumbersOf(halves)) {
    const bool rounded = name.ends_with("weight.adam_m") || name.ends_with("weight.adam_v");
    for (size_t i = 0; i < numbers.size(); ++i) {
      const float value = want.at(name)[i];
      ASSERT_TRUE(numbers[i] == value || (rounded && numbers[i] == FloatOfBf16(Bf16OfFloat(value))))
          << name << " " << i;
    }
  }

  CompiledJob blocks = JobWith("gpt2", "int8");
  ASSERT_THAT(blocks.Read(exact_folder.path("step-00000001")), ::testing::Each(absl::OkStatus()));
  const Numbers encoded = NumbersOf(blocks), decoded = Decoded(encoded, 256);
  int64_t others = 0;
  for (const auto& [name, numbers] : decoded) {
    const auto scales = encoded.find(name + "_scales");
    for (size_t i = 0; i < numbers.size(); ++i) {
      const float value = want.at(name)[i];
      if (scales == encoded.end()) {
        ASSERT_EQ(numbers[i], value) << name;
        continue;
      }
      others += numbers[i] != value;
      // No number of the map is farther from its neighbour than half of the interval's width.
      const float scale = scales->second[i / 256];
      ASSERT_NEAR(numbers[i], value, 0.55f * std::abs(value) + 1e-6f * scale) << name << " " << i;
    }
  }
  EXPECT_GT(others, 1000);

  // Back in f32 they are exactly what the codes stand for, in blocks of another size nearly.
  ASSERT_THAT(blocks.Write(int8_folder.path()), ::testing::Each(absl::OkStatus()));
  const std::string path = int8_folder.path("step-00000001");
  ASSERT_THAT(exact.Read(path), ::testing::Each(absl::OkStatus()));
  EXPECT_EQ(NumbersOf(exact), decoded);
  CompiledJob cut = JobWith("gpt2", "int8", /*tensor=*/2);
  ASSERT_THAT(cut.Read(path), ::testing::Each(absl::OkStatus()));
  EXPECT_EQ(cut.state(0).program.rules().moment_block(), 16);
  for (const auto& [name, numbers] : Decoded(NumbersOf(cut), 16)) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const float value = decoded.at(name)[i];
      ASSERT_NEAR(numbers[i], value, 0.55f * std::abs(value)) << name << " " << i;
    }
  }
}

// ---- what codes of gradients were not worth
// ------------------------------------------------------

CompiledJob JobWithResiduals(const char* format, uint32_t ranks, uint32_t tensor, uint32_t stages) {
  v1::Layout layout = MatrixLayout();
  layout.set_precision("bf16");
  layout.set_data_parallel(ranks);
  layout.set_micro_batches(8 / ranks);
  layout.set_tensor_parallel(tensor);
  layout.set_pipeline_parallel(stages);
  layout.set_zero_stage(2);
  layout.set_reduce_format("int8");
  layout.set_residual_format(format);
  return CompiledJob(CompileCase({"qwen3", layout}).value());
}

void FillWithValues(CompiledJob& job) {
  job.Visit([](int, const StateTensor& tensor, int64_t element, std::byte* held) {
    const std::vector<std::byte> bytes = Bytes(tensor, element);
    std::memcpy(held, bytes.data(), bytes.size());
  });
}

// Each rank's are there again, however the model is cut; those of other ranks begin at zero.
TEST(ResidualsTest, EachRankFindsItsOwnAgain) {
  TemporaryFolder folder;
  CompiledJob first = JobWithResiduals("bf16", 2, 1, 1);
  FillWithValues(first);
  ASSERT_THAT(first.Write(folder.path()), ::testing::Each(absl::OkStatus()));
  const std::string path = folder.path("step-00000001");
  const Numbers want = NumbersOf(first);
  for (const auto& [ranks, tensor, stages] :
       {std::array{2, 1, 1}, std::array{2, 2, 1}, std::array{2, 1, 2}, std::array{4, 1, 1}}) {
    SCOPED_TRACE(absl::StrCat("dp", ranks, " tp", tensor, " pp", stages));
    CompiledJob other = JobWithResiduals("f32", ranks, tensor, stages);
    ASSERT_THAT(other.Read(path), ::testing::Each(absl::OkStatus()));
    int64_t kept = 0, lost = 0;
    for (const auto& [name, numbers] : NumbersOf(other)) {
      if (!name.ends_with(".residual")) continue;
      if (ranks == 2) {
        ASSERT_EQ(numbers, want.at(name)) << name;
        kept += numbers.size();
      } else {
        ASSERT_THAT(numbers, ::testing::Each(0.0f)) << name;
        lost += numbers.size();
      }
    }
    EXPECT_GT(ranks == 2 ? kept : lost, 1000);
  }
}

TEST(ResidualsTest, ACheckpointWithoutThemIsRead) {
  TemporaryFolder folder;
  CompiledJob without = JobWith("qwen3", "f32");
  FillWithValues(without);
  ASSERT_THAT(without.Write(folder.path()), ::testing::Each(absl::OkStatus()));
  CompiledJob with = JobWithResiduals("bf16", 2, 1, 1);
  ASSERT_THAT(with.Read(folder.path("step-00000001")), ::testing::Each(absl::OkStatus()));
  for (const auto& [name, numbers] : NumbersOf(with)) {
    if (!name.ends_with(".residual")) continue;
    ASSERT_THAT(numbers, ::testing::Each(0.0f)) << name;
  }
}

CompiledJob JobByRule(const char* rule, uint32_t zero) {
  v1::Layout layout = MatrixLayout();
  layout.set_optimizer(rule);
  layout.set_data_parallel(zero > 0 ? 2 : 1);
  layout.set_micro_batches(zero > 0 ? 4 : 8);
  layout.set_zero_stage(zero);
  return CompiledJob(CompileCase({"llama", layout}).value());
}

// One that keeps other moments says which they are; the weights alone are anybody's.
TEST(OptimizerRulesTest, ACheckpointIsReadByRulesWithTheSameMoments) {
  const char* const alike[][2] = {
      {"adamw", "adam"}, {"momentum", "nesterov"}, {"lion", "lion"}, {"sgd", "sgd"}};
  for (const auto& [rule, same] : alike) {
    TemporaryFolder folder;
    CompiledJob first = JobByRule(rule, 0);
    FillWithValues(first);
    ASSERT_THAT(first.Write(folder.path()), ::testing::Each(absl::OkStatus()));
    const std::string path = folder.path("step-00000001");
    CompiledJob again = JobByRule(same, 2);
    ASSERT_THAT(again.Read(path), ::testing::Each(absl::OkStatus())) << rule;
    EXPECT_EQ(NumbersOf(again), NumbersOf(first)) << rule;
    for (const char* other : {"adamw", "momentum", "lion", "sgd"}) {
      if (other == std::string(rule)) continue;
      const absl::Status status = JobByRule(other, 0).Read(path).at(0);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  ::testing::HasSubstr(absl::StrCat("holds the optimizer states of ", rule,
                                                    ", from which ", other, " cannot go on")));
    }
  }
}

TEST(MomentFormatsTest, CodesWithoutTheSizeOfTheirBlocksAreRefused) {
  TemporaryFolder folder;
  CompiledJob blocks = JobWith("gpt2", "int8");
  blocks.Visit([](int, const StateTensor& tensor, int64_t, std::byte* held) {
    std::memset(held, 0, tensor.element_bytes());
  });
  ASSERT_THAT(blocks.Write(folder.path()), ::testing::Each(absl::OkStatus()));
  const std::string file = folder.path("step-00000001") + "/optimizer.safetensors";
  std::string bytes = ReadTextFile(file, 1 << 26).value();
  const size_t at = bytes.find("\"moment_block\":\"256\"");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 14, "\"moment_blonk\"");
  ASSERT_TRUE(WriteSyncedFile(file, bytes).ok());
  EXPECT_THAT(std::string(blocks.Read(folder.path("step-00000001"))[0].message()),
              ::testing::HasSubstr("must come with the size of its blocks, 'moment_block'"));
}

}  // namespace
}  // namespace terrace
