// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/checkpoint.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

class CheckpointToolTest : public ::testing::Test {
 protected:
  CheckpointToolTest() {
    StateFixture state;
    state.Add("w", {8});
    state.Clear();
    for (const int64_t step : {10, 20}) {
      EXPECT_TRUE(WriteCheckpoint(directory(), {.step = step, .spec = &state.spec()}, state.state(),
                                  {.unix_ms = 1700000000000})
                      .ok());
    }
  }
  std::string directory() const { return folder_.path("ckpt"); }
  ToolOutput Output(ToolFormat format) {
    out_.str("");
    err_.str("");
    return {.format = format, .out = out_, .err = err_};
  }
  nlohmann::json Answer() { return nlohmann::json::parse(out_.str()); }

  TemporaryFolder folder_;
  std::ostringstream out_, err_;
};

TEST_F(CheckpointToolTest, LsListsDamagedOnesToo) {
  std::filesystem::remove(directory() + "/step-00000020/optimizer.safetensors");
  ASSERT_EQ(RunCheckpointLs(directory(), Output(ToolFormat::kJson)), 0);
  const nlohmann::json list = Answer()["checkpoints"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["step"], "10");
  EXPECT_EQ(list[0]["complete"], true);
  EXPECT_EQ(list[1]["complete"], false);
  ASSERT_EQ(RunCheckpointLs(directory(), Output(ToolFormat::kTable)), 0);
  EXPECT_THAT(out_.str(), HasSubstr("2023-11-14 22:13:20Z"));
  EXPECT_THAT(out_.str(), HasSubstr("DAMAGED: cannot open"));
}

TEST_F(CheckpointToolTest, VerifyTakesOneOrAll) {
  EXPECT_EQ(RunCheckpointVerify(directory(), Output(ToolFormat::kTable)), 0);
  EXPECT_THAT(out_.str(), HasSubstr("step-00000020  intact"));
  std::filesystem::resize_file(directory() + "/step-00000010/model.safetensors", 9);
  EXPECT_EQ(RunCheckpointVerify(directory() + "/step-00000020", Output(ToolFormat::kJson)), 0);
  EXPECT_EQ(RunCheckpointVerify(directory(), Output(ToolFormat::kJson)), 4);
  EXPECT_EQ(Answer()["checkpoints"][0]["intact"], false);
  EXPECT_EQ(RunCheckpointVerify(folder_.path("none"), Output(ToolFormat::kTable)), 3);
}

TEST_F(CheckpointToolTest, ExportTakesTheNewestOfADirectory) {
  const std::string target = folder_.path("out");
  ASSERT_EQ(RunCheckpointExport({directory(), target, "bf16"}, Output(ToolFormat::kJson)), 0)
      << out_.str();
  EXPECT_EQ(Answer()["checkpoint"], directory() + "/step-00000020");
  EXPECT_EQ(SafetensorsReader::Open(target).value()->Get("w").value().dtype, kernels::DType::kBF16);
  EXPECT_EQ(RunCheckpointExport({directory(), target, "bf16"}, Output(ToolFormat::kTable)), 4);
  EXPECT_THAT(err_.str(), HasSubstr("out exists"));
  EXPECT_EQ(
      RunCheckpointExport({directory(), folder_.path("b"), "int4"}, Output(ToolFormat::kTable)), 4);
  EXPECT_EQ(
      RunCheckpointExport({folder_.path("none"), folder_.path("b")}, Output(ToolFormat::kTable)),
      3);
}

TEST_F(CheckpointToolTest, TheOneOfTheBestEvaluationIsMarkedAndCanBeExported) {
  EXPECT_EQ(RunCheckpointExport({directory(), folder_.path("a"), "f32", true},
                                Output(ToolFormat::kTable)),
            3);
  EXPECT_THAT(err_.str(), HasSubstr("no evaluation came before"));
  StateFixture state;
  state.Add("w", {8});
  state.Clear();
  const TrainingState training = {.validation = {.best_step = 10, .best_loss = 2.5, .worse = 1}};
  ASSERT_TRUE(WriteCheckpoint(directory(),
                              {.step = 30, .training = training, .spec = &state.spec()},
                              state.state(), {})
                  .ok());
  ASSERT_EQ(RunCheckpointLs(directory(), Output(ToolFormat::kJson)), 0);
  EXPECT_EQ(Answer()["checkpoints"][0]["best"], true);
  EXPECT_EQ(Answer()["checkpoints"][0]["validation_loss"], 2.5);
  EXPECT_EQ(Answer()["checkpoints"][2]["best"], false);
  ASSERT_EQ(
      RunCheckpointExport({directory(), folder_.path("b"), "f32", true}, Output(ToolFormat::kJson)),
      0);
  EXPECT_EQ(Answer()["checkpoint"], directory() + "/step-00000010");
  EXPECT_EQ(RunCheckpointExport({directory() + "/step-00000010", folder_.path("c"), "f32", true},
                                Output(ToolFormat::kTable)),
            4);
  EXPECT_THAT(err_.str(), HasSubstr("give its directory"));
  std::filesystem::remove_all(directory() + "/step-00000010");
  EXPECT_EQ(RunCheckpointExport({directory(), folder_.path("d"), "f32", true},
                                Output(ToolFormat::kTable)),
            3);
  EXPECT_THAT(err_.str(), HasSubstr("checkpoint.keep_best"));
}

}  // namespace
}  // namespace terrace
