// Cases of attention for kernels that work in tiles on matrix instructions: several tiles each way
// with a last one that is not full, all head sizes that heads are padded to, windows, groups, and
// pieces of sequences, on bf16, and some on f16, with rows that wide accesses allow.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/conformance/op_case_list.h"

namespace terrace::kernels::conformance {
namespace {

constexpr DType kF32 = DType::kF32;

struct Shape {
  std::string name;
  int64_t batch, sequence, heads, kv_heads, head_dim, window, gap;
};

struct Halves {
  std::string suffix;
  DType type;
  MatmulPrecision precision;
};
const Halves kBF16 = {"", DType::kBF16, MatmulPrecision::kBF16};
const Halves kF16 = {"_f16", DType::kF16, MatmulPrecision::kF16};

std::vector<TensorShape> OperandsOf(const Shape& s, const Halves& halves, DType output,
                                    bool documents) {
  const Form form = {s.name, halves.type, s.gap};
  const TensorShape q = form.Act({s.batch * s.sequence, s.heads, s.head_dim});
  const TensorShape k = form.Act({s.batch * s.sequence, s.kv_heads, s.head_dim});
  return {q,
          k,
          k,
          form.Of(output, {s.batch * s.sequence, s.heads, s.head_dim}),
          Dense(kF32, {s.batch, s.heads, s.sequence}),
          documents ? Dense(DType::kI32, {s.batch * s.sequence}) : TensorShape()};
}

// Several tiles each way with a soft cap and slopes, or with elements dropped.
void AddTerms(const Shape& s, const Halves& halves, bool drops, CaseList* list) {
  std::vector<TensorShape> operands = OperandsOf(s, halves, halves.type, false);
  if (drops) operands.push_back(Dense(DType::kI32, {s.batch * s.sequence, 2}));
  const ScoreTerms terms = {.softcap = 2,
                            .alibi_heads = 4,
                            .dropout = drops ? 0.2f : 0,
                            .seed = 3,
                            .site = 40,
                            .first_head = 2};
  list->Add(Op::kAttention, s.name + (drops ? "_dropped" : "_terms") + halves.suffix,
            AttentionAttrs{.sequence = s.sequence,
                           .window = s.window,
                           .scale = 0.125f,
                           .precision = halves.precision,
                           .terms = terms},
            std::move(operands));
}

void AddWhole(const Shape& s, const Halves& halves, bool documents, CaseList* list) {
  list->Add(Op::kAttention, s.name + (documents ? "_documents" : "") + halves.suffix,
            AttentionAttrs{.sequence = s.sequence,
                           .window = s.window,
                           .scale = 0.125f,
                           .precision = halves.precision},
            OperandsOf(s, halves, halves.type, documents));
}

}  // namespace

void AddTiledAttention(CaseList* list) {
  const Shape whole[] = {
      {"tiled_64", 1, 405, 2, 1, 64, 0, 0},   {"tiled_64_window", 2, 330, 1, 1, 64, 131, 8},
      {"tiled_72", 1, 140, 1, 1, 72, 0, 8},   {"tiled_96", 1, 290, 2, 2, 96, 0, 0},
      {"tiled_128", 1, 390, 2, 1, 128, 0, 8}, {"tiled_128_window", 1, 275, 1, 1, 128, 60, 0}};
  for (const Shape& s : whole) {
    for (const bool documents : {false, true}) AddWhole(s, kBF16, documents, list);
  }
  for (const int of_each_width : {1, 3, 4}) AddWhole(whole[of_each_width], kF16, false, list);
  AddWhole(whole[1], kF16, true, list);
  for (const bool drops : {false, true}) {
    AddTerms(whole[0], kBF16, drops, list);
    AddTerms(whole[5], kBF16, drops, list);
    AddTerms(whole[1], kF16, drops, list);
  }
  struct Block {
    std::string name;
    TokenShare share;
    int64_t step;
    bool accumulate;
  };
  const Block blocks[] = {{"own", {.ranks = 3, .index = 2}, 0, false},
                          {"earlier", {.ranks = 3, .index = 2}, 1, true},
                          {"zigzag_own", {.ranks = 2, .index = 1, .zigzag = true}, 0, true},
                          {"zigzag_later", {.ranks = 2, .index = 0, .zigzag = true}, 1, false}};
  for (const Shape& s : {Shape{"tiled_64", 1, 300, 2, 1, 64, 0, 0},
                         Shape{"tiled_128_window", 1, 270, 1, 1, 128, 200, 8}}) {
    for (const Block& block : blocks) {
      for (const bool documents : {false, true}) {
        list->Add(Op::kAttentionBlock, s.name + "_" + block.name + (documents ? "_documents" : ""),
                  AttentionBlockAttrs{.sequence = s.sequence,
                                      .window = s.window,
                                      .scale = 0.125f,
                                      .precision = kBF16.precision,
                                      .context = block.share,
                                      .step = block.step,
                                      .accumulate = block.accumulate},
                  OperandsOf(s, kBF16, kF32, documents));
      }
    }
  }
}

bool IsAttentionOfHalves(const OpCase& op_case) {
  const auto* whole = std::get_if<AttentionAttrs>(&op_case.attrs);
  const auto* block = std::get_if<AttentionBlockAttrs>(&op_case.attrs);
  if ((whole == nullptr && block == nullptr) || op_case.op == Op::kAttentionCached) return false;
  const bool documents = std::ranges::any_of(
      op_case.operands, [](const TensorShape& shape) { return shape.dtype == DType::kI32; });
  if (documents || (whole != nullptr ? whole->terms : block->terms) != ScoreTerms()) return false;
  const DType type = op_case.operands[0].dtype;
  switch (whole != nullptr ? whole->precision : block->precision) {
    case MatmulPrecision::kBF16:
      return type == DType::kBF16;
    case MatmulPrecision::kF16:
      return type == DType::kF16;
    default:
      return false;
  }
}

}  // namespace terrace::kernels::conformance
