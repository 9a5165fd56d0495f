// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    state_.Add("model.embed.weight", {11, 8}, 3);
    state_.Add("model.norm.weight", {8});
    state_.Fill(1);
  }

  absl::StatusOr<CheckpointInfo> Write(int64_t step, uint32_t keep = 0) {
    return WriteCheckpoint(folder_.path(),
                           {.step = step, .tokens = step * 100, .spec = &state_.spec()},
                           state_.state(), {.keep = keep, .unix_ms = 1234 + step});
  }
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const std::vector<CheckpointInfo> list = ListCheckpoints(folder_.path()).value();
    for (const CheckpointInfo& info : list) steps.push_back(info.step);
    return steps;
  }

  TemporaryFolder folder_;
  StateFixture state_;
};

TEST_F(CheckpointTest, WhatIsWrittenIsReadBackToTheByte) {
  const CheckpointInfo info = Write(20).value();
  EXPECT_EQ(info.path, folder_.path("step-00000020"));
  EXPECT_TRUE(info.complete) << info.problem;
  EXPECT_EQ(info.job, "fixture");
  const std::vector<std::byte> written = state_.memory();
  state_.Fill(200);
  const CheckpointHeader header = ReadCheckpoint(info.path, state_.state(), nullptr).value();
  EXPECT_EQ(header.step, 20);
  EXPECT_EQ(header.tokens, 2000);
  for (const v1::Buffer& buffer : state_.program().buffers()) {
    EXPECT_TRUE(std::equal(written.begin() + buffer.offset(),
                           written.begin() + buffer.offset() + buffer.bytes(),
                           state_.memory().begin() + buffer.offset()))
        << "buffer " << buffer.id();
  }
}

TEST_F(CheckpointTest, KeepsTheNewestAndRemovesLeftovers) {
  std::filesystem::create_directories(folder_.path(".tmp-step-00000001/x"));
  for (const int64_t step : {1, 2, 3, 4}) ASSERT_TRUE(Write(step, 2).ok());
  EXPECT_THAT(Steps(), ::testing::ElementsAre(3, 4));
  EXPECT_FALSE(std::filesystem::exists(folder_.path(".tmp-step-00000001")));
  EXPECT_EQ(NewestCheckpoint(folder_.path()).value().step, 4);
}

TEST_F(CheckpointTest, ASecondOneOfTheSameStepReplacesTheFirst) {
  ASSERT_TRUE(Write(5).ok());
  state_.Fill(9);
  const std::vector<std::byte> second = state_.memory();
  const CheckpointInfo info = Write(5).value();
  EXPECT_TRUE(VerifyCheckpoint(info.path).ok());
  state_.Clear();
  ASSERT_TRUE(ReadCheckpoint(info.path, state_.state(), nullptr).ok());
  EXPECT_EQ(state_.memory()[0], second[0]);
  EXPECT_THAT(Steps(), ::testing::ElementsAre(5));
}

TEST_F(CheckpointTest, TheNewestIsTheNewestWholeOne) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_TRUE(Write(2).ok());
  std::filesystem::resize_file(folder_.path("step-00000002/model.safetensors"), 100);
  const CheckpointInfo newest = NewestCheckpoint(folder_.path()).value();
  EXPECT_EQ(newest.step, 1);
  const CheckpointInfo damaged = ListCheckpoints(folder_.path()).value()[1];
  EXPECT_FALSE(damaged.complete);
  EXPECT_THAT(damaged.problem, HasSubstr("has 100 bytes"));
}

TEST_F(CheckpointTest, WhatIsNoFileIsNamedWithWhatItIs) {
  const std::string file = Write(1).value().path + "/model.safetensors";
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  const CheckpointInfo damaged = ListCheckpoints(folder_.path()).value()[0];
  EXPECT_FALSE(damaged.complete);
  EXPECT_THAT(damaged.problem, HasSubstr(file + ": it is a FIFO"));
}

