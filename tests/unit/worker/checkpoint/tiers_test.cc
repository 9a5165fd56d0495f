// SPDX-License-Identifier: Apache-2.0
// State on a tier without addresses: the same files and the same memory to the byte, in requests of
// bounded size, and a failure of the tier is one of the whole operation.
#include <cstring>
#include <functional>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/layout_fixture.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/blocks.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Several windows, a tensor in three buffers, and small ones between.
void AddTensors(StateFixture* state) {
  state->Add("wte", {3001, 1024});
  state->Add("norm", {7});
  state->Add("h.0.qkv", {1030, 512}, 3);
}

std::string FilesOf(const std::string& folder) {
  std::string all;
  for (const char* name : {"/model.safetensors", "/optimizer.safetensors", "/manifest.json"}) {
    all += ReadTextFile(folder + name, 1 << 28).value();
  }
  return all;
}

class TiersTest : public ::testing::Test {
 protected:
  TiersTest() {
    AddTensors(&addressed_);
    AddTensors(&requested_);
    addressed_.Fill(1);
    requested_.Fill(1);
  }
  static absl::Status Write(const TemporaryFolder& folder, const StateFixture& state) {
    return WriteCheckpoint(folder.path(), {.step = 1}, state.state(), {}).status();
  }
  // All state buffers; what lies between them is nobody's.
  void ExpectSameState() {
    for (const v1::Buffer& buffer : addressed_.program().buffers()) {
      ASSERT_EQ(std::memcmp(addressed_.memory().data() + buffer.offset(),
                            requested_.memory().data() + buffer.offset(), buffer.bytes()),
                0)
          << "buffer " << buffer.id();
    }
  }

  TemporaryFolder first_, second_;
  StateFixture addressed_{v1::F32}, requested_{v1::F32, /*no_address=*/true};
};

TEST_F(TiersTest, TheFilesAreTheSameOnEveryTier) {
  ASSERT_TRUE(Write(first_, addressed_).ok());
  ASSERT_TRUE(Write(second_, requested_).ok());
  EXPECT_TRUE(FilesOf(first_.path("step-00000001")) == FilesOf(second_.path("step-00000001")));
  EXPECT_TRUE(VerifyCheckpoint(second_.path("step-00000001")).ok());
  const RequestRegion& region = requested_.requests();
  EXPECT_EQ(region.requests(), region.reads());
  EXPECT_LE(region.largest_request_bytes(), kBlockBytes / kLeastThreadsWithoutAddress);
  EXPECT_EQ(region.ragged_requests(), 0);
}

TEST_F(TiersTest, WhatIsReadBackIsTheSameAndEachByteIsWrittenOnce) {
  ASSERT_TRUE(Write(first_, addressed_).ok());
  requested_.Fill(99);
  const std::string path = first_.path("step-00000001");
  ASSERT_TRUE(ReadCheckpoint(path, requested_.state(), nullptr).ok());
  ExpectSameState();
  const RequestRegion& region = requested_.requests();
  EXPECT_EQ(region.reads(), 0);
  EXPECT_LE(region.largest_request_bytes(), kBlockBytes / kLeastThreadsWithoutAddress);
  int64_t windows = 0;
  for (const v1::Buffer& buffer : requested_.program().buffers()) {
    windows += buffer.bytes() / WindowBytes(kLeastThreadsWithoutAddress) + 2;
  }
  EXPECT_LE(region.requests(), windows);
}

TEST_F(TiersTest, RandomWeightsAreTheSameWithAnyNumberOfThreads) {
  ASSERT_TRUE(InitialiseWeights(5, addressed_.state(), 1).ok());
  for (const int threads : {1, 3, 16}) {
    requested_.Fill(99);
    ASSERT_TRUE(InitialiseWeights(5, requested_.state(), threads).ok());
    ExpectSameState();
    EXPECT_LE(requested_.requests().largest_request_bytes(), WindowBytes(std::max(threads, 2)));
  }
}

// Weights of a narrower type and in buffers with padding, into state of two types.
class ConvertingTiersTest : public ::testing::TestWithParam<v1::DType> {};
INSTANTIATE_TEST_SUITE_P(Types, ConvertingTiersTest, ::testing::Values(v1::F32, v1::BF16),
                         [](const auto& info) { return v1::DType_Name(info.param); });

TEST_P(ConvertingTiersTest, GivenAndRandomWeightsAreConvertedAlike) {
  TemporaryFolder folder;
  const std::string path = folder.path("w.safetensors");
  auto writer =
      SafetensorsWriter::Create(path, {{"w", kernels::DType::kF16, {700, 333}}}, {}).value();
  std::vector<uint16_t> values(700 * 333);
  for (size_t i = 0; i < values.size(); ++i) values[i] = F16OfFloat(i * 0.001f - 100);
  ASSERT_TRUE(writer.Append(std::as_bytes(std::span(values))).ok() && writer.Finish().ok());
  StateFixture addressed(GetParam()), requested(GetParam(), /*no_address=*/true);
  for (StateFixture* state : {&addressed, &requested}) {
    state->Add("w", {700, 333}, 2);
    for (v1::Buffer& buffer : *state->program().mutable_buffers()) {
      buffer.set_bytes(buffer.bytes() - 600);  // what padding there is, is of the last rows
    }
    for (v1::StateRange& range : *state->program().mutable_state()) {
      range.set_rows(range.rows() - 2);
    }
    state->Fill(1);
    ASSERT_TRUE(ReadWeights(path, state->state()).ok());
  }
  EXPECT_TRUE(addressed.memory() == requested.memory());
  for (StateFixture* state : {&addressed, &requested}) {
    state->Fill(1);
    ASSERT_TRUE(InitialiseWeights(3, state->state(), 2).ok());
  }
  EXPECT_TRUE(addressed.memory() == requested.memory());
}

