// The cases of ops that only split layouts need, and of the split forms of other ops.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_case_list.h"

namespace terrace::kernels::conformance {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kI32 = DType::kI32;
const TensorShape kAbsent;

std::string Text(int64_t value) { return std::to_string(value); }

void AddShards(const Form& form, CaseList* list) {
  for (int64_t shard : {0, 1, 2}) {
    list->Add(Op::kEmbedding, form.name + "_shard" + Text(shard),
              EmbeddingAttrs{.shard_rows = 17, .shard = shard},
              {Dense(kI32, {80}), Dense(kF32, {17, 40}), kAbsent, form.Act({80, 40})});
  }
  list->Add(Op::kEmbedding, form.name + "_shard_positions",
            EmbeddingAttrs{.sequence = 20, .shard_rows = 17},
            {Dense(kI32, {80}), Dense(kF32, {17, 40}), Dense(kF32, {20, 40}), form.Act({80, 40})});
  if (form.dtype == kF32) return;
  list->Add(Op::kEmbedding, form.name + "_short_tables", EmbeddingAttrs{.sequence = 20},
            {Dense(kI32, {80}), Dense(form.dtype, {17, 40}), Dense(form.dtype, {20, 40}),
             form.Act({80, 40})});
}

void AddShares(const Form& form, CaseList* list) {
  for (const TokenShare& share :
       {TokenShare{.ranks = 3, .index = 1}, TokenShare{.ranks = 3, .index = 2, .zigzag = true}}) {
    const std::string suffix = form.name + (share.zigzag ? "_zigzag" : "_share");
    list->Add(Op::kEmbedding, suffix, EmbeddingAttrs{.sequence = 10, .context = share},
              {Dense(kI32, {40}), Dense(kF32, {9, 24}), Dense(kF32, {30, 24}), form.Act({40, 24})});
    list->Add(Op::kEmbedding, suffix + "_documents",
              EmbeddingAttrs{.sequence = 10, .context = share},
              {Dense(kI32, {40}), Dense(kF32, {9, 24}), Dense(kF32, {30, 24}), form.Act({40, 24}),
               Dense(kI32, {40})});
    list->Add(Op::kRope, suffix, RopeAttrs{.sequence = 10, .context = share},
              {form.Act({40, 2, 16}), Dense(kF32, {32, 16})});
  }
}

struct BlockShape {
  int64_t batch, sequence, heads, kv_heads, head_dim, window;
};
struct Block {
  std::string name;
  TokenShare share;
  int64_t step;
  bool accumulate;
};

const Block kBlocks[] = {{"alone", {}, 0, false},
                         {"own", {.ranks = 3, .index = 2}, 0, false},
                         {"earlier", {.ranks = 3, .index = 2}, 1, true},
                         {"later", {.ranks = 3, .index = 0}, 1, true},
                         {"later_written", {.ranks = 3, .index = 0}, 2, false},
                         {"zigzag_own", {.ranks = 2, .index = 1, .zigzag = true}, 0, true},
                         {"zigzag_earlier", {.ranks = 2, .index = 1, .zigzag = true}, 1, true},
                         {"zigzag_later", {.ranks = 2, .index = 0, .zigzag = true}, 1, false}};

void AddBlocks(const Form& form, CaseList* list) {
  const BlockShape shapes[] = {{2, 10, 2, 1, 8, 0}, {1, 74, 4, 2, 32, 0}, {2, 66, 2, 2, 40, 30}};
  for (const BlockShape& s : shapes) {
    const TensorShape q = form.Act({s.batch * s.sequence, s.heads, s.head_dim});
    const TensorShape k = form.Act({s.batch * s.sequence, s.kv_heads, s.head_dim});
    const TensorShape o = form.Of(kF32, {s.batch * s.sequence, s.heads, s.head_dim});
    for (const Block& block : kBlocks) {
      for (MatmulPrecision precision : {MatmulPrecision::kF32, FastOf(form.dtype)}) {
        const AttentionBlockAttrs attrs = {.sequence = s.sequence,
                                           .window = s.window,
                                           .scale = 0.25f,
                                           .precision = precision,
                                           .context = block.share,
                                           .step = block.step,
                                           .accumulate = block.accumulate};
        list->Add(Op::kAttentionBlock,
                  form.name + "_" + Text(s.sequence) + "_" + block.name +
                      (precision != MatmulPrecision::kF32 ? "_fast" : ""),
                  attrs, {q, k, k, o, Dense(kF32, {s.batch, s.heads, s.sequence})});
        list->Add(Op::kAttentionBlock,
                  form.name + "_" + Text(s.sequence) + "_" + block.name + "_documents" +
                      (precision != MatmulPrecision::kF32 ? "_fast" : ""),
                  attrs,
                  {q, k, k, o, Dense(kF32, {s.batch, s.heads, s.sequence}),
                   Dense(kI32, {s.batch * s.sequence})});
      }
    }
  }
}

// Logits are f32 whatever the activations are: only the gaps of a form matter.
void AddCrossEntropy(const Form& form, CaseList* list) {
  if (form.dtype != kF32) return;
  struct Shape {
    int64_t rows, shard_rows, shard, shards, vocabulary;
  };
  const auto add = [&](const Shape& s, const LossTerms& terms) {
    const CrossEntropyAttrs attrs = {
        .shard_rows = s.shard_rows, .shard = s.shard, .vocabulary = s.vocabulary, .terms = terms};
    const std::string suffix = form.name + "_" + Text(s.shard_rows) + "x" + Text(s.shards) +
                               (terms == LossTerms() ? "" : "_terms") +
                               (terms.softcap > 0 ? "_capped" : "");
    const TensorShape logits = form.Act({s.rows, s.shard_rows});
    const TensorShape targets = Dense(kI32, {s.rows});
    const TensorShape rows = Dense(kF32, {s.shards, s.rows, 3});
    list->Add(Op::kCrossEntropyRows, suffix, attrs, {logits, targets, Dense(kF32, {s.rows, 3})});
    list->Add(Op::kCrossEntropyGrad, suffix, attrs, {targets, rows, logits, kAbsent, kAbsent});
    list->Add(Op::kCrossEntropyGrad, suffix + "_scaled", attrs,
              {targets, rows, logits, Dense(kF32, {4}), kAbsent});
    list->Add(Op::kCrossEntropyGrad, suffix + "_weighted", attrs,
              {targets, rows, logits, Dense(kF32, {4}), Dense(kF32, {s.rows})});
    if (form.gap > 0) return;
    for (bool accumulate : {false, true}) {
      CrossEntropyAttrs loss = attrs;
      loss.accumulate = accumulate;
      list->Add(Op::kCrossEntropyLoss, suffix + (accumulate ? "_acc" : ""), loss,
                {targets, rows, Dense(kF32, {2}), accumulate ? Dense(kF32, {s.rows}) : kAbsent});
    }
  };
  for (const Shape& s : {Shape{5, 7, 0, 1, 7}, Shape{130, 300, 1, 3, 850}, Shape{40, 66, 2, 3, 151},
                         Shape{9, 20, 3, 4, 50}}) {
    add(s, {});
    add(s, {.label_smoothing = 0.1f, .z_loss = 1e-2f});
    add(s, {.label_smoothing = 0.1f, .z_loss = 1e-2f, .softcap = 1.5f});
  }
}

void AddResiduals(const Form& form, CaseList* list) {
  for (const auto& [n, d] : {std::pair<int64_t, int64_t>{3, 7}, {300, 173}}) {
    const TensorShape x = form.Act({n, d}), bias = Dense(kF32, {d});
    const std::string suffix = form.name + "_" + Text(n) + "x" + Text(d);
    list->Add(Op::kAddResidual, suffix, NoAttrs{}, {x, x, bias, x});
    list->Add(Op::kAddResidual, suffix + "_bias", NoAttrs{}, {x, kAbsent, bias, x});
    list->Add(Op::kAddResidual, suffix + "_residual", NoAttrs{}, {x, x, kAbsent, x});
    list->Add(Op::kAddResidual, suffix + "_from_f32", NoAttrs{},
              {form.Of(kF32, {n, d}), x, bias, x});
    list->Add(Op::kAddResidual, suffix + "_over_x", NoAttrs{}, {x, x, bias, x}).shared = {{3, 0}};
    list->Add(Op::kAddResidual, suffix + "_over_residual", NoAttrs{}, {x, x, bias, x}).shared = {
        {3, 1}};
  }
}

void AddPermutes(const Form& form, CaseList* list) {
  if (form.gap > 0) return;
  for (const Sizes& size : {Sizes{2, 3, 5, 7}, Sizes{4, 16, 9, 65}}) {
    for (const std::array<int32_t, 4>& order : {std::array<int32_t, 4>{0, 1, 2, 3},
                                                {1, 0, 2, 3},
                                                {0, 2, 1, 3},
                                                {0, 1, 3, 2},
                                                {2, 3, 0, 1},
                                                {3, 1, 0, 2}}) {
      Sizes to;
      std::string suffix = form.name + "_" + Text(size[0]) + "_";
      for (int32_t d : order) {
        to.push_back(size[d]);
        suffix += Text(d);
      }
      list->Add(Op::kPermute, suffix, PermuteAttrs{.order = order},
                {Dense(form.dtype, size), Dense(form.dtype, to)});
    }
  }
}

}  // namespace

void AddLayoutCases(const Form& form, CaseList* list) {
  AddShards(form, list);
  AddShares(form, list);
  AddBlocks(form, list);
  AddCrossEntropy(form, list);
  AddResiduals(form, list);
  AddPermutes(form, list);
}

}  // namespace terrace::kernels::conformance
