// Cases of attention for kernels that work in tiles on matrix instructions: several tiles each way
// with a last one that is not full, all head sizes that heads are padded to, windows, groups, and
// pieces of sequences, on bf16 with rows that wide accesses allow.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_case_list.h"

namespace terrace::kernels::conformance {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

struct Shape {
  std::string name;
  int64_t batch, sequence, heads, kv_heads, head_dim, window, gap;
};

std::vector<TensorShape> OperandsOf(const Shape& s, DType output) {
  const Form form = {s.name, kBF16, s.gap};
  const TensorShape q = form.Act({s.batch * s.sequence, s.heads, s.head_dim});
  const TensorShape k = form.Act({s.batch * s.sequence, s.kv_heads, s.head_dim});
  return {q, k, k, form.Of(output, {s.batch * s.sequence, s.heads, s.head_dim}),
          Dense(kF32, {s.batch, s.heads, s.sequence})};
}

}  // namespace

void AddTiledAttention(CaseList* list) {
  const Shape whole[] = {
      {"tiled_64", 1, 405, 2, 1, 64, 0, 0},   {"tiled_64_window", 2, 330, 1, 1, 64, 131, 8},
      {"tiled_72", 1, 140, 1, 1, 72, 0, 8},   {"tiled_96", 1, 290, 2, 2, 96, 0, 0},
      {"tiled_128", 1, 390, 2, 1, 128, 0, 8}, {"tiled_128_window", 1, 275, 1, 1, 128, 60, 0}};
  for (const Shape& s : whole) {
    list->Add(Op::kAttention, s.name,
              AttentionAttrs{.sequence = s.sequence,
                             .window = s.window,
                             .scale = 0.125f,
                             .precision = MatmulPrecision::kBF16},
              OperandsOf(s, kBF16));
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
      list->Add(Op::kAttentionBlock, s.name + "_" + block.name,
                AttentionBlockAttrs{.sequence = s.sequence,
                                    .window = s.window,
                                    .scale = 0.125f,
                                    .precision = MatmulPrecision::kBF16,
                                    .context = block.share,
                                    .step = block.step,
                                    .accumulate = block.accumulate},
                OperandsOf(s, kF32));
    }
  }
}

}  // namespace terrace::kernels::conformance
