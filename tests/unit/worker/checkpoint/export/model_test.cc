// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/export/export.h"
#include "worker/checkpoint/model_files.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    std::filesystem::create_directories(folder_.path("tokenizer"));
    EXPECT_TRUE(WriteSyncedFile(folder_.path("tokenizer/tokenizer.json"), "{\"t\": 1}").ok());
    EXPECT_TRUE(
        WriteSyncedFile(folder_.path("tokenizer/tokenizer_config.json"), "{\"c\": 1}").ok());
    state_.Add("model.norm.weight", {64});
    state_.spec().mutable_model()->set_config_json(
        R"({"model_type": "llama", "hidden_size": 64, "torch_dtype": "bfloat16"})");
    state_.spec().mutable_data()->set_tokenizer(folder_.path("tokenizer/tokenizer.json"));
    state_.Clear();
    for (float& value : state_.Floats("model.norm.weight")) value = 1.2345678f;
  }
  std::string Write() {
    return WriteCheckpoint(folder_.path("ckpt"), {.step = 3, .spec = &state_.spec()},
                           state_.state(), {})
        .value()
        .path;
  }
  nlohmann::json Read(const std::string& path) {
    return nlohmann::json::parse(ReadTextFile(path, 1 << 20).value());
  }
  nlohmann::json Config(const std::string& folder) { return Read(folder + "/config.json"); }

  TemporaryFolder folder_;
  StateFixture state_;
};

TEST_F(ExportTest, TheCheckpointItselfIsAFolderForTransformers) {
  const std::string path = Write();
  const nlohmann::json config = Config(path);
  EXPECT_EQ(config["architectures"], nlohmann::json({"LlamaForCausalLM"}));
  EXPECT_EQ(config["torch_dtype"], "float32") << "what is stored, whatever the source said";
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_EQ(ReadTextFile(path + "/tokenizer.json", 100).value(), "{\"t\": 1}");
  EXPECT_EQ(Read(path + "/tokenizer_config.json"), nlohmann::json({{"c", 1}}));
  EXPECT_EQ(SafetensorsReader::Open(path).value()->metadata().at("format"), "pt");
}

TEST_F(ExportTest, ConvertsAndCopiesTheTokenizer) {
  const std::string out = folder_.path("out");
  ASSERT_TRUE(ExportCheckpoint(Write(), out, "bf16", {}).ok());
  EXPECT_EQ(Config(out)["torch_dtype"], "bfloat16");
  EXPECT_TRUE(std::filesystem::exists(out + "/tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(out + "/manifest.json"));
  EXPECT_FALSE(std::filesystem::exists(out + "/optimizer.safetensors"));
  const auto reader = SafetensorsReader::Open(out).value();
  EXPECT_THAT(reader->Names(), ::testing::ElementsAre("model.norm.weight"));
  const StoredTensor tensor = reader->Get("model.norm.weight").value();
  EXPECT_EQ(tensor.dtype, kernels::DType::kBF16);
  const std::vector<std::byte> data = tensor.ReadAll().value();
  EXPECT_EQ(reinterpret_cast<const uint16_t*>(data.data())[7], Bf16OfFloat(1.2345678f));
}

TEST_F(ExportTest, RefusesWhatItCannotDoAndLeavesNothing) {
  const std::string path = Write();
  const std::string out = folder_.path("out");
  EXPECT_THAT(std::string(ExportCheckpoint(path, out, "int8", {}).message()),
              HasSubstr("must be f32, bf16 or f16"));
  EXPECT_EQ(ExportCheckpoint(folder_.path("none"), out, "f32", {}).code(),
            absl::StatusCode::kNotFound);
  state_.Floats("model.norm.weight")[5] = 1e6f;
  EXPECT_THAT(std::string(ExportCheckpoint(Write(), out, "f16", {}).message()),
              HasSubstr("beyond 65504"));
  EXPECT_FALSE(std::filesystem::exists(out));
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr(".tmp")));
  }
  ASSERT_TRUE(ExportCheckpoint(Write(), out, "f32", {}).ok());
  EXPECT_EQ(ExportCheckpoint(path, out, "f32", {}).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ExportTest, NamesTheSpecialTokensWhereTransformersLooks) {
  state_.spec().mutable_model()->set_config_json(
      R"({"model_type": "llama", "eos_token_id": 2, "temperature": 0.6})");
  const SpecialTokens special = {
      .begin = SpecialToken{1, "<s>"}, .end = SpecialToken{7, "<end>"}, .stops = {7, 9}};
  const std::string out = folder_.path("out");
  ASSERT_TRUE(ExportCheckpoint(Write(), out, "bf16", special).ok());
  for (const char* file : {"/config.json", "/generation_config.json"}) {
    EXPECT_EQ(Read(out + file)["eos_token_id"], nlohmann::json({7, 9})) << file;
    EXPECT_EQ(Read(out + file)["bos_token_id"], 1) << file;
  }
  EXPECT_EQ(Read(out + "/generation_config.json")["temperature"], 0.6) << "older configs hold it";
  EXPECT_EQ(Read(out + "/tokenizer_config.json"),
            nlohmann::json({{"c", 1}, {"bos_token", "<s>"}, {"eos_token", "<end>"}}));
  EXPECT_EQ(Read(out + "/special_tokens_map.json"),
            nlohmann::json({{"bos_token", "<s>"}, {"eos_token", "<end>"}}));
}

