// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class InputsTest : public testing::Test {
 protected:
  InputsTest() {
    std::string folder = testing::TempDir() + "inputs_XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~InputsTest() override { std::filesystem::remove_all(folder_); }

  absl::Status Read(const std::string& config) {
    spec_.mutable_model()->set_config(config);
    return ReadModelConfig(folder_, &spec_);
  }
  std::string folder_;
  v1::JobSpec spec_;
};

TEST_F(InputsTest, ARelativePathIsRelativeToTheSpec) {
  std::ofstream(folder_ + "/my.json") << "{\"a\": 1}";
  ASSERT_TRUE(Read("my.json").ok());
  EXPECT_EQ(spec_.model().config_json(), "{\"a\": 1}");
}

TEST_F(InputsTest, AFolderMeansTheConfigInIt) {
  std::filesystem::create_directory(folder_ + "/gpt2");
  std::ofstream(folder_ + "/gpt2/config.json") << "{}";
  ASSERT_TRUE(Read(folder_ + "/gpt2").ok());
  EXPECT_EQ(spec_.model().config_json(), "{}");
}

TEST_F(InputsTest, APresetIsFilledAlreadyAndNothingIsRead) {
  spec_.mutable_model()->set_config_json("{}");
  EXPECT_TRUE(Read("gpt2-124m").ok());
}

TEST_F(InputsTest, WhatCannotBeReadNamesTheKeyThePathAndTheWayOut) {
  const absl::Status status = Read("absent.json");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("model.config: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("absent.json"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("preset"));
}

TEST_F(InputsTest, AConfigBeyondTheLimitIsRefused) {
  std::ofstream(folder_ + "/big.json") << std::string(kModelConfigBytesMax + 1, ' ');
  EXPECT_EQ(Read("big.json").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(InputsTest, AFifoInPlaceOfAFileIsRefusedAtOnceAndNamed) {
  const std::string fifo = folder_ + "/fifo.json";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const absl::Status status = Read("fifo.json");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(fifo + ": it is a FIFO"));
}

TEST_F(InputsTest, AnAdaptersFolderSaysRankAlphaAndTargets) {
  const std::string folder = folder_ + "/adapter";
  std::filesystem::create_directory(folder);
  v1::LoraSpec& lora = *spec_.mutable_model()->mutable_lora();
  lora.set_init(folder);
  std::ofstream(folder + "/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "use_rslora": true,
             "target_modules": ["v_proj", "q_proj"]})";
  EXPECT_THAT(std::string(ReadAdapter(&spec_).message()),
              AllOf(StartsWith("model.lora.init: got " + folder),
                    HasSubstr("there is no adapter_model.safetensors")));
  std::ofstream(folder + "/adapter_model.safetensors") << "x";
  ASSERT_TRUE(ReadAdapter(&spec_).ok());
  EXPECT_EQ(lora.rank(), 4);
  EXPECT_EQ(lora.alpha(), 6);
  EXPECT_TRUE(lora.rslora());
  EXPECT_THAT(lora.targets(), testing::ElementsAre("q_proj", "v_proj"));
  JobRoots elsewhere;
  elsewhere.data = {"/data"};
  EXPECT_THAT(std::string(ReadAdapter(&spec_, elsewhere).message()), HasSubstr("--data-root"));
}

TEST_F(InputsTest, AnAdapterThatIsNotTrainedHereIsRefusedWithAllReasons) {
  v1::LoraSpec& lora = *spec_.mutable_model()->mutable_lora();
  lora.set_init("gaussian");
  EXPECT_TRUE(ReadAdapter(&spec_).ok());
  lora.set_init(folder_);
  EXPECT_THAT(std::string(ReadAdapter(&spec_).message()), HasSubstr("adapter_config.json"));
  std::ofstream(folder_ + "/adapter_model.safetensors") << "x";
  std::ofstream(folder_ + "/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 4, "target_modules": ["q"], "use_dora": true, "bias": "all"})";
  const std::string place = "model.lora.init: " + folder_ + "/adapter_config.json: ";
  EXPECT_THAT(std::string(ReadAdapter(&spec_).message()),
              AllOf(HasSubstr(place + "bias: got \"all\""),
                    HasSubstr("\n" + place + "use_dora: got true")));
}

TEST_F(InputsTest, DataAndWeightsAreFilesOrFoldersWhereTheyCanBeSeen) {
  spec_.mutable_data()->add_train(folder_ + "/on-a-worker.txt");
  spec_.mutable_data()->set_tokenizer("bytes");
  spec_.mutable_model()->set_init("random");
  EXPECT_TRUE(CheckInputs(spec_).ok());

  std::filesystem::create_directory(folder_ + "/model");
  const std::string fifo = folder_ + "/model/model.safetensors";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  struct Case {
    std::string_view key;
    std::function<void(v1::JobSpec*)> change;
  };
  const Case cases[] = {
      {"data.train", [&](v1::JobSpec* spec) { spec->mutable_data()->add_train(fifo); }},
      {"data.validation", [&](v1::JobSpec* spec) { spec->mutable_data()->add_validation(fifo); }},
      {"data.tokenizer", [&](v1::JobSpec* spec) { spec->mutable_data()->set_tokenizer(fifo); }},
      {"model.init",
       [&](v1::JobSpec* spec) { spec->mutable_model()->set_init(folder_ + "/model"); }}};
  for (const Case& one : cases) {
    v1::JobSpec spec = spec_;
    one.change(&spec);
    const absl::Status status = CheckInputs(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.key;
    EXPECT_THAT(std::string(status.message()), StartsWith(std::string(one.key) + ": got"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(fifo + ": it is a FIFO"));
  }
}

}  // namespace
}  // namespace terrace
