// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/data_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "proto/tokens/token_file.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kWide = 70'000;  // a vocabulary whose files are uint32

class DataFilesTest : public testing::Test {
 protected:
  DataFilesTest() {
    std::string folder = testing::TempDir() + "data_files_XXXXXX";
    folder_ = mkdtemp(folder.data());
    spec_.mutable_data()->set_sequence_length(32);
    spec_.mutable_data()->set_tokenizer("bytes");
    spec_.mutable_data()->set_validation_fraction(0);
    SetVocabulary(512);
  }
  ~DataFilesTest() override { std::filesystem::remove_all(folder_); }

  void SetVocabulary(int64_t vocabulary) {
    spec_.mutable_model()->set_config_json(
        R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, )"
        R"("vocab_size": )" +
        std::to_string(vocabulary) + "}");
  }

  // Puts the file there and has it be all of data.train.
  void Train(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name) << bytes;
    spec_.mutable_data()->clear_train();
    spec_.mutable_data()->add_train(folder_ + "/" + name);
  }

  std::string Refusal() { return std::string(CheckDataLengths(spec_).message()); }

  std::string folder_;
  v1::JobSpec spec_;
};

template <typename T>
std::string Numbers(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

std::string LlmcHeaderOf(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> header(kLlmcHeaderBytes / sizeof(int32_t));
  header[0] = magic, header[1] = version, header[2] = count;
  return Numbers(header);
}

std::string Index(uint8_t code, int64_t sequences, int64_t documents) {
  return std::string("MMIDIDX\0\0", 9) + Numbers<int64_t>({1}) + static_cast<char>(code) +
         Numbers<int64_t>({sequences, documents});
}

TEST_F(DataFilesTest, WhatIsRightIsTaken) {
  Train("narrow.bin", Numbers(std::vector<uint16_t>(64, 7)));
  EXPECT_EQ(Refusal(), "");
  Train("llmc.bin", LlmcHeaderOf(20240520, 1, 64) + Numbers(std::vector<uint16_t>(64, 7)));
  EXPECT_EQ(Refusal(), "");
  Train("text.txt", std::string(33, 'a'));
  EXPECT_EQ(Refusal(), "");
  SetVocabulary(kWide);
  Train("wide.bin", Numbers(std::vector<uint32_t>(64, 69'999)));
  EXPECT_EQ(Refusal(), "");
}

TEST_F(DataFilesTest, AFileOfUint16ForALargerVocabularyNamesTheType) {
  SetVocabulary(kWide);
  Train("narrow.bin", Numbers(std::vector<uint16_t>(64, 50'000)));
  EXPECT_THAT(Refusal(), AllOf(StartsWith("data.train: "), HasSubstr("narrow.bin has token id"),
                               HasSubstr("position 0"), HasSubstr("70000"),
                               HasSubstr("is read as uint32"), HasSubstr("write it as uint32")));
  Train("odd.bin", Numbers(std::vector<uint16_t>(65, 0)));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("130 bytes"), HasSubstr("multiple of 4")));
  SetVocabulary(512);
  Train("wide.bin", Numbers(std::vector<uint32_t>(64, 7)));
  EXPECT_THAT(Refusal(), HasSubstr("read as uint16"));
}

TEST_F(DataFilesTest, IdsBeyondTheVocabularyAreToldWhereTheFileBegins) {
  std::vector<uint16_t> ids(64, 511);
  ids[40] = 512;
  Train("ids.bin", Numbers(ids));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("token id 512 at position 40"), HasSubstr("is 512")));
  Train("llmc.bin", LlmcHeaderOf(20240520, 1, 64) + Numbers(ids));
  EXPECT_THAT(Refusal(), HasSubstr("token id 512 at position 40"));
}

TEST_F(DataFilesTest, HeadersThatContradictTheFileAreRefused) {
  const std::string ids = Numbers(std::vector<uint16_t>(64, 7));
  Train("cut.bin", LlmcHeaderOf(20240520, 1, 65) + ids);
  EXPECT_THAT(Refusal(), HasSubstr("announces 65 tokens"));
  Train("version.bin", LlmcHeaderOf(20240520, 2, 64) + ids);
  EXPECT_THAT(Refusal(), HasSubstr("version 2, must be 1"));
  std::ofstream(folder_ + "/m.idx") << Index(7, 0, 0);
  Train("m.bin", ids);
  EXPECT_THAT(Refusal(), HasSubstr("token type code 7"));
  std::ofstream(folder_ + "/m.idx") << Index(8, 1'000, 0);
  EXPECT_THAT(Refusal(), HasSubstr("announces 1000 sequences"));
  std::ofstream(folder_ + "/m.idx") << "no index";
  EXPECT_THAT(Refusal(), HasSubstr("does not start like a Megatron index"));
}

TEST_F(DataFilesTest, FewerTokensThanASequenceAreRefused) {
  Train("short.bin", Numbers(std::vector<uint16_t>(32, 7)));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("data.train has 32 tokens"), HasSubstr("at least 33")));
  Train("short.txt", "too short");
  EXPECT_THAT(Refusal(), HasSubstr("data.train has 9 tokens"));
  spec_.mutable_data()->set_tokenizer(folder_ + "/tokenizer.json");
  EXPECT_EQ(Refusal(), "") << "only its tokenizer knows";
  Train("empty.jsonl", "");
  EXPECT_THAT(Refusal(), HasSubstr("data.train has 0 tokens"));
}

TEST_F(DataFilesTest, ASampleIsEnoughForAPlan) {
  Train("short.txt", "too short");
  EXPECT_TRUE(CheckDataFiles(spec_).ok());
  EXPECT_FALSE(CheckDataLengths(spec_).ok());
}

TEST_F(DataFilesTest, WhatIsHeldOutCounts) {
  Train("tokens.bin", Numbers(std::vector<uint16_t>(64, 7)));
  spec_.mutable_data()->set_validation_fraction(0.5);
  EXPECT_THAT(Refusal(), HasSubstr("data.train has 32 tokens"));
  spec_.mutable_data()->set_validation_fraction(0.25);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("the last 25 % of data.train"), HasSubstr("16 tokens")));
  spec_.mutable_data()->set_samples("documents");
  EXPECT_EQ(Refusal(), "") << "the ranks count documents";
  spec_.mutable_data()->set_samples("stream");
  spec_.mutable_data()->add_validation(folder_ + "/held.txt");
  EXPECT_EQ(Refusal(), "") << "perhaps a worker sees it";
  std::ofstream(folder_ + "/held.txt") << "short";
  EXPECT_THAT(Refusal(), HasSubstr("data.validation has 5 tokens"));
}