TEST_F(ExportTest, WithoutAnEndTokenNoneIsLeftToADefault) {
  const std::string out = folder_.path("out");
  ASSERT_TRUE(ExportCheckpoint(Write(), out, "f32", {}).ok());
  EXPECT_TRUE(Config(out).contains("eos_token_id") && Config(out)["eos_token_id"].is_null());
}

// Else the class would freeze a row that was trained here.
TEST_F(ExportTest, WhereAClassHasATokenForPaddingNoneIsLeftToIt) {
  const nlohmann::json recorded = Read(TERRACE_TEST_DATA "/config_keys.json");
  int classes = 0;
  for (const auto& [family, keys] : recorded.at("keys").items()) {
    const auto config = CompleteModelConfig(nlohmann::json({{"model_type", family}}).dump(),
                                            kernels::DType::kF32, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const nlohmann::json written = nlohmann::json::parse(*config);
    EXPECT_TRUE(written.contains("architectures")) << family;
    EXPECT_EQ(written.contains("pad_token_id"), !keys.at("pad_token_id").is_null()) << family;
    if (!written.contains("pad_token_id")) continue;
    EXPECT_TRUE(written["pad_token_id"].is_null()) << family;
    ++classes;
  }
  EXPECT_GE(classes, 4);
}

TEST_F(ExportTest, TemplatesAndSettingsOfTheModelTravelAlong) {
  std::filesystem::create_directories(folder_.path("weights"));
  const std::string settings = R"({"temperature": 0.7, "eos_token_id": 3})";
  ASSERT_TRUE(WriteSyncedFile(folder_.path("weights/generation_config.json"), settings).ok());
  ASSERT_TRUE(WriteSyncedFile(folder_.path("weights/tokenizer_config.json"), "{}").ok());
  ASSERT_TRUE(WriteSyncedFile(folder_.path("tokenizer/chat_template.jinja"), "{{ x }}").ok());
  state_.spec().mutable_model()->set_init(folder_.path("weights"));
  const std::string out = folder_.path("out");
  ASSERT_TRUE(ExportCheckpoint(Write(), out, "f32", {.stops = {5}}).ok());
  EXPECT_EQ(ReadTextFile(out + "/chat_template.jinja", 100).value(), "{{ x }}");
  EXPECT_EQ(Read(out + "/generation_config.json"),
            nlohmann::json({{"temperature", 0.7}, {"eos_token_id", 5}}));
  EXPECT_EQ(Read(out + "/tokenizer_config.json"), nlohmann::json({{"c", 1}}));
}

TEST_F(ExportTest, ATokenizerThatIsGoneDoesNotCostTheCheckpoint) {
  std::filesystem::remove_all(folder_.path("tokenizer"));
  EXPECT_TRUE(VerifyCheckpoint(Write()).ok());
}

}  // namespace
}  // namespace terrace
