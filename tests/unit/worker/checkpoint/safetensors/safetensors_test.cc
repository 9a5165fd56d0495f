// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/safetensors/safetensors.h"

#include <cstring>
#include <fstream>
#include <random>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/safetensors/safetensors_header.h"

namespace terrace {
namespace {

using kernels::DType;
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string File(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(data_bytes, 'd');
}

absl::Status Parse(const std::string& file) {
  return ParseSafetensorsHeader(Bytes(file), file.size(), "weights.safetensors").status();
}

TEST(SafetensorsTest, WhatIsWrittenIsReadBack) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.safetensors");
  const std::vector<TensorToWrite> tensors = {{"b", DType::kF32, {2, 3}},
                                              {"a", DType::kBF16, {5}},
                                              {"empty", DType::kF32, {0, 4}},
                                              {"scalar", DType::kI64, {}}};
  auto writer = SafetensorsWriter::Create(path, tensors, {{"format", "pt"}}).value();
  std::vector<std::byte> data(24 + 10 + 8);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
  ASSERT_TRUE(writer.Append(std::span<const std::byte>(data).first(7)).ok());
  EXPECT_FALSE(writer.Finish().ok()) << "bytes are missing";
  ASSERT_TRUE(writer.Append(std::span<const std::byte>(data).subspan(7)).ok());
  EXPECT_FALSE(writer.Append(data).ok()) << "more than announced";
  ASSERT_TRUE(writer.Finish().ok());
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), writer.file_bytes());

  const auto reader = SafetensorsReader::Open(path).value();
  EXPECT_THAT(reader->Names(), ::testing::ElementsAre("a", "b", "empty", "scalar"));
  EXPECT_EQ(reader->metadata().at("format"), "pt");
  const StoredTensor a = reader->Get("a").value();
  EXPECT_EQ(a.dtype, DType::kBF16);
  EXPECT_THAT(a.shape, ::testing::ElementsAre(5));
  EXPECT_THAT(a.ReadAll().value(),
              ::testing::ElementsAreArray(data.begin() + 24, data.begin() + 34));
  EXPECT_EQ(reader->Get("scalar").value().bytes, 8);
  std::vector<std::byte> part(4);
  ASSERT_TRUE(reader->Get("b").value().Read(9, part).ok());
  EXPECT_THAT(part, ::testing::ElementsAreArray(data.begin() + 9, data.begin() + 13));
}

TEST(SafetensorsTest, AFileThatIsCutOffAfterItWasOpenedIsDataLoss) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.safetensors");
  auto writer = SafetensorsWriter::Create(path, {{"a", DType::kU8, {5000}}}, {}).value();
  ASSERT_TRUE(writer.Append(std::vector<std::byte>(5000)).ok() && writer.Finish().ok());
  const auto reader = SafetensorsReader::Open(path).value();
  std::filesystem::resize_file(path, 4000);
  const absl::Status status = reader->Get("a").value().ReadAll().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a.safetensors ends at byte 4000"));
}

TEST(SafetensorsTest, AMissingNameIsAnsweredWithTheNearest) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.safetensors");
  const std::vector<TensorToWrite> tensors = {{"model.norm.weight", DType::kU8, {1}},
                                              {"lm_head.weight", DType::kU8, {1}}};
  auto writer = SafetensorsWriter::Create(path, tensors, {}).value();
  ASSERT_TRUE(writer.Append(Bytes("ab")).ok() && writer.Finish().ok());
  const absl::Status status =
      SafetensorsReader::Open(path).value()->Get("model.norms.weight").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the nearest of 2 names: model.norm.weight"));
}

TEST(SafetensorsTest, ATypeThatWeLackIsAnErrorOnlyWhereItIsAskedFor) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.safetensors");
  ASSERT_TRUE(
      WriteSyncedFile(path, File(R"({"mask":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]},)"
                                 R"("new":{"dtype":"F4","shape":[4],"data_offsets":[4,6]},)"
                                 R"("w":{"dtype":"F16","shape":[1],"data_offsets":[6,8]}})",
                                 8))
          .ok());
  const auto reader = SafetensorsReader::Open(path).value();
  EXPECT_TRUE(reader->Get("w").ok());
  EXPECT_THAT(std::string(reader->Get("mask").status().message()), HasSubstr("is stored as BOOL"));
}