TEST_F(CheckpointTest, PruningCountsOnlyWholeOnes) {
  ASSERT_TRUE(Write(1).ok());
  ASSERT_TRUE(Write(2).ok());
  std::filesystem::remove(folder_.path("step-00000002/manifest.json"));
  ASSERT_TRUE(Write(3, 2).ok());
  EXPECT_THAT(Steps(), ::testing::ElementsAre(1, 2, 3));
}

void FlipABit(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const char byte = static_cast<char>(file.peek() ^ 4);
  file.seekp(-5, std::ios::end);
  file.put(byte);
}

TEST_F(CheckpointTest, OneChangedByteIsFound) {
  const std::string path = Write(1).value().path;
  ASSERT_TRUE(VerifyCheckpoint(path).ok());
  FlipABit(path + "/optimizer.safetensors");
  const absl::Status status = VerifyCheckpoint(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("optimizer.safetensors is damaged"));
}

TEST_F(CheckpointTest, AFlippedBitLetsTheOlderOneGoOn) {
  for (const int64_t step : {1, 2, 3}) ASSERT_TRUE(Write(step).ok());
  FlipABit(folder_.path("step-00000003/model.safetensors"));
  std::filesystem::resize_file(folder_.path("step-00000002/model.safetensors"), 100);
  const WholeCheckpoint found = NewestWholeCheckpoint(folder_.path()).value();
  EXPECT_EQ(found.info.step, 1);
  ASSERT_EQ(found.passed_over.size(), 2u);
  EXPECT_EQ(found.passed_over[0].step, 3);
  EXPECT_THAT(found.passed_over[0].problem, HasSubstr("model.safetensors is damaged"));
  EXPECT_THAT(found.passed_over[1].problem, HasSubstr("has 100 bytes"));
}

TEST_F(CheckpointTest, WhereAllAreDamagedNothingIsBegunAnew) {
  ASSERT_TRUE(Write(1).ok());
  FlipABit(folder_.path("step-00000001/optimizer.safetensors"));
  const absl::Status status = NewestWholeCheckpoint(folder_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("optimizer.safetensors is damaged"));
}

TEST_F(CheckpointTest, AManifestOfAnotherStepIsDamaged) {
  ASSERT_TRUE(Write(1).ok());
  std::filesystem::rename(folder_.path("step-00000001"), folder_.path("step-00000005"));
  EXPECT_THAT(ListCheckpoints(folder_.path()).value()[0].problem, HasSubstr("of step 1"));
}

