// Frozen weights in blocks: encoded from what they are drawn as or read from, saved as they rest,
// and converted where a job has them in other blocks, or in none.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/numbers/frozen_codes.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/block_codes.h"
#include "proto/program/op_codec.h"
#include "proto/program/state_layout.h"
#include "tests/support/memory_region.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/numbers/random_normal.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/stored_weight.h"

namespace terrace {
namespace {

using kernels::Format;
using testing::HasSubstr;

constexpr int64_t kRows = 6, kColumns = 512, kElements = kRows * kColumns, kSeed = 7;
constexpr char kName[] = "layers.0.proj.weight";

struct Blocks {
  Format format = Format::kNF4;
  int64_t block = 64;
  int64_t packed() const { return kernels::RowOf(format).packed; }
};

// One rank that holds rows [first, kRows) of the matrix, in blocks or, of no block, in f32.
class Rank {
 public:
  explicit Rank(const Blocks& blocks, int64_t first = 0) : blocks_(blocks), first_(first) {
    v1::Initializer* init = program_.add_initializers();
    init->set_tensor(kName);
    init->set_kind(v1::Initializer::NORMAL);
    init->set_stddev(0.02f);
    init->add_shape(kRows);
    init->add_shape(kColumns);
    init->set_frozen(true);
    program_.add_arenas();
    if (blocks.block == 0) {
      Add(kName, 1, v1::F32, 4);
    } else {
      init->set_blocks(EncodeBlockFormat(blocks.format));
      init->set_block(blocks.block);
      init->set_weights(v1::BF16);
      Add(kName, blocks.packed(), v1::U8, 1);
      Add(CodeScalesName(kName), blocks.block, v1::F32, 4);
    }
    memory_.resize(bytes_);
    region_ = MemoryRegion(memory_);
  }
  RankState state() { return {program_, {}, regions_}; }
  const std::vector<std::byte>& memory() const { return memory_; }

  // What the rank's rows are worth, in f32.
  std::vector<float> Numbers() const {
    const int64_t elements = (kRows - first_) * kColumns;
    std::vector<float> numbers(elements);
    if (blocks_.block == 0) {
      std::memcpy(numbers.data(), memory_.data(), elements * sizeof(float));
      return numbers;
    }
    std::vector<float> scales(elements / blocks_.block);
    std::memcpy(scales.data(), memory_.data() + program_.buffers(1).offset(),
                scales.size() * sizeof(float));
    for (int64_t i = 0; i < elements; ++i) {
      const auto byte = static_cast<uint8_t>(memory_[i / blocks_.packed()]);
      const uint8_t code = blocks_.packed() == 1 ? byte : byte >> i % 2 * 4 & 15;
      numbers[i] = kernels::BlockNumber(code, blocks_.format) * scales[i / blocks_.block];
    }
    return numbers;
  }

 private:
  void Add(const std::string& name, int64_t block, v1::DType dtype, int64_t element_bytes) {
    v1::StateRange* range = program_.add_state();
    range->set_tensor(name);
    range->set_kind(v1::WEIGHT);
    range->add_shape(kRows);
    range->add_shape(kColumns / block);
    range->set_row(first_);
    range->set_rows(kRows - first_);
    range->set_columns(kColumns / block);
    range->set_row_stride(kColumns / block);
    range->set_buffer(program_.buffers_size());
    range->set_dtype(dtype);
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(range->buffer());
    buffer->set_offset(bytes_);
    buffer->set_bytes(range->rows() * range->columns() * element_bytes);
    bytes_ += buffer->bytes();
  }

  const Blocks blocks_;
  const int64_t first_;
  v1::Program program_;
  int64_t bytes_ = 0;
  std::vector<std::byte> memory_;
  MemoryRegion region_;
  std::vector<Region*> regions_ = {&region_};
};

constexpr Blocks kNone = {.block = 0};
constexpr Blocks kAll[] = {{}, {Format::kInt8Linear, 128}, {Format::kFP8, 128}, {Format::kNF4, 16}};

std::vector<float> Drawn() {
  std::vector<float> numbers(kElements);
  FillNormal(kSeed, StreamOfName(kName), 0, 0, 0.02f, numbers);
  return numbers;
}

// Of codes of whole blocks, one by one.
std::vector<float> Worth(std::vector<float> numbers, const Blocks& blocks) {
  for (size_t begin = 0; begin < numbers.size(); begin += blocks.block) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < blocks.block; ++i)
      largest = kernels::LargerMagnitude(largest, numbers[begin + i]);
    const kernels::BlockScale scale = kernels::ScaleOfBlock(largest, blocks.format);
    for (int64_t i = 0; i < blocks.block; ++i) {
      float& number = numbers[begin + i];
      number = kernels::BlockNumber(kernels::BlockCode(number * scale.inverse, blocks.format),
                                    blocks.format) *
               scale.scale;
    }
  }
  return numbers;
}

TEST(FrozenCodesTest, WhatIsDrawnIsEncodedAndEveryRankHasTheSameCodes) {
  for (const Blocks& blocks : kAll) {
    Rank all(blocks), upper(blocks, 3);
    ASSERT_EQ(InitialiseWeights(kSeed, all.state(), 2), absl::OkStatus());
    ASSERT_EQ(InitialiseWeights(kSeed, upper.state(), 1), absl::OkStatus());
    const std::vector<float> numbers = all.Numbers();
    EXPECT_EQ(numbers, Worth(Drawn(), blocks));
    EXPECT_EQ(upper.Numbers(), std::vector<float>(numbers.begin() + 3 * kColumns, numbers.end()));
  }
}