TEST(SafetensorsTest, ShardsAreOneFile) {
  TemporaryFolder folder;
  for (const std::string name : {"one", "two"}) {
    auto writer =
        SafetensorsWriter::Create(folder.path(name + ".safetensors"), {{name, DType::kU8, {1}}}, {})
            .value();
    ASSERT_TRUE(writer.Append(Bytes(name).first(1)).ok() && writer.Finish().ok());
  }
  const std::string index = folder.path("model.safetensors.index.json");
  ASSERT_TRUE(WriteSyncedFile(
                  index, R"({"weight_map": {"one": "one.safetensors", "two": "two.safetensors"}})")
                  .ok());
  EXPECT_THAT(SafetensorsReader::Open(folder.path()).value()->Names(),
              ::testing::ElementsAre("one", "two"));

  ASSERT_TRUE(WriteSyncedFile(index, R"({"weight_map": {"one": "../one.safetensors"}})").ok());
  EXPECT_EQ(SafetensorsReader::Open(index).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(WriteSyncedFile(index, R"({"weight_map": {"one": "three.safetensors"}})").ok());
  EXPECT_EQ(SafetensorsReader::Open(index).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteSyncedFile(index, "{}").ok());
  EXPECT_EQ(SafetensorsReader::Open(index).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsReader::Open(folder.path("none")).status().code(),
            absl::StatusCode::kNotFound);
}

struct HostileCase {
  const char* name;
  const char* header;
  size_t data_bytes;
  absl::StatusCode code;
  const char* message;
};

class HostileHeaderTest : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileHeaderTest, IsAnErrorThatNamesTheFile) {
  const absl::Status status = Parse(File(GetParam().header, GetParam().data_bytes));
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("weights.safetensors"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
INSTANTIATE_TEST_SUITE_P(
    Cases, HostileHeaderTest,
    ::testing::Values(
        HostileCase{"Truncated", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7,
                    absl::StatusCode::kDataLoss, "was it cut off?"},
        HostileCase{"Trailing", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9,
                    kInvalid, "1 bytes behind"},
        HostileCase{"Overlap",
                    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                    6, kInvalid, "overlaps"},
        HostileCase{"Hole", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6, kInvalid,
                    "a hole"},
        HostileCase{"SizeDiffers", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
                    kInvalid, "take 12 bytes"},
        HostileCase{"DuplicateTensor",
                    R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                    R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                    1, kInvalid, "appears twice"},
        HostileCase{"DuplicateKey",
                    R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1,
                    kInvalid, "appears twice"},
        HostileCase{"NegativeShape", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
                    kInvalid, "has -1"},
        HostileCase{"FractionalShape", R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})",
                    1, kInvalid, "has 1.0"},
        HostileCase{
            "HugeShape",
            R"({"a":{"dtype":"F64","shape":[4294967296,4294967296,16],"data_offsets":[0,0]}})", 0,
            kInvalid, "too large"},
        HostileCase{"HugeNumber",
                    R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})",
                    1, kInvalid, "whole number"},
        HostileCase{"Backwards", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1,
                    kInvalid, "data_offsets"},
        HostileCase{"OneOffset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1]}})", 1,
                    kInvalid, "data_offsets"},
        HostileCase{"NoShape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, kInvalid,
                    "\"shape\" must be"},
        HostileCase{"NoDtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, kInvalid,
                    "\"dtype\" must be"},
        HostileCase{"NestedShape", R"({"a":{"dtype":"U8","shape":[[[1]]],"data_offsets":[0,1]}})",
                    1, kInvalid, "has array"},
        HostileCase{"TensorIsText", R"({"a":"b"})", 0, kInvalid, "not a JSON object"},
        HostileCase{"MetadataIsText", R"({"__metadata__":"b"})", 0, kInvalid, "__metadata__"},
        HostileCase{"NotAnObject", "[]", 0, kInvalid, "not a JSON object"},
        HostileCase{"NotJson", "{\"a\":", 0, kInvalid, "not valid JSON"}),
    [](const auto& info) { return info.param.name; });

TEST(SafetensorsTest, AHeaderLengthThatLiesIsAnError) {
  EXPECT_EQ(Parse("").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Parse("1234567").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Parse(std::string("\xff\xff\0\0\0\0\0\0{}", 10)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Parse(std::string(64, '\xff')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Parse(File(std::string(1 << 20, '['), 0)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, RandomDamageNeverCrashes) {
  const std::string good = File(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[5],"data_offsets":[24,34]}})",
      34);
  ASSERT_TRUE(Parse(good).ok());
  constexpr char kInteresting[] = "{}[]\",:0123456789-eE.\\ \xff\x80\0";
  std::mt19937 random(20240520);
  for (int round = 0; round < 20000; ++round) {
    std::string bad = good;
    for (int edits = random() % 4 + 1; edits > 0; --edits) {
      const size_t at = random() % bad.size();
      switch (random() % 4) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad[at] = kInteresting[random() % sizeof(kInteresting)];
          break;
        case 2:
          bad.erase(at, random() % 8);
          break;
        default:
          bad.insert(at, bad.substr(random() % bad.size(), random() % 16));
      }
      if (bad.empty()) bad = "x";
    }
    const auto header = ParseSafetensorsHeader(Bytes(bad), bad.size(), "weights.safetensors");
    if (!header.ok()) continue;
    for (const SafetensorsEntry& entry :
         header->entries) {  // what is accepted lies inside the file
      ASSERT_LE(header->data_offset + entry.end, static_cast<int64_t>(bad.size()))
          << "round " << round;
      ASSERT_LE(entry.begin, entry.end);
    }
  }
}

}  // namespace
}  // namespace terrace
