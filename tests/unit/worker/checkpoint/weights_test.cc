// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/numbers/random_normal.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {
namespace {

using kernels::DType;
using ::testing::HasSubstr;

// ---- conversion
// -------------------------------------------------------------------------------------------------

TEST(ConvertTest, EveryF16ComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = FloatOfF16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(F16OfFloat(value), bits);
    // Halfway to the next one: to even.
    if ((bits & 0x7fff) >= 0x7bff) continue;
    const float middle = (value + FloatOfF16(static_cast<uint16_t>(bits + 1))) / 2;
    ASSERT_EQ(F16OfFloat(middle), bits + (bits & 1)) << bits;
  }
  EXPECT_EQ(F16OfFloat(65519.0f), 0x7bff);
  EXPECT_EQ(F16OfFloat(65520.0f), 0x7c00);
  EXPECT_EQ(F16OfFloat(-1e30f), 0xfc00);
  EXPECT_TRUE(std::isnan(FloatOfF16(F16OfFloat(NAN))));
}

TEST(ConvertTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(Bf16OfFloat(1.0f), 0x3f80);
  EXPECT_EQ(Bf16OfFloat(1.0f + 1.0f / 256), 0x3f80);  // half: to even
  EXPECT_EQ(Bf16OfFloat(1.0f + 3.0f / 256), 0x3f82);
  EXPECT_EQ(Bf16OfFloat(1.0f + 1.0f / 256 + 1e-6f), 0x3f81);
  EXPECT_EQ(Bf16OfFloat(INFINITY), 0x7f80);
  EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16OfFloat(std::bit_cast<float>(0x7f800001u)))));
}

// ---- initial numbers
// ----------------------------------------------------------------------------------------

TEST(FillUniformTest, NumbersAreEvenOverTheIntervalWhoeverFillsThem) {
  constexpr int64_t kCount = 100'000;
  constexpr float kMean = 0.5f, kStddev = 0.1f;
  std::vector<float> all(kCount), part(1'000);
  FillUniform(7, 11, 0, kMean, kStddev, all);
  FillUniform(7, 11, 12'345, kMean, kStddev, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 12'345));
  double sum = 0, squares = 0;
  for (const float value : all) {
    sum += value - kMean;
    squares += (value - kMean) * (value - kMean);
  }
  EXPECT_NEAR(sum / kCount, 0, 2e-3);
  EXPECT_NEAR(std::sqrt(squares / kCount), kStddev, 1e-3);
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  const double half = std::sqrt(3.0) * kStddev;
  EXPECT_NEAR(*least, kMean - half, 1e-4);
  EXPECT_NEAR(*most, kMean + half, 1e-4);
  EXPECT_LE(*most, kMean + half + 1e-6);
}

// ---- reading weights of others
// ----------------------------------------------------------------------------------------

class ReadWeightsTest : public ::testing::Test {
 protected:
  struct Stored {
    std::string name;
    std::vector<int64_t> shape;
    DType dtype = DType::kF32;
  };
  // Element i of each tensor is i / 4.
  std::string Put(const std::vector<Stored>& tensors, const std::string& name = "w.safetensors") {
    const std::string path = folder_.path(name);
    std::vector<TensorToWrite> to_write;
    std::vector<std::byte> data;
    for (const Stored& tensor : tensors) {
      to_write.push_back({tensor.name, tensor.dtype, tensor.shape});
      int64_t elements = 1;
      for (const int64_t size : tensor.shape) elements *= size;
      for (int64_t i = 0; i < elements; ++i) {
        const float value = i / 4.0f;
        std::byte raw[4];
        ConvertElements(DType::kF32, reinterpret_cast<const std::byte*>(&value), tensor.dtype, raw,
                        1);
        data.insert(data.end(), raw, raw + kernels::SizeOf(tensor.dtype));
      }
    }
    auto writer = SafetensorsWriter::Create(path, to_write, {}).value();
    EXPECT_TRUE(writer.Append(data).ok() && writer.Finish().ok());
    return path;
  }
  void ExpectValues(StateFixture& state, const std::string& name) {
    const std::span<float> values = state.Floats(name);
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], i / 4.0f) << name << " " << i;
  }
  TemporaryFolder folder_;
};

