// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/worker/data/token_dataset_fixture.h"
#include "worker/data/token_dataset.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

TEST_F(TokenDatasetTest, RawTokensAreUint16OrUint32ByVocabulary) {
  std::vector<uint16_t> narrow;
  std::vector<uint32_t> wide;
  for (int i = 0; i < 17; ++i) narrow.push_back(i * 3), wide.push_back(i * 70'000 % 100'000);
  spec_.add_train(Put("t.txt", Letters(20)));
  spec_.add_validation(PutTokens("a.bin", narrow));
  EXPECT_EQ(ValidationTokens(*Open(256).value()),
            std::vector<int32_t>(narrow.begin(), narrow.begin() + 16));
  spec_.set_validation(0, PutTokens("b.bin", wide));
  EXPECT_EQ(ValidationTokens(*Open(100'000).value()),
            std::vector<int32_t>(wide.begin(), wide.begin() + 16));
  spec_.set_validation(0, Put("c.bin", "123"));
  EXPECT_THAT(OpenError(), HasSubstr("3 bytes, not a multiple of 2"));
}

TEST_F(TokenDatasetTest, ARawFileOfTheOtherTypeIsTold) {
  spec_.add_train(Put("t.txt", Letters(20)));
  spec_.add_validation(PutTokens("a.bin", std::vector<uint16_t>(64, 50'000)));
  EXPECT_THAT(OpenError(100'000), HasSubstr("read as uint32, as vocabularies above 65536 ask for"));
  spec_.set_validation(0, PutTokens("b.bin", std::vector<uint32_t>(64, 200)));
  EXPECT_THAT(OpenError(), HasSubstr("every second id of it is 0, as in a file of uint32"));
}

std::string LlmcHeaderText(int32_t magic, int32_t version, int32_t count) {
  int32_t header[256] = {magic, version, count};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header));
}

TEST_F(TokenDatasetTest, AFolderForTheCacheThatCannotBeMadeIsNamedByItsKey) {
  spec_.add_train(Put("t.txt", Letters(20)));
  spec_.set_cache(Put("occupied", "") + "/cache");
  EXPECT_THAT(OpenError(), HasSubstr("name another folder with data.cache"));
}

TEST_F(TokenDatasetTest, ACacheIsAsOpenAsItsText) {
  const std::string text = Put("secret.txt", Letters(200));
  spec_.add_train(text);
  const auto mode_of_cache = [this] {
    unsigned mode = 0;
    for (const auto& entry : std::filesystem::directory_iterator(spec_.cache())) {
      if (entry.path().extension() == ".tokens")
        mode = static_cast<unsigned>(entry.status().permissions());
    }
    return mode;
  };
  ASSERT_EQ(::chmod(text.c_str(), 0640), 0);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(mode_of_cache(), 0640u);
  ASSERT_EQ(::chmod(text.c_str(), 0600), 0);
  ASSERT_TRUE(Open().ok()) << "it is as it was, and so is its cache";
  EXPECT_EQ(mode_of_cache(), 0600u);
}

TEST_F(TokenDatasetTest, LlmcHeadersTellTheWidth) {
  std::vector<uint16_t> narrow(17, 5);
  std::vector<uint32_t> wide(17, 200);
  spec_.add_train(Put("t.txt", Letters(20)));
  spec_.add_validation(PutTokens("a.bin", narrow, LlmcHeaderText(20240520, 1, 17)));
  EXPECT_EQ(Open().value()->tokens(Split::kValidation), 17);
  spec_.set_validation(0, PutTokens("b.bin", wide, LlmcHeaderText(20240801, 7, 17)));
  EXPECT_EQ(ValidationTokens(*Open().value()), std::vector<int32_t>(16, 200));
  spec_.set_validation(0, PutTokens("c.bin", narrow, LlmcHeaderText(20240520, 1, 18)));
  EXPECT_THAT(OpenError(), HasSubstr("announces 18 tokens"));
  spec_.set_validation(0, PutTokens("d.bin", narrow, LlmcHeaderText(20240520, 2, 17)));
  EXPECT_THAT(OpenError(), HasSubstr("version 2, must be 1"));
  spec_.set_validation(0, PutTokens("e.bin", narrow, LlmcHeaderText(20240801, 7, -1)));
  EXPECT_THAT(OpenError(), HasSubstr("announces -1 tokens"));
}

template <typename T>
void Append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string MegatronIndex(uint8_t code, int token_bytes, const std::vector<int32_t>& lengths) {
  std::string index("MMIDIDX\0\0", 9);
  Append(&index, uint64_t{1});
  Append(&index, code);
  Append(&index, uint64_t{lengths.size()});
  Append(&index, uint64_t{lengths.size() + 1});
  for (const int32_t length : lengths) Append(&index, length);
  int64_t position = 0;
  for (const int32_t length : lengths) {
    Append(&index, position);
    position += length * token_bytes;
  }
  for (size_t i = 0; i <= lengths.size(); ++i) Append(&index, int64_t(i));
  return index;
}

TEST_F(TokenDatasetTest, MegatronDataSetsAreReadInPlace) {
  spec_.add_train(Put("t.txt", Letters(20)));
  spec_.add_validation(PutTokens("m.bin", std::vector<int32_t>(20, 7)));
  Put("m.idx", MegatronIndex(4, 4, {12, 8}));
  EXPECT_EQ(Open().value()->tokens(Split::kValidation), 20);
  spec_.set_validation(0, folder_ + "/m.idx");
  EXPECT_EQ(Open().value()->tokens(Split::kValidation), 20);
  PutTokens("m.bin", std::vector<uint16_t>(20, 7));
  Put("m.idx", MegatronIndex(8, 2, {12, 8}));
  EXPECT_EQ(ValidationTokens(*Open().value()), std::vector<int32_t>(16, 7));
}

TEST_F(TokenDatasetTest, DamagedMegatronIndexesAreErrors) {
  spec_.add_train(PutTokens("m.bin", std::vector<uint16_t>(20, 7)));
  const std::string good = MegatronIndex(8, 2, {12, 8});
  const auto error = [&](const std::string& index) {
    Put("m.idx", index);
    return OpenError();
  };
  EXPECT_EQ(error(good), "");
  EXPECT_THAT(error("x" + good), HasSubstr("MMIDIDX"));
  EXPECT_THAT(error(good.substr(0, 40)), HasSubstr("announces 2 sequences"));
  EXPECT_THAT(error(MegatronIndex(7, 4, {12, 8})), HasSubstr("token type code 7"));
  EXPECT_THAT(error(MegatronIndex(8, 2, {12, 9})), HasSubstr("describes 42 bytes"));
  EXPECT_THAT(error(MegatronIndex(8, 2, {-12, 8})), HasSubstr("sequence 0"));
  EXPECT_THAT(error(MegatronIndex(8, 4, {12, 8})), HasSubstr("sequence 1 does not follow"));
  std::string huge = good;
  const uint64_t count = uint64_t{1} << 62;
  huge.replace(18, 8, reinterpret_cast<const char*>(&count), 8);
  EXPECT_THAT(error(huge), HasSubstr("announces 4611686018427387904 sequences"));
}

}  // namespace
}  // namespace terrace
