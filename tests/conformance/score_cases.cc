// Cases of attention with terms: soft caps, ALiBi of a rank's own heads, elements of the softmax
// that are dropped; in all forms of attention, f32 and 16 bits.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_case_list.h"

namespace terrace::kernels::conformance {
namespace {

constexpr DType kF32 = DType::kF32;

struct Terms {
  std::string name;
  ScoreTerms terms;
};
// Heads of two of three ranks of two, of six, so that some slopes are those of eight.
const Terms kTerms[] = {
    {"softcap", {.softcap = 1.5f}},
    {"alibi", {.alibi_heads = 6, .first_head = 3}},
    {"dropped", {.dropout = 0.25f, .seed = 0x123456789abcdef, .site = 24, .first_head = 3}},
    {"all_terms",
     {.softcap = 2.5f, .alibi_heads = 6, .dropout = 0.1f, .seed = 5, .site = 8, .first_head = 2}}};

struct Shape {
  int64_t batch, sequence, heads, kv_heads, head_dim, window;
};

// The places of as many tokens of each sequence, here fewer than there are rows.
TensorShape PlacesOf(const Shape& s, const ScoreTerms& terms) {
  return terms.dropout == 0 ? TensorShape() : Dense(DType::kI32, {3 * s.batch, 2});
}

std::string NameOf(const Form& form, const Shape& s, const Terms& terms,
                   MatmulPrecision precision) {
  return form.name + "_" + Text(s.sequence) + "x" + Text(s.head_dim) + "_" + terms.name +
         Suffix(precision);
}

void AddWhole(const Form& form, const Shape& s, const Terms& terms, MatmulPrecision precision,
              CaseList* list) {
  const TensorShape q = form.Act({s.batch * s.sequence, s.heads, s.head_dim});
  const TensorShape k = form.Act({s.batch * s.sequence, s.kv_heads, s.head_dim});
  list->Add(Op::kAttention, NameOf(form, s, terms, precision),
            AttentionAttrs{.sequence = s.sequence,
                           .window = s.window,
                           .scale = 0.25f,
                           .precision = precision,
                           .terms = terms.terms},
            {q, k, k, q, Dense(kF32, {s.batch, s.heads, s.sequence}),
             Dense(DType::kI32, {s.batch * s.sequence}), PlacesOf(s, terms.terms)});
}

struct Block {
  std::string name;
  TokenShare share;
  int64_t step;
  bool accumulate;
};

// Pieces start at any position: here at 65 and others that are no multiple of 8.
void AddBlock(const Form& form, const Shape& s, const Block& block, const Terms& terms,
              MatmulPrecision precision, CaseList* list) {
  const TensorShape q = form.Act({s.batch * s.sequence, s.heads, s.head_dim});
  const TensorShape k = form.Act({s.batch * s.sequence, s.kv_heads, s.head_dim});
  list->Add(Op::kAttentionBlock, NameOf(form, s, terms, precision) + "_" + block.name,
            AttentionBlockAttrs{.sequence = s.sequence,
                                .window = s.window,
                                .scale = 0.25f,
                                .precision = precision,
                                .context = block.share,
                                .step = block.step,
                                .accumulate = block.accumulate,
                                .terms = terms.terms},
            {q, k, k, form.Of(kF32, {s.batch * s.sequence, s.heads, s.head_dim}),
             Dense(kF32, {s.batch, s.heads, s.sequence}), TensorShape(), PlacesOf(s, terms.terms)});
}

void AddCached(const Form& form, const Shape& s, int64_t kept, const Terms& terms,
               MatmulPrecision precision, CaseList* list) {
  if (terms.terms.dropout != 0) return;
  const TensorShape q = form.Act({s.batch * s.sequence, s.heads, s.head_dim});
  const TensorShape k = form.Act({s.batch * s.sequence, s.kv_heads, s.head_dim});
  const TensorShape keys = Dense(form.dtype, {s.batch, kept, s.kv_heads, s.head_dim});
  list->Add(Op::kAttentionCached, NameOf(form, s, terms, precision),
            AttentionAttrs{.sequence = s.sequence,
                           .window = s.window,
                           .scale = 0.25f,
                           .precision = precision,
                           .terms = terms.terms},
            {q, k, k, keys, keys, Dense(DType::kI32, {s.batch, 2}), q});
}

}  // namespace

void AddScoreTerms(const Form& form, CaseList* list) {
  if (form.gap > 0) return;
  const Block blocks[] = {{"earlier", {.ranks = 3, .index = 2}, 1, true},
                          {"zigzag_own", {.ranks = 2, .index = 1, .zigzag = true}, 0, false}};
  for (const Terms& terms : kTerms) {
    for (const MatmulPrecision precision : {MatmulPrecision::kF32, FastOf(form.dtype)}) {
      AddWhole(form, {2, 9, 2, 1, 8, 0}, terms, precision, list);
      AddWhole(form, {1, 150, 2, 2, 24, 70}, terms, precision, list);
      AddBlock(form, {1, 65, 2, 1, 16, 0}, blocks[0], terms, precision, list);
      AddBlock(form, {2, 42, 2, 2, 16, 0}, blocks[1], terms, precision, list);
      AddCached(form, {3, 2, 2, 1, 24, 0}, 150, terms, precision, list);
      AddCached(form, {2, 37, 2, 2, 24, 50}, 90, terms, precision, list);
    }
  }
}

}  // namespace terrace::kernels::conformance