TEST_F(ReadWeightsTest, NarrowTypesAndShortNamesAndTiedOnesAreFound) {
  StateFixture state;
  state.Add("transformer.wte.weight", {6, 2});
  state.Add("transformer.h.0.ln.weight", {3});
  state.Add("model.norm.weight", {5});
  (*state.program().mutable_tied())["lm_head.weight"] = "transformer.wte.weight";
  state.Fill(3);
  const std::string path = Put({{"lm_head.weight", {6, 2}, DType::kBF16},
                                {"h.0.ln.weight", {3}, DType::kF16},
                                {"model.norm.weight", {5}},
                                {"unused.bias", {2}}});
  ASSERT_TRUE(ReadWeights(path, state.state()).ok());
  for (const char* name :
       {"transformer.wte.weight", "transformer.h.0.ln.weight", "model.norm.weight"}) {
    ExpectValues(state, name);
    for (const float value : state.Floats(name, v1::SECOND_MOMENT)) ASSERT_EQ(value, 0.0f);
  }
}

TEST_F(ReadWeightsTest, MissingAndMisshapenTensorsAreNamed) {
  StateFixture state;
  state.Add("model.embed_tokens.weight", {4, 2});
  state.Clear();
  const absl::Status missing =
      ReadWeights(Put({{"model.embed_token.weight", {4, 2}}}), state.state());
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no tensor model.embed_tokens.weight"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("model.embed_token.weight"));
  const absl::Status shape =
      ReadWeights(Put({{"model.embed_tokens.weight", {2, 4}}}), state.state());
  EXPECT_THAT(std::string(shape.message()),
              HasSubstr("has the shape [2, 4], the model's is [4, 2]"));
  const absl::Status type =
      ReadWeights(Put({{"model.embed_tokens.weight", {4, 2}, DType::kI32}}), state.state());
  EXPECT_THAT(std::string(type.message()), HasSubstr("must be F32, BF16 or F16"));
  EXPECT_EQ(ReadWeights(folder_.path("none"), state.state()).code(), absl::StatusCode::kNotFound);
}

// As a job of `rank` 2 beside one matrix has them, in a model whose file `Put` writes.
void AddAdapter(StateFixture& state) {
  state.Add("model.up_proj.weight", {4, 3});
  for (const auto& [name, shape] :
       {std::pair("model.up_proj.lora_A.weight", std::vector<int64_t>{2, 3}),
        std::pair("model.up_proj.lora_B.weight", std::vector<int64_t>{4, 2})}) {
    state.Add(name, shape);
    state.program().mutable_initializers()->rbegin()->set_adapter(true);
  }
  state.Fill(3);
}

TEST_F(ReadWeightsTest, AnAdapterOfPeftIsReadBesideTheModel) {
  StateFixture state;
  AddAdapter(state);
  Put({{"base_model.model.model.up_proj.lora_A.weight", {2, 3}, DType::kF16},
       {"base_model.model.model.up_proj.lora_B.weight", {4, 2}}},
      "adapter_model.safetensors");
  const auto saved = OpenAdapter(folder_.path(), state.program());
  ASSERT_TRUE(saved.ok()) << saved.status();
  // A file that has an adapter of its own: the saved one is meant.
  const std::string path =
      Put({{"model.up_proj.weight", {4, 3}}, {"model.up_proj.lora_A.weight", {2, 7}}});
  ASSERT_TRUE(ReadWeights(path, state.state(), AdapterStart{.seed = 1, .saved = &*saved}).ok());
  for (const char* name :
       {"model.up_proj.weight", "model.up_proj.lora_A.weight", "model.up_proj.lora_B.weight"}) {
    ExpectValues(state, name);
  }
}

