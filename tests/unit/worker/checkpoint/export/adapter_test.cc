// SPDX-License-Identifier: Apache-2.0
// What PEFT computed and saved is recorded (tests/golden/pytorch/make_adapters.py).
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/export/export.h"
#include "worker/checkpoint/peft/names.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {
namespace {

using kernels::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kGoldens = TERRACE_GOLDENS;

std::vector<float> Floats(const StoredTensor& tensor) {
  const std::vector<std::byte> stored = tensor.ReadAll().value();
  std::vector<float> floats(tensor.elements());
  ConvertElements(tensor.dtype, stored.data(), DType::kF32,
                  std::as_writable_bytes(std::span(floats)).data(), tensor.elements());
  return floats;
}

// A checkpoint of the goldens' model with the adapter that PEFT saved beside it.
class AdapterExportTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string Golden(const std::string& name) const { return kGoldens + "/" + GetParam() + name; }

  // `dtype`: of the model and its adapter at rest.
  std::string Write(v1::DType dtype = v1::F32) {
    const auto model = SafetensorsReader::Open(Golden("/model.safetensors")).value();
    const auto adapter =
        SafetensorsReader::Open(Golden("/adapter/adapter_model.safetensors")).value();
    StateFixture state(dtype);
    std::map<std::string, StoredTensor> tensors;
    for (const std::string& name : model->Names()) tensors.emplace(name, model->Get(name).value());
    for (const std::string& name : adapter->Names())
      tensors.emplace(name.substr(std::strlen(kPeftPrefix)), adapter->Get(name).value());
    for (const auto& [name, tensor] : tensors) state.Add(name, tensor.shape);
    for (v1::Initializer& initializer : *state.program().mutable_initializers()) {
      initializer.set_weights(dtype);
      initializer.set_moments(dtype);
    }
    state.Clear();
    for (const auto& [name, tensor] : tensors) {
      const DType to = dtype == v1::F32 ? DType::kF32 : DType::kBF16;
      ConvertElements(tensor.dtype, tensor.ReadAll().value().data(), to,
                      reinterpret_cast<std::byte*>(state.Floats(name).data()), tensor.elements());
    }
    SetModel(state.spec().mutable_model());
    *state.spec().mutable_train() = train_;
    return WriteCheckpoint(folder_.path("ckpt"), {.step = 3, .spec = &state.spec()}, state.state(),
                           {})
        .value()
        .path;
  }
  void SetModel(v1::ModelSpec* model) {
    const nlohmann::json config = Json(Golden("/adapter/adapter_config.json"));
    model->set_config_json(ReadTextFile(Golden("/config.json"), 1 << 20).value());
    model->set_init("/models/base/model.safetensors");
    model->mutable_lora()->set_rank(config["r"]);
    model->mutable_lora()->set_alpha(config["lora_alpha"]);
    model->mutable_lora()->set_rslora(config["use_rslora"]);
  }
  static nlohmann::json Json(const std::string& path) {
    return nlohmann::json::parse(ReadTextFile(path, 1 << 20).value());
  }
  absl::StatusOr<MergeResult> Merge(const std::string& checkpoint, const std::string& dtype) {
    return MergeCheckpoint(checkpoint, folder_.path("merged-" + dtype), dtype, {}, [](double) {});
  }

  TemporaryFolder folder_;
  v1::TrainSpec train_;
};

TEST_P(AdapterExportTest, IsTheFolderThatPeftSaved) {
  const std::string out = folder_.path("out");
  ASSERT_TRUE(ExportAdapter(Write(), out, "f32").ok());
  const auto ours = SafetensorsReader::Open(out + "/adapter_model.safetensors").value();
  const auto theirs = SafetensorsReader::Open(Golden("/adapter/adapter_model.safetensors")).value();
  ASSERT_EQ(ours->Names(), theirs->Names());
  for (const std::string& name : theirs->Names()) {
    EXPECT_EQ(ours->Get(name)->shape, theirs->Get(name)->shape) << name;
    EXPECT_EQ(ours->Get(name)->ReadAll().value(), theirs->Get(name)->ReadAll().value()) << name;
  }
  const nlohmann::json config = Json(out + "/adapter_config.json");
  EXPECT_EQ(config["base_model_name_or_path"], "/models/base");
  for (const auto& [key, value] : config.items()) {
    if (key == "base_model_name_or_path") continue;
    EXPECT_EQ(value, Json(Golden("/adapter/adapter_config.json"))[key]) << key;
  }
}