// Codes and scales from any byte on are those of whole tensors.
TEST(FrozenCodesTest, PiecesAreThoseOfTheWhole) {
  const std::vector<float> drawn = Drawn();
  const auto source = [&](int64_t begin, std::span<float> to) {
    std::copy_n(drawn.begin() + begin, to.size(), to.begin());
    return absl::OkStatus();
  };
  for (const Blocks& blocks : kAll) {
    const CodeFormat format = {&kernels::RowOf(blocks.format), blocks.block};
    std::vector<std::byte> all(kElements / blocks.packed()), piece(777);
    ASSERT_EQ(EncodeCodes(format, source, 0, all), absl::OkStatus());
    ASSERT_EQ(EncodeCodes(format, source, 311, piece), absl::OkStatus());
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), all.begin() + 311));
    std::vector<std::byte> scales(kElements / blocks.block * 4), some(12);
    ASSERT_EQ(EncodeScales(format, source, 0, scales), absl::OkStatus());
    ASSERT_EQ(EncodeScales(format, source, 5, some), absl::OkStatus());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), scales.begin() + 20));
  }
}

class FrozenCheckpointTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path(name); }
  // A checkpoint of a rank's state; its path.
  std::string Save(Rank* rank, const std::string& directory) {
    const auto info = WriteCheckpoint(Path(directory), {.step = 1}, rank->state(), {});
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->path : "";
  }

  TemporaryFolder folder_;
};

TEST_F(FrozenCheckpointTest, CodesAreSavedAsTheyRestAndResumedToTheBit) {
  for (const Blocks& blocks : kAll) {
    const std::string name =
        std::string(kernels::RowOf(blocks.format).name) + std::to_string(blocks.block);
    Rank rank(blocks), other(blocks);
    ASSERT_EQ(InitialiseWeights(kSeed, rank.state(), 1), absl::OkStatus());
    const std::string path = Save(&rank, name);
    const auto reader = SafetensorsReader::Open(path + "/model.safetensors");
    ASSERT_TRUE(reader.ok()) << reader.status();
    const StoredTensor codes = (*reader)->Get(kName).value();
    EXPECT_EQ(codes.dtype, kernels::DType::kU8);
    EXPECT_EQ(codes.bytes, kElements / blocks.packed());
    EXPECT_EQ((*reader)->metadata().at(kFrozenFormatKey), kernels::RowOf(blocks.format).name);
    EXPECT_EQ((*reader)->metadata().at(kFrozenBlockKey), std::to_string(blocks.block));
    ASSERT_EQ(ReadCheckpoint(path, other.state(), nullptr).status(), absl::OkStatus());
    EXPECT_EQ(other.memory(), rank.memory());
    // Also by what begins with these weights.
    Rank begins(blocks);
    ASSERT_EQ(ReadWeights(path + "/model.safetensors", begins.state()), absl::OkStatus());
    EXPECT_EQ(begins.memory(), rank.memory());
  }
}

TEST_F(FrozenCheckpointTest, OtherBlocksAndNumbersAreConverted) {
  Rank nf4({}), none(kNone);
  ASSERT_EQ(InitialiseWeights(kSeed, nf4.state(), 1), absl::OkStatus());
  ASSERT_EQ(InitialiseWeights(kSeed, none.state(), 1), absl::OkStatus());
  EXPECT_EQ(none.Numbers(), Drawn());
  const std::string codes = Save(&nf4, "codes"), numbers = Save(&none, "numbers");
  Rank decoded(kNone), encoded({});
  ASSERT_EQ(ReadCheckpoint(codes, decoded.state(), nullptr).status(), absl::OkStatus());
  EXPECT_EQ(decoded.Numbers(), nf4.Numbers());
  ASSERT_EQ(ReadCheckpoint(numbers, encoded.state(), nullptr).status(), absl::OkStatus());
  EXPECT_EQ(encoded.memory(), nf4.memory());
  const Blocks int8 = {Format::kInt8Linear, 128};
  Rank other(int8);
  ASSERT_EQ(ReadCheckpoint(codes, other.state(), nullptr).status(), absl::OkStatus());
  EXPECT_EQ(other.Numbers(), Worth(nf4.Numbers(), int8));
}

TEST_F(FrozenCheckpointTest, CodesWithoutWhatTheyMeanAreRefused) {
  const std::vector<std::byte> bytes(kElements / 2);
  const auto write = [&](const std::string& file, std::map<std::string, std::string> metadata) {
    auto writer = SafetensorsWriter::Create(
        Path(file), {{kName, kernels::DType::kU8, {kRows, kColumns / 2}}}, metadata);
    EXPECT_TRUE(writer.ok() && writer->Append(bytes).ok() && writer->Finish().ok());
    Rank rank({});
    return std::string(ReadWeights(Path(file), rank.state()).message());
  };
  for (const auto& metadata : {std::map<std::string, std::string>{},
                               {{kFrozenFormatKey, "nf5"}, {kFrozenBlockKey, "64"}},
                               {{kFrozenFormatKey, "nf4"}, {kFrozenBlockKey, "48"}},
                               {{kFrozenFormatKey, "nf4"}, {kFrozenBlockKey, "64"}}}) {
    EXPECT_THAT(write("codes.safetensors", metadata),
                HasSubstr("tensor layers.0.proj.weight is U8[6, 256], must be F32, BF16 or F16, or "
                          "codes that layers.0.proj.weight.scales"));
  }
}

}  // namespace
}  // namespace terrace