TEST_F(ReadWeightsTest, WithoutOneAdaptersBeginByTheirInitializers) {
  StateFixture state, drawn;
  AddAdapter(state);
  AddAdapter(drawn);
  ASSERT_TRUE(InitialiseWeights(7, drawn.state(), 1).ok());
  const std::string path = Put({{"model.up_proj.weight", {4, 3}}});
  EXPECT_FALSE(ReadWeights(path, state.state()).ok());
  ASSERT_TRUE(ReadWeights(path, state.state(), AdapterStart{.seed = 7}).ok());
  ExpectValues(state, "model.up_proj.weight");
  const std::string a = "model.up_proj.lora_A.weight";
  EXPECT_THAT(state.Floats(a), ::testing::ElementsAreArray(drawn.Floats(a)));
}

TEST_F(ReadWeightsTest, AnAdapterOfAnotherModelIsNoAdapterOfThisOne) {
  StateFixture state;
  AddAdapter(state);
  Put({{"base_model.model.model.up_proj.lora_A.weight", {2, 5}},
       {"base_model.model.model.up_proj.lora_B.weight", {4, 2}}},
      "adapter_model.safetensors");
  EXPECT_THAT(std::string(OpenAdapter(folder_.path(), state.program()).status().message()),
              HasSubstr("[2, 5], and model.up_proj.lora_A.weight [2, 3] is needed"));
}

// ---- random weights
// -------------------------------------------------------------------------------------------------

TEST(RandomNormalTest, PhiloxGivesThePublishedNumbers) {  // kat_vectors of Random123
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ::testing::ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ::testing::ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(RandomNormalTest, EachElementIsBoxMullerOfItsBlock) {
  constexpr uint64_t kSeed = 99, kStream = 0x123456789abcdef0;
  std::vector<float> values(4096);
  FillNormal(kSeed, kStream, 0, 1.0f, 2.0f, values);
  for (uint32_t block = 0; block < 1024; ++block) {
    const PhiloxBlock words =
        Philox4x32({block, 0, static_cast<uint32_t>(kStream), static_cast<uint32_t>(kStream >> 32)},
                   {static_cast<uint32_t>(kSeed), 0});
    for (int half = 0; half < 2; ++half) {
      const double uniform = (words[2 * half] >> 8) * 0x1p-24 + 0x1p-25;
      const double radius = std::sqrt(-2 * std::log(uniform));
      const double angle = 2 * M_PI * (words[2 * half + 1] >> 8) * 0x1p-24;
      ASSERT_NEAR(values[4 * block + 2 * half], 1 + 2 * radius * std::cos(angle), 1e-5);
      ASSERT_NEAR(values[4 * block + 2 * half + 1], 1 + 2 * radius * std::sin(angle), 1e-5);
    }
  }
}

TEST(RandomNormalTest, AnyPartEqualsThePartOfTheWhole) {
  std::vector<float> whole(3000);
  FillNormal(5, 6, 0, 0, 1, whole);
  for (const auto& [begin, count] :
       {std::pair(0, 1), {1, 1}, {3, 300}, {255, 2}, {256, 256}, {1001, 1999}}) {
    std::vector<float> part(count);
    FillNormal(5, 6, begin, 0, 1, part);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin;
  }
}

TEST(RandomNormalTest, LooksNormal) {
  std::vector<float> values(1 << 20);
  FillNormal(1, 2, 0, 0, 1, values);
  double sum = 0, square = 0, cube = 0, fourth = 0, neighbours = 0;
  int64_t beyond_two = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    sum += x;
    square += x * x;
    cube += x * x * x;
    fourth += x * x * x * x;
    if (i > 0) neighbours += x * values[i - 1];
    beyond_two += std::abs(x) > 2;
  }
  const double n = values.size();
  EXPECT_NEAR(sum / n, 0, 4 / std::sqrt(n));
  EXPECT_NEAR(square / n, 1, 0.01);
  EXPECT_NEAR(cube / n, 0, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.05);
  EXPECT_NEAR(neighbours / n, 0, 4 / std::sqrt(n));
  EXPECT_NEAR(beyond_two / n, 0.0455, 0.001);
}