TEST_F(CheckpointTest, WhatIsNotFiniteIsNoCheckpoint) {
  ASSERT_TRUE(Write(1).ok());
  for (const float wrong : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    state_.Floats("model.embed.weight", v1::FIRST_MOMENT)[3] = wrong;
    const absl::Status status = Write(2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.embed.weight.adam_m"));
  }
  EXPECT_THAT(Steps(), ::testing::ElementsAre(1));
}

// As releases before the sum of parts wrote it.
void WriteFirstVersion(const std::string& folder) {
  Manifest manifest = ReadManifest(folder).value();
  for (ManifestFile& file : manifest.files) {
    file = DescribeFile(folder, file.name, Checksum::kXxh3).value();
  }
  ASSERT_TRUE(WriteManifest(folder, manifest).ok());
  std::string text = ReadTextFile(folder + "/manifest.json", 1 << 20).value();
  const std::string version = "\"version\": 2";
  ASSERT_NE(text.find(version), std::string::npos);
  text.replace(text.find(version), version.size(), "\"version\": 1");
  ASSERT_EQ(text.find("sum64"), std::string::npos);
  // It had no sum of its own.
  const size_t seal = text.find(",\n  \"manifest_sha256\"");
  ASSERT_NE(seal, std::string::npos);
  text.replace(seal, std::string::npos, "\n}\n");
  ASSERT_TRUE(WriteSyncedFile(folder + "/manifest.json", text).ok());
}

TEST_F(CheckpointTest, ManifestsOfTheFirstVersionAreReadAndVerified) {
  const std::string path = Write(1).value().path;
  const std::vector<std::byte> written = state_.memory();
  WriteFirstVersion(path);
  EXPECT_TRUE(ListCheckpoints(folder_.path()).value()[0].complete);
  state_.Clear();
  ASSERT_TRUE(ReadCheckpoint(path, state_.state(), nullptr).ok());
  EXPECT_EQ(state_.memory()[0], written[0]);
  std::fstream file(path + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x77');
  file.close();
  const absl::Status status = VerifyCheckpoint(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its checksum is xxh3 "));
}

TEST_F(CheckpointTest, ManifestsOfALaterVersionAreRefused) {
  const std::string path = Write(1).value().path;
  std::string text = ReadTextFile(path + "/manifest.json", 1 << 20).value();
  text.replace(text.find("\"version\": 2"), 12, "\"version\": 3");
  ASSERT_TRUE(WriteSyncedFile(path + "/manifest.json", text).ok());
  EXPECT_THAT(std::string(VerifyCheckpoint(path).message()), HasSubstr("of version 1 to 2"));
}

TEST_F(CheckpointTest, AnotherModelIsRefusedWithBothSides) {
  const std::string path = Write(1).value().path;
  StateFixture wider;
  wider.Add("model.embed.weight", {11, 16});
  wider.Clear();
  const absl::Status shape = ReadCheckpoint(path, wider.state(), nullptr).status();
  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shape.message()),
              HasSubstr("has the shape [11, 8], the model's is [11, 16]"));
  StateFixture other;
  other.Add("model.embed.weigth", {11, 8});
  other.Clear();
  const absl::Status name = ReadCheckpoint(path, other.state(), nullptr).status();
  EXPECT_EQ(name.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(name.message()), HasSubstr("the nearest of 2 names: model.embed.weight"));
}

TEST_F(CheckpointTest, ADirectoryThatIsNotThereIsNotFound) {
  EXPECT_EQ(ListCheckpoints(folder_.path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(NewestCheckpoint(folder_.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(VerifyCheckpoint(folder_.path("none")).code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, ADigitOfTheManifestThatHasChangedIsFound) {
  const std::string path = Write(1).value().path;
  const std::string whole = ReadTextFile(path + "/manifest.json", 1 << 20).value();
  int digits = 0;
  const size_t seal = whole.find("manifest_sha256"), sum = whole.find(": ", seal);
  for (size_t at = whole.find("\"tokens\""); at < whole.size(); ++at) {
    // Without its key there is no sum, but then all else is as it was.
    if (whole[at] < '0' || whole[at] > '9' || (at > seal && at < sum)) continue;
    std::string text = whole;
    text[at] ^= 1;
    ASSERT_TRUE(WriteSyncedFile(path + "/manifest.json", text).ok());
    EXPECT_EQ(ReadManifest(path).status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_FALSE(ListCheckpoints(folder_.path()).value()[0].complete);
    ++digits;
  }
  EXPECT_GT(digits, 60);
  ASSERT_TRUE(WriteSyncedFile(path + "/manifest.json", whole).ok());
  EXPECT_TRUE(VerifyCheckpoint(path).ok());
}

TEST_F(CheckpointTest, ADamagedManifestIsDataLoss) {
  const std::string path = Write(1).value().path;
  for (const char* text :
       {"", "{", "[]", "{\"format\": 1}", "{\"format\": \"terrace-checkpoint\", \"version\": 1}"}) {
    ASSERT_TRUE(WriteSyncedFile(path + "/manifest.json", text).ok());
    EXPECT_FALSE(VerifyCheckpoint(path).ok()) << text;
    EXPECT_FALSE(ListCheckpoints(folder_.path()).value()[0].complete) << text;
  }
  ASSERT_TRUE(WriteSyncedFile(path + "/manifest.json", std::string(1 << 20, '[')).ok());
  EXPECT_FALSE(VerifyCheckpoint(path).ok());
}

}  // namespace
}  // namespace terrace
