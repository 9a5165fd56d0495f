// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/continues.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/report/manifest_text.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ContinuesTest : public testing::Test {
 protected:
  ContinuesTest() {
    folder_ = (std::filesystem::temp_directory_path() / "terrace-continues-XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    spec_.mutable_checkpoint()->set_directory(folder_);
    spec_.mutable_model()->set_config_json(R"({"hidden_size": 64, "num_hidden_layers": 2})");
    spec_.mutable_train()->set_global_batch(8);
  }
  ~ContinuesTest() override { std::filesystem::remove_all(folder_); }

  std::string Manifest(const std::string& step) const {
    return absl::StrCat(folder_, "/", step, "/manifest.json");
  }
  void Write(const std::string& step, const v1::JobSpec& spec) {
    std::filesystem::create_directory(absl::StrCat(folder_, "/", step));
    std::string json;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(spec, &json).ok());
    std::ofstream(Manifest(step)) << SealManifest(absl::StrCat(
        "{\n  \"spec\": ", json, ",\n  \"manifest_sha256\": \"", UnsealedManifest(), "\"\n}\n"));
  }
  std::string Refusal(const v1::JobSpec& spec) {
    return std::string(CheckContinues(spec).message());
  }

  std::string folder_;
  v1::JobSpec spec_;
};

TEST_F(ContinuesTest, AnEmptyDirectoryAndOneThatIsNotHereAreFree) {
  EXPECT_TRUE(CheckContinues(spec_).ok());
  spec_.mutable_checkpoint()->set_directory("/nowhere/at/all");
  EXPECT_TRUE(CheckContinues(spec_).ok());
}

TEST_F(ContinuesTest, AllThatDiffersFromTheNewestIsNamed) {
  Write("step-00000020", spec_);
  EXPECT_TRUE(CheckContinues(spec_).ok());
  v1::JobSpec other = spec_;
  other.mutable_model()->set_config_json(R"({"hidden_size": 96, "num_hidden_layers": 3})");
  other.mutable_train()->set_global_batch(16);
  EXPECT_EQ(CheckContinues(other).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      Refusal(other),
      AllOf(HasSubstr("step-00000020"), HasSubstr("model.config.hidden_size from 64 to 96"),
            HasSubstr("model.config.num_hidden_layers from 2 to 3"),
            HasSubstr("train.global_batch from 8 to 16"), HasSubstr("checkpoint.resume: always")));
  other.mutable_checkpoint()->set_resume("always");
  EXPECT_TRUE(CheckContinues(other).ok());
  Write("step-00000100", other);
  other.mutable_checkpoint()->set_resume("auto");
  EXPECT_TRUE(CheckContinues(other).ok()) << "the newest is its own";
}

TEST_F(ContinuesTest, DamagedOnesArePassedOverAndWhatNobodyCanReadHoldsNobodyUp) {
  v1::JobSpec other = spec_;
  other.mutable_train()->set_seed(7);
  Write("step-00000010", spec_);
  Write("step-00000020", other);
  std::ofstream(Manifest("step-00000020"), std::ios::app) << " ";
  EXPECT_TRUE(CheckContinues(spec_).ok());
  Write("step-00000030", other);
  std::filesystem::remove(Manifest("step-00000030"));
  ASSERT_EQ(mkfifo(Manifest("step-00000030").c_str(), 0600), 0);
  EXPECT_TRUE(CheckContinues(spec_).ok());
  std::filesystem::create_directory(folder_ + "/step-00000040");
  std::ofstream(Manifest("step-00000040")) << "{\"spec\": " << std::string(1 << 20, '[');
  EXPECT_TRUE(CheckContinues(spec_).ok());
}

}  // namespace
}  // namespace terrace
