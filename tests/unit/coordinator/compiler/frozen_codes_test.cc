// Programs of models whose frozen matrices rest as codes in blocks (formats.frozen).
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "proto/check/program_check.h"
#include "proto/program/sequences.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Blocks of 32 and more are whole in the rows of one of four ranks.
Model ModelOf(const std::string& family) {
  return TinyModel(family, {.hidden = 128, .layers = 4, .intermediate = 128, .sequence = 16});
}

// Matrices of the lower layers, or of all.
v1::JobSpec SpecOf(bool all, double clip_grad_norm) {
  v1::JobSpec spec = MatrixSpec();
  spec.mutable_train()->set_clip_grad_norm(clip_grad_norm);
  for (const char* match : {"*layers.?.*", "*h.?.*", "*norm*", "*ln_*", "*layers.3.*", "*h.3.*"}) {
    const bool upper = absl::StrContains(match, "3");
    if (all && upper) continue;
    v1::ParameterGroup* group = spec.mutable_train()->mutable_optimizer()->add_groups();
    group->set_match(match);
    group->set_lr_scale(1);
    group->set_frozen(absl::StrContains(match, "?"));
  }
  return spec;
}

absl::StatusOr<std::vector<v1::Program>> CompileCodes(const LayoutCase& c, bool all = true,
                                                      double clip_grad_norm = 1) {
  const v1::JobSpec spec = SpecOf(all, clip_grad_norm);
  const Model model = ModelOf(c.family);
  return Compile({.spec = &spec, .model = &model, .layout = c.layout});
}

size_t Every() { return std::getenv("TERRACE_ALL_LAYOUTS") != nullptr ? 1 : 29; }

TEST(FrozenCodesTest, EveryCombinationPassesTheChecker) {
  size_t index = 0;
  int failures = 0;
  for (LayoutCase c : LayoutMatrix(8, Every())) {
    constexpr const char* kFormats[] = {"nf4", "int8", "fp8"};
    c.layout.set_frozen_format(kFormats[index % 3]);
    const bool offloads = index % 3 == 1, all = index % 2 == 0;
    if (offloads) PutOn(v1::HOST, c.layout.mutable_offload()->mutable_optimizer());
    if (offloads && c.layout.zero_stage() % 3 == 0) {
      PutOn(v1::HOST, c.layout.mutable_offload()->mutable_parameter());
      c.layout.set_tile_bytes(index % 5 == 0 ? 4096 : 0);
    }
    if (c.layout.precision() == "bf16" && index % 4 != 0) c.layout.set_parameter_format("bf16");
    const std::string what = absl::StrCat(Describe(c), " ", c.layout.frozen_format(),
                                          offloads ? ", offloaded" : "", all ? "" : ", lower");
    const auto programs = CompileCodes(c, all, index++ % 4 == 3 ? 0 : 1);
    const absl::Status status = programs.ok() ? CheckPrograms(*programs) : programs.status();
    EXPECT_EQ(status, absl::OkStatus()) << what;
    if (!status.ok() && ++failures > 10) FAIL() << "too many";
  }
  EXPECT_GT(index, 50u);
}

v1::Layout Plain() {
  v1::Layout layout = MatrixLayout();
  layout.set_precision("bf16");
  layout.set_parameter_format("bf16");
  layout.set_micro_batches(1);
  layout.set_frozen_format("nf4");
  return layout;
}

int64_t BytesOf(const v1::Program& program, const std::function<bool(const v1::Buffer&)>& is) {
  int64_t bytes = 0;
  for (const v1::Buffer& buffer : program.buffers()) bytes += is(buffer) ? buffer.bytes() : 0;
  return bytes;
}

// 4 bits an element and one f32 for 64: all on each rank, or with ZeRO-3 its shard.
TEST(FrozenCodesTest, MatricesOfLayersTakeCodesAndScales) {
  int64_t elements = 0;
  for (const Tensor& tensor : ModelOf("llama").tensors)
    if (tensor.layer >= 0 && tensor.shape.size() == 2) elements += tensor.elements();
  for (const uint32_t zero : {0, 1, 2, 3}) {
    LayoutCase c = {"llama", Plain()};
    c.layout.set_zero_stage(zero);
    c.layout.set_data_parallel(zero == 0 ? 1 : 2);
    const v1::Program program = CompileCodes(c).value()[0];
    const auto lasts = [](const v1::Buffer& b, const char* kind) {
      return b.lifetime() == v1::PERSISTENT && b.class_() == v1::PARAMETER &&
             absl::EndsWith(b.name(), ".codes") && absl::StartsWith(b.name(), kind);
    };
    const int64_t ranks = zero == 3 ? 2 : 1;
    EXPECT_EQ(BytesOf(program, [&](const v1::Buffer& b) { return lasts(b, "weights."); }) * ranks,
              elements / 2);
    EXPECT_EQ(BytesOf(program, [&](const v1::Buffer& b) { return lasts(b, "scales."); }) * ranks,
              elements / 64 * 4);
    for (const v1::StateRange& range : program.state()) {
      const bool scales = absl::EndsWith(range.tensor(), ".scales");
      const bool codes = absl::StrContains(range.tensor(), "proj.weight") && !scales;
      if (codes || scales) {
        EXPECT_EQ(range.dtype(), codes ? v1::U8 : v1::F32) << range.tensor();
      }
      EXPECT_EQ(range.shard_elements() > 0, zero > 0 && (zero == 3 || !(codes || scales)))
          << zero << " " << range.tensor();
    }
  }
}