// ---- failures ----------------------------------------------------------------------------------

TEST_F(TiersTest, AFailureAtAnyRequestNamesATensorAndKeepsTheTiersWords) {
  ASSERT_TRUE(Write(first_, addressed_).ok());
  const std::string path = first_.path("step-00000001");
  const std::pair<const char*, std::function<absl::Status()>> operations[] = {
      {"read", [&] { return Write(first_, requested_); }},
      {"store", [&] { return ReadCheckpoint(path, requested_.state(), nullptr).status(); }},
      {"store", [&] { return ReadWeights(path, requested_.state()); }},
      {"store", [&] { return InitialiseWeights(1, requested_.state(), 2); }}};
  for (const auto& [verb, run] : operations) {
    requested_.Fill(1);
    ASSERT_TRUE(run().ok());
    const int64_t requests = requested_.requests().requests();
    ASSERT_GT(requests, 10);
    for (const int64_t n : {int64_t{1}, int64_t{2}, requests / 2, requests}) {
      requested_.Fill(1);
      requested_.requests().FailAt(n, absl::DataLossError("block 7 is not what was written"));
      const absl::Status status = run();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()),
                  ::testing::MatchesRegex("cannot " + std::string(verb) +
                                          " the state of (wte|norm|h.0.qkv)(|.adam_m|.adam_v): "
                                          "block 7 is not what was written"));
    }
  }
}

TEST_F(TiersTest, AFailedWriteLeavesTheOlderCheckpointAndNothingElse) {
  ASSERT_TRUE(Write(first_, requested_).ok());
  requested_.requests().FailAt(5, absl::UnavailableError("the device is gone"));
  const absl::Status status =
      WriteCheckpoint(first_.path(), {.step = 2}, requested_.state(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(first_.path())) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(".write.lock", "step-00000001"));
  EXPECT_TRUE(VerifyCheckpoint(first_.path("step-00000001")).ok());
}

TEST(TiersOfRanksTest, AFailureOfOneRanksTierIsOneOfAll) {
  TemporaryFolder folder;
  TestJob job({.name = "zero", .tensor = 2, .data_shard = 2, .sharded = true, .no_address = true});
  job.Fill(&TestRank::Value);
  ASSERT_THAT(job.Write(folder.path(), 1), Each(absl::OkStatus()));
  const auto expect_all_fail = [](const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("the state of "));
      EXPECT_THAT(std::string(status.message()), HasSubstr("a bad block"));
    }
  };
  job.rank(2).requests().FailAt(3, absl::DataLossError("a bad block"));
  expect_all_fail(job.Write(folder.path(), 2));
  EXPECT_FALSE(std::filesystem::exists(folder.path("step-00000002")));
  expect_all_fail(job.Read(folder.path("step-00000001")));
}

TEST(TiersOfRanksTest, TheRowsOfATensorAreReadTogether) {
  TemporaryFolder folder;
  TestJob job({.name = "tp2", .tensor = 2, .no_address = true});
  job.Fill(&TestRank::Value);
  ASSERT_THAT(job.Write(folder.path(), 1), Each(absl::OkStatus()));
  for (int rank = 0; rank < job.size(); ++rank) {
    const v1::Program& program = job.rank(rank).program();
    EXPECT_LE(job.rank(rank).requests().requests(), 3 * program.initializers_size());
  }
}

// ---- windows -----------------------------------------------------------------------------------

TEST(BlocksTest, AllBlocksTogetherStayWithinTheLimitUntilTheyWouldBeTiny) {
  for (int threads = 1; threads <= 32; ++threads) {
    EXPECT_LE(threads * WindowBytes(threads), kBlockBytes) << threads;
    EXPECT_EQ(WindowBytes(threads) % kPageBytes, 0) << threads;
  }
  EXPECT_EQ(WindowBytes(1000), kLeastWindowBytes);
  EXPECT_EQ(WindowEnd(0, 8192), 8192);
  EXPECT_EQ(WindowEnd(8191, 8192), 8192);
  EXPECT_EQ(WindowEnd(8192, 8192), 16384);
}

TEST(BlocksTest, ABlockLiesInItsPageAsTheRegionDoes) {
  Block block(8192);
  for (const int64_t offset : {0, 4, 4092, 4096, 12'300}) {
    const std::span<std::byte> bytes = block.For(offset, 8192);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % kPageBytes, offset % kPageBytes);
    std::memset(bytes.data(), 1, bytes.size());  // the sanitizer sees an overrun
  }
}

TEST(BlocksTest, OfSeveralFailuresTheFirstIsToldAndNothingNewIsBegun) {
  std::atomic<int> begun = 0;
  const absl::Status status = ForEachWindow(1000, 3, [&](size_t i, Block*) {
    ++begun;
    return i < 10 ? absl::OkStatus() : absl::InternalError(std::to_string(i));
  });
  EXPECT_EQ(status.message(), "10");
  EXPECT_LE(begun, 13);
}

}  // namespace
}  // namespace terrace