TEST_F(DataFilesTest, CompressedTextsBeginAsTheirNamesSay) {
  Train("a.txt.gz", "short, and no gzip");
  EXPECT_THAT(Refusal(), AllOf(StartsWith("data.train: "), HasSubstr("does not begin as gzip")));
  Train("a.txt.gz", "\x1f\x8b");
  EXPECT_EQ(Refusal(), "") << "how much text is in it is for the ranks to see";
  Train("a.bin.zst", "");
  EXPECT_THAT(Refusal(), HasSubstr("decompress it"));
}

TEST_F(DataFilesTest, EachSourceOfAMixtureHasItsTokens) {
  Train("long.txt", std::string(40, 'a'));
  std::ofstream(folder_ + "/short.txt") << std::string(20, 'b');
  spec_.mutable_data()->add_train(folder_ + "/short.txt");
  EXPECT_EQ(Refusal(), "") << "together they have enough";
  for (int i = 0; i < 2; ++i) {
    spec_.mutable_data()->add_mixture()->set_files(1);
    spec_.mutable_data()->mutable_mixture(i)->set_weight(1);
  }
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("data.train: "), HasSubstr("short.txt has 20 tokens")));
}

TEST_F(DataFilesTest, OtherKindsOfFilesAreRefusedAndAbsentOnesLeftToTheRanks) {
  spec_.mutable_data()->add_train("/nowhere/corpus.pdf");
  EXPECT_THAT(Refusal(),
              AllOf(StartsWith("data.train: "), HasSubstr("\".pdf\""),
                    HasSubstr(".txt or .jsonl, compressed perhaps (.gz, .zst), .bin or .idx")));
  spec_.mutable_data()->set_train(0, "/nowhere/corpus.bin");
  EXPECT_EQ(Refusal(), "");
  std::filesystem::create_directory(folder_ + "/folder.bin");
  spec_.mutable_data()->set_train(0, folder_ + "/folder.bin");
  EXPECT_THAT(Refusal(), HasSubstr("folder.bin: Is a directory"));
}

}  // namespace
}  // namespace terrace