// One matrix at a time forward, and once more where there is a backward pass.
TEST(FrozenCodesTest, EachMatrixIsDecodedForEachPassThatItsLayerHas) {
  for (const bool all : {true, false}) {
    LayoutCase c = {"llama", Plain()};
    const v1::Program program = CompileCodes(c, all).value()[0];
    std::map<int, int> decodes;  // by layer
    for (const v1::Sequence& sequence : program.sequences()) {
      if (!IsTrain(sequence.name())) continue;
      for (const v1::Instruction& instruction : sequence.instructions())
        if (instruction.compute().op() == "decode_blocks") ++decodes[instruction.layer()];
    }
    // q, k and v, and gate and up, are one matrix each. Norms and the embedding train in both.
    const std::map<int, int> twice = {{0, 8}, {1, 8}, {2, 8}, {3, 8}};
    const std::map<int, int> lower = {{0, 8}, {1, 8}, {2, 8}};
    EXPECT_EQ(decodes, all ? twice : lower) << all;
  }
}

TEST(FrozenCodesTest, RowsTooShortForBlocksAreRefused) {
  LayoutCase c = {"llama", Plain()};
  c.layout.set_tensor_parallel(2);
  const v1::JobSpec spec = SpecOf(true, 1);
  const Model model = MatrixModel("llama");
  const absl::Status status = CheckLayout(c.layout, model, spec);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("formats.frozen: got 'nf4', must be left out for this model with tp 2: rows "
                "of its matrices are made of whole blocks of at most 8 elements, and a "
                "block needs 16; leave it out, or try fewer ranks in tp"));
}

std::string Refusal(const std::function<void(v1::Program*)>& change) {
  LayoutCase c = {"llama", Plain()};
  v1::Program program = CompileCodes(c).value()[0];
  change(&program);
  return std::string(CheckProgram(program).message());
}

v1::Initializer* Find(const std::string& tensor, v1::Program* program) {
  for (v1::Initializer& init : *program->mutable_initializers())
    if (init.tensor() == tensor) return &init;
  return nullptr;
}

constexpr char kCodes[] = "model.layers.1.mlp.down_proj.weight";

// The n-th of the instructions that decode in the step.
v1::Instruction* Decode(int n, v1::Program* program) {
  for (v1::Sequence& sequence : *program->mutable_sequences()) {
    if (!IsTrain(sequence.name())) continue;
    for (v1::Instruction& instruction : *sequence.mutable_instructions())
      if (instruction.compute().op() == "decode_blocks" && n-- == 0) return &instruction;
  }
  return nullptr;
}

TEST(FrozenCodesCheckTest, CodesAreDecodedAsAnnouncedWithTheirOwnScales) {
  EXPECT_THAT(Refusal([](v1::Program*) {}), IsEmpty());
  EXPECT_THAT(
      Refusal([](v1::Program* p) { Find(kCodes, p)->set_blocks(v1::INT4_LINEAR); }),
      HasSubstr("decodes 'model.layers.1.mlp.down_proj.weight' as nf4 in blocks of 64, which "
                "its initializer does not say"));
  EXPECT_THAT(Refusal([](v1::Program* p) { Find(kCodes, p)->set_blocks(v1::INT8_LINEAR); }),
              HasSubstr("its shape has other elements than the weight's 8192"));
  EXPECT_THAT(Refusal([](v1::Program* p) { Find(kCodes, p)->set_block(48); }),
              HasSubstr("NF4 in blocks of 48 must be a format of codes, blocks a power of two from "
                        "16 to 256 that divides the rows of a frozen matrix"));
  EXPECT_THAT(Refusal([](v1::Program* p) { Find(kCodes, p)->set_frozen(false); }),
              HasSubstr("must be a format of codes"));
  EXPECT_THAT(Refusal([](v1::Program* p) {
                Find(kCodes, p)->clear_blocks();
                Find(kCodes, p)->clear_block();
              }),
              HasSubstr("initializer of 'model.layers.1.mlp.down_proj.weight'"));
  EXPECT_THAT(
      Refusal([](v1::Program* p) {
        Decode(1, p)->mutable_operands(1)->set_offset(Decode(1, p)->operands(1).offset() + 256);
      }),
      HasSubstr("with other scales than theirs"));
  EXPECT_THAT(Refusal([](v1::Program* p) {
                Decode(1, p)->mutable_operands(1)->set_buffer(Decode(5, p)->operands(1).buffer());
              }),
              HasSubstr("with other scales than theirs"));
  EXPECT_THAT(Refusal([](v1::Program* p) {
                Decode(2, p)->mutable_compute()->mutable_block()->set_format(v1::INT4_LINEAR);
              }),
              HasSubstr("as int4_linear in blocks of 64, which its initializer does not say"));
}

}  // namespace
}  // namespace terrace
