// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/peft/saved_adapter.h"

#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/peft/names.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const SavedAdapter::Expected kA = {"model.layers.0.mlp.up_proj.lora_A.weight", {2, 3}};
const SavedAdapter::Expected kB = {"model.layers.0.mlp.up_proj.lora_B.weight", {4, 2}};

class SavedAdapterTest : public ::testing::Test {
 protected:
  void Write(const std::vector<TensorToWrite>& tensors) {
    auto writer =
        SafetensorsWriter::Create(folder_.path(kPeftWeights), tensors, {{"format", "pt"}}).value();
    for (const TensorToWrite& tensor : tensors) {
      const std::vector<std::byte> bytes(tensor.bytes(), static_cast<std::byte>(tensor.shape[0]));
      ASSERT_TRUE(writer.Append(bytes).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
  }
  TensorToWrite Saved(const std::string& name, std::vector<int64_t> shape) {
    return {name, kernels::DType::kF32, std::move(shape)};
  }
  std::string Error() {
    const auto adapter = SavedAdapter::Open(folder_.path(), expected_);
    EXPECT_EQ(adapter.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(adapter.status().message());
  }

  TemporaryFolder folder_;
  const std::vector<SavedAdapter::Expected> expected_ = {kA, kB};
};

TEST_F(SavedAdapterTest, FindsWhatPeftSaved) {
  Write({Saved(kPeftPrefix + kA.tensor, {2, 3}), Saved(kPeftPrefix + kB.tensor, {4, 2})});
  const auto adapter = SavedAdapter::Open(folder_.path(), expected_);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->Get(kA.tensor).name, kPeftPrefix + kA.tensor);
  EXPECT_EQ(adapter->Get(kB.tensor).ReadAll().value(), std::vector<std::byte>(32, std::byte{4}));
}

TEST_F(SavedAdapterTest, AnAdapterOfAModelWithoutItsHeadHasShorterNames) {
  Write({Saved("base_model.model.layers.0.mlp.up_proj.lora_A.weight", {2, 3}),
         Saved("base_model.model.layers.0.mlp.up_proj.lora_B.weight", {4, 2})});
  EXPECT_TRUE(SavedAdapter::Open(folder_.path(), expected_).ok());
}

TEST_F(SavedAdapterTest, AnotherShapeIsNamedWithBoth) {
  Write({Saved(kPeftPrefix + kA.tensor, {2, 5}), Saved(kPeftPrefix + kB.tensor, {4, 2})});
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("adapter of another model"), HasSubstr("lora_A.weight [2, 5]"),
                    HasSubstr("lora_A.weight [2, 3] is needed")));
}

TEST_F(SavedAdapterTest, WhatIsMissingIsNamedWithWhatIsThereInstead) {
  Write({Saved(kPeftPrefix + kA.tensor, {2, 3}),
         Saved("base_model.model.model.layers.9.mlp.up_proj.lora_B.weight", {4, 2})});
  EXPECT_THAT(Error(), AllOf(HasSubstr("lacks model.layers.0.mlp.up_proj.lora_B.weight [4, 2]"),
                             HasSubstr("has base_model.model.model.layers.9")));
}

TEST_F(SavedAdapterTest, WhatTheModelDoesNotHaveIsNamed) {
  Write({Saved(kPeftPrefix + kA.tensor, {2, 3}), Saved(kPeftPrefix + kB.tensor, {4, 2}),
         Saved("base_model.model.lm_head.lora_A.weight", {2, 3})});
  EXPECT_THAT(Error(), HasSubstr("has base_model.model.lm_head.lora_A.weight [2, 3]"));
}

}  // namespace
}  // namespace terrace