TEST_P(AdapterExportTest, MergesAsPeftDoes) {
  const auto result = Merge(Write(), "f32");
  ASSERT_TRUE(result.ok()) << result.status();
  const auto ours = SafetensorsReader::Open(folder_.path("merged-f32")).value();
  const auto model = SafetensorsReader::Open(Golden("/model.safetensors")).value();
  const auto expected = SafetensorsReader::Open(Golden("/adapter/expected.safetensors")).value();
  EXPECT_EQ(ours->Names(), model->Names());
  int64_t merged = 0;
  for (const std::string& name : model->Names()) {
    const auto theirs = expected->Get("merged." + name);
    const std::vector<float> got = Floats(ours->Get(name).value());
    const std::vector<float> want = Floats(theirs.ok() ? *theirs : model->Get(name).value());
    merged += theirs.ok() ? 1 : 0;
    for (size_t i = 0; i < want.size(); ++i) {
      // Sums of `rank` products in another order.
      ASSERT_NEAR(got[i], want[i], theirs.ok() ? 5e-7 : 0) << name << " " << i;
    }
  }
  EXPECT_EQ(result->matrices, merged);
  EXPECT_EQ(result->rounding.undone, 0);
  EXPECT_EQ(result->rounding.ratio(), 0) << "f32 is what was computed in";
}

TEST_P(AdapterExportTest, SixteenBitsAreRoundedOnce) {
  const std::string checkpoint = Write();
  ASSERT_TRUE(Merge(checkpoint, "f32").ok());
  const auto result = Merge(checkpoint, "bf16");
  ASSERT_TRUE(result.ok()) << result.status();
  const auto exact = SafetensorsReader::Open(folder_.path("merged-f32")).value();
  const auto rounded = SafetensorsReader::Open(folder_.path("merged-bf16")).value();
  const auto model = SafetensorsReader::Open(Golden("/model.safetensors")).value();
  const auto adapted = SafetensorsReader::Open(Golden("/adapter/expected.safetensors")).value();
  double change = 0, error = 0;
  for (const std::string& name : exact->Names()) {
    const std::vector<float> want = Floats(exact->Get(name).value());
    const std::vector<float> got = Floats(rounded->Get(name).value());
    const std::vector<float> before = Floats(model->Get(name).value());
    const bool is_adapted = adapted->Get("merged." + name).ok();
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i], FloatOfBf16(Bf16OfFloat(want[i]))) << name << " " << i;
      if (!is_adapted) continue;
      change += std::pow(double{want[i]} - before[i], 2);
      error += std::pow(double{got[i]} - want[i], 2);
    }
  }
  EXPECT_NEAR(result->rounding.ratio(), std::sqrt(error / change), 1e-9);
  EXPECT_GT(result->rounding.ratio(), 0);
  EXPECT_EQ(Json(folder_.path("merged-bf16/config.json"))["torch_dtype"], "bfloat16");
}

TEST_P(AdapterExportTest, ABaseInSixteenBitsIsMergedInFloats) {
  const std::string checkpoint = Write(v1::BF16);
  const auto result = Merge(checkpoint, "f32");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->rounding.ratio(), 0);
  const auto ours = SafetensorsReader::Open(folder_.path("merged-f32")).value();
  const auto expected = SafetensorsReader::Open(Golden("/adapter/expected.safetensors")).value();
  for (const std::string& name : ours->Names()) {
    const auto theirs = expected->Get("merged." + name);
    if (!theirs.ok()) continue;
    const std::vector<float> got = Floats(ours->Get(name).value()), want = Floats(*theirs);
    // What was stored in 2 bytes is off by 2^-9 of itself.
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 0.02) << name;
  }
}

TEST_P(AdapterExportTest, AModelWithAnAdapterIsNotExportedAlone) {
  const absl::Status status = ExportCheckpoint(Write(), folder_.path("out"), "f32", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("holds an adapter"), HasSubstr("--adapter"), HasSubstr("ckpt merge")));
}

TEST_P(AdapterExportTest, WhatWasTrainedBesideIsNotLeftOut) {
  v1::ParameterGroup* group = train_.mutable_optimizer()->add_groups();
  group->set_match("*.bias");
  group->set_frozen(true);
  EXPECT_TRUE(ExportAdapter(Write(), folder_.path("out"), "f32").ok());
  train_.mutable_optimizer()->add_groups()->set_match("*.1.*norm*.weight");
  train_.mutable_optimizer()->add_groups()->set_match("*.1.ln*.weight");
  train_.mutable_optimizer()->add_groups()->set_match("*lora_B*");
  const absl::Status status = ExportAdapter(Write(), folder_.path("out2"), "f32");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("trained 2 tensors of the model"), HasSubstr("ckpt merge")));
  EXPECT_TRUE(Merge(Write(), "f32").ok());
}

INSTANTIATE_TEST_SUITE_P(Families, AdapterExportTest, ::testing::Values("gpt2", "llama"));

TEST(AdapterlessExportTest, ACheckpointWithoutOneIsRefused) {
  TemporaryFolder folder;
  StateFixture state;
  state.Add("model.norm.weight", {64});
  state.Clear();
  const std::string path =
      WriteCheckpoint(folder.path("ckpt"), {.step = 3, .spec = &state.spec()}, state.state(), {})
          .value()
          .path;
  EXPECT_THAT(std::string(ExportAdapter(path, folder.path("out"), "f32").message()),
              HasSubstr("holds no adapter"));
  EXPECT_THAT(
      std::string(
          MergeCheckpoint(path, folder.path("out"), "f32", {}, [](double) {}).status().message()),
      HasSubstr("holds no adapter"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

}  // namespace
}  // namespace terrace