TEST(InitialiseTest, DependsOnSeedAndNameNotOnLayoutOrThreads) {
  StateFixture whole, cut;
  for (StateFixture* state : {&whole, &cut}) {
    state->Add("a", {300, 700}, state == &cut ? 7 : 1);
    state->Add("b", {64}, 1);
    state->program().mutable_initializers(1)->set_kind(v1::Initializer::CONSTANT);
    state->program().mutable_initializers(1)->set_mean(1.0f);
    state->Fill(77);
  }
  ASSERT_TRUE(InitialiseWeights(42, whole.state(), 1).ok());
  ASSERT_TRUE(InitialiseWeights(42, cut.state(), 3).ok());
  std::vector<float> joined;
  for (const v1::StateRange& range : cut.program().state()) {
    if (range.tensor() != "a" || range.kind() != v1::WEIGHT) continue;
    const auto* from = reinterpret_cast<const float*>(
        cut.memory().data() + cut.program().buffers(range.buffer()).offset());
    joined.insert(joined.end(), from, from + range.rows() * range.columns());
  }
  EXPECT_TRUE(std::equal(joined.begin(), joined.end(), whole.Floats("a").begin()));
  EXPECT_NEAR(std::abs(whole.Floats("a")[12345]), 0.0, 0.12);
  for (const float value : whole.Floats("b")) ASSERT_EQ(value, 1.0f);
  for (const float value : whole.Floats("a", v1::FIRST_MOMENT)) ASSERT_EQ(value, 0.0f);
  const float before = whole.Floats("a")[0];
  ASSERT_TRUE(InitialiseWeights(43, whole.state(), 2).ok());
  EXPECT_NE(whole.Floats("a")[0], before);
}

TEST(InitialiseTest, Bf16WeightsAreTheRoundedOnes) {
  StateFixture wide, narrow(v1::BF16);
  for (StateFixture* state : {&wide, &narrow}) {
    state->Add("a", {1000});
    state->Clear();
    ASSERT_TRUE(InitialiseWeights(1, state->state(), 2).ok());
  }
  const auto* bits = reinterpret_cast<const uint16_t*>(narrow.memory().data());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(bits[i], Bf16OfFloat(wide.Floats("a")[i]));
}

TEST(InitialiseTest, ATensorWithoutInitializerIsAnError) {
  StateFixture state;
  state.Add("a", {10});
  state.program().clear_initializers();
  state.Clear();
  EXPECT_THAT(std::string(InitialiseWeights(1, state.state(), 1).message()),
              HasSubstr("no initializer for a"));
}

TEST(StateManifestTest, RangesThatLieAreErrors) {
  const auto message = [](const std::function<void(v1::Program&)>& change) {
    StateFixture state;
    state.Add("a", {10}, 2);
    state.Clear();
    change(state.program());
    return std::string(InitialiseWeights(1, state.state(), 1).message());
  };
  EXPECT_EQ(message([](v1::Program&) {}), "");
  EXPECT_THAT(message([](v1::Program& p) { p.mutable_state(0)->set_buffer(99); }),
              HasSubstr("no such buffer"));
  EXPECT_THAT(message([](v1::Program& p) { p.mutable_state(0)->set_columns(6); }),
              HasSubstr("outside its buffer"));
  EXPECT_THAT(message([](v1::Program& p) { p.mutable_state(0)->set_offset(-4); }),
              HasSubstr("outside its buffer"));
  EXPECT_THAT(message([](v1::Program& p) { p.mutable_state(0)->set_dtype(v1::BF16); }),
              HasSubstr("two element types"));
  EXPECT_THAT(message([](v1::Program& p) { p.mutable_state(0)->set_shape(0, 11); }),
              HasSubstr("two shapes"));
  EXPECT_THAT(message([](v1::Program& p) { p.mutable_state(1)->set_column(4); }),
              HasSubstr("holds element 4 of a twice on one rank"));
}

}  // namespace
}  // namespace terrace
