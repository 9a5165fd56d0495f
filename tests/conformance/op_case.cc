// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_case.h"

#include <utility>

#include "tests/conformance/op_case_list.h"

namespace terrace::kernels::conformance {
namespace {

using Source = GradientOperand::Source;

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;
constexpr DType kI32 = DType::kI32;

const TensorShape kAbsent;

const Form kForms[] = {
    {"f32", kF32, 0},         {"bf16", kBF16, 0},          {"f16", kF16, 0},
    {"f32_strided", kF32, 5}, {"bf16_strided", kBF16, 24}, {"f16_strided", kF16, 24}};

void AddEmbedding(const Form& form, CaseList* list) {
  list->Add(Op::kEmbedding, form.name + "_small", EmbeddingAttrs{},
            {Dense(kI32, {7}), Dense(kF32, {11, 5}), kAbsent, form.Act({7, 5})});
  list->Add(
      Op::kEmbedding, form.name + "_positions", EmbeddingAttrs{.sequence = 60},
      {Dense(kI32, {600}), Dense(kF32, {50, 192}), Dense(kF32, {64, 192}), form.Act({600, 192})});
  list->Add(Op::kEmbedding, form.name + "_documents", EmbeddingAttrs{.sequence = 60},
            {Dense(kI32, {600}), Dense(kF32, {50, 48}), Dense(kF32, {60, 48}), form.Act({600, 48}),
             Dense(kI32, {600})});
}

void AddNorms(const Form& form, CaseList* list) {
  for (const auto& [n, d] : {std::pair<int64_t, int64_t>{3, 7}, {70, 48}, {500, 200}}) {
    const std::string suffix = form.name + "_" + Text(n) + "x" + Text(d);
    const TensorShape x = form.Act({n, d});
    const TensorShape weight = Dense(kF32, {d});
    const TensorShape statistic = Dense(kF32, {n});
    list->Add(Op::kRmsNorm, suffix, NormAttrs{}, {x, weight, x, statistic});
    list->Add(Op::kLayerNorm, suffix, NormAttrs{}, {x, weight, weight, x, statistic, statistic});
    if (n == 500) continue;  // one form with many rows is enough, for the threads
    list->Add(Op::kLayerNorm, suffix + "_no_bias", NormAttrs{.epsilon = 1e-3f},
              {x, weight, kAbsent, x, statistic, statistic});
  }
  const TensorShape heads = form.Act({200, 4, 64});
  list->Add(Op::kRmsNorm, form.name + "_heads", NormAttrs{.epsilon = 1e-6f},
            {heads, Dense(kF32, {64}), heads, Dense(kF32, {200, 4})});
  const TensorShape rows = form.Act({70, 48});
  list->Add(Op::kRmsNorm, form.name + "_unit_offset", NormAttrs{.unit_offset = true},
            {rows, Dense(kF32, {48}), rows, Dense(kF32, {70})});
}

const std::pair<const char*, Activation> kActivations[] = {{"_tanh", Activation::kGeluTanh},
                                                           {"_erf", Activation::kGelu},
                                                           {"_relu", Activation::kRelu},
                                                           {"_silu", Activation::kSilu}};

void AddActivations(const Form& form, CaseList* list) {
  const Sizes sizes[] = {{3, 7}, {300, 173}, {5, 3, 70}, {70001}};
  for (const Sizes& size : sizes) {
    const TensorShape x = form.Act(size);
    std::string suffix = form.name;
    for (int64_t s : size) suffix += "_" + Text(s);
    for (const auto& [name, activation] : kActivations) {
      const ActivationAttrs attrs = {activation};
      list->Add(Op::kGelu, suffix + name, attrs, {x, x});
      if (size.size() == 2) list->Add(Op::kSwiglu, suffix + name, attrs, {x, x, x});
    }
  }
  const TensorShape x = form.Act({40, 50});
  list->Add(Op::kGelu, form.name + "_in_place", ActivationAttrs{}, {x, x}).shared = {{1, 0}};
}

void AddRope(const Form& form, CaseList* list) {
  for (bool inverse : {false, true}) {
    const std::string suffix = form.name + (inverse ? "_inverse" : "");
    list->Add(Op::kRope, suffix + "_small", RopeAttrs{.sequence = 5, .inverse = inverse},
              {form.Act({10, 3, 6}), Dense(kF32, {5, 6})});
    list->Add(Op::kRope, suffix, RopeAttrs{.sequence = 100, .inverse = inverse},
              {form.Act({300, 4, 64}), Dense(kF32, {128, 64})});
    list->Add(Op::kRope, suffix + "_partial", RopeAttrs{.sequence = 100, .inverse = inverse},
              {form.Act({300, 4, 64}), Dense(kF32, {128, 16})});
    list->Add(Op::kRope, suffix + "_odd_part", RopeAttrs{.sequence = 5, .inverse = inverse},
              {form.Act({10, 3, 7}), Dense(kF32, {5, 4})});
  }
}

void AddAttention(const Form& form, CaseList* list) {
  struct Shape {
    int64_t batch, sequence, heads, kv_heads, head_dim, window;
  };
  const Shape shapes[] = {{2, 9, 2, 1, 8, 0}, {2, 130, 4, 2, 64, 0}, {1, 200, 2, 2, 32, 17}};
  for (const Shape& s : shapes) {
    for (MatmulPrecision precision : {MatmulPrecision::kF32, FastOf(form.dtype)}) {
      const AttentionAttrs attrs = {
          .sequence = s.sequence, .window = s.window, .scale = 0.25f, .precision = precision};
      const TensorShape q = form.Act({s.batch * s.sequence, s.heads, s.head_dim});
      const TensorShape k = form.Act({s.batch * s.sequence, s.kv_heads, s.head_dim});
      list->Add(Op::kAttention,
                form.name + "_" + Text(s.sequence) + "x" + Text(s.head_dim) + Suffix(precision),
                attrs, {q, k, k, q, Dense(kF32, {s.batch, s.heads, s.sequence})});
      list->Add(Op::kAttention,
                form.name + "_" + Text(s.sequence) + "x" + Text(s.head_dim) + "_documents" +
                    Suffix(precision),
                attrs,
                {q, k, k, q, Dense(kF32, {s.batch, s.heads, s.sequence}),
                 Dense(kI32, {s.batch * s.sequence})});
    }
  }
}

// Few new tokens, which are computed one by one, and many; more kept than one block of keys.
void AddAttentionCached(const Form& form, CaseList* list) {
  struct Shape {
    int64_t batch, sequence, kept, heads, kv_heads, head_dim, window;
  };
  const Shape shapes[] = {{3, 1, 150, 4, 2, 64, 0},   {4, 3, 70, 34, 2, 9, 0},
                          {1, 4, 300, 2, 2, 80, 100}, {3, 40, 90, 4, 1, 32, 0},
                          {1, 130, 700, 2, 1, 64, 0}, {3, 37, 200, 2, 2, 24, 50}};
  for (const Shape& s : shapes) {
    for (MatmulPrecision precision : {MatmulPrecision::kF32, FastOf(form.dtype)}) {
      const TensorShape q = form.Act({s.batch * s.sequence, s.heads, s.head_dim});
      const TensorShape k = form.Act({s.batch * s.sequence, s.kv_heads, s.head_dim});
      const TensorShape kept = Dense(form.dtype, {s.batch, s.kept, s.kv_heads, s.head_dim});
      list->Add(
          Op::kAttentionCached,
          form.name + "_" + Text(s.sequence) + "of" + Text(s.kept) + Suffix(precision),
          AttentionAttrs{
              .sequence = s.sequence, .window = s.window, .scale = 0.25f, .precision = precision},
          {q, k, k, kept, kept, Dense(kI32, {s.batch, 2}), q});
    }
  }
}

void AddLoss(const Form& form, CaseList* list) {
  struct Shape {
    int64_t tokens, hidden, vocab, chunk_rows;
  };
  for (const Shape& s : {Shape{5, 7, 13, 2}, Shape{130, 64, 300, 64}, Shape{96, 40, 256, 1000}}) {
    for (MatmulPrecision precision :
         {MatmulPrecision::kF32, FastOf(form.dtype), MatmulPrecision::kTF32}) {
      if (precision == MatmulPrecision::kTF32 && form.dtype != kF32) continue;
      list->Add(Op::kLmHeadLoss,
                form.name + "_" + Text(s.tokens) + "x" + Text(s.vocab) + Suffix(precision),
                LossAttrs{.chunk_rows = s.chunk_rows, .precision = precision},
                {form.Act({s.tokens, s.hidden}), Dense(kF32, {s.vocab, s.hidden}),
                 Dense(kI32, {s.tokens}), Dense(kF32, {2}), kAbsent});
    }
    // Strong terms where products do not round, ordinary ones where they do.
    for (const LossTerms& terms :
         {LossTerms{.label_smoothing = 0.1f}, LossTerms{.label_smoothing = 0.2f, .z_loss = 1e-2f},
          LossTerms{.softcap = 6.0f},
          LossTerms{.label_smoothing = 0.2f, .z_loss = 1e-2f, .softcap = 8.0f}}) {
      const MatmulPrecision precision =
          terms.z_loss > 0 ? MatmulPrecision::kF32 : FastOf(form.dtype);
      list->Add(Op::kLmHeadLoss,
                form.name + "_" + Text(s.tokens) + "x" + Text(s.vocab) +
                    (terms.label_smoothing > 0 ? "_smoothed" : "") +
                    (terms.z_loss > 0 ? "_z" : "") + (terms.softcap > 0 ? "_capped" : ""),
                LossAttrs{.chunk_rows = s.chunk_rows, .precision = precision, .terms = terms},
                {form.Act({s.tokens, s.hidden}), Dense(kF32, {s.vocab, s.hidden}),
                 Dense(kI32, {s.tokens}), Dense(kF32, {2}), Dense(kF32, {s.tokens})});
    }
    if (form.dtype == kF32) continue;
    list->Add(Op::kLmHeadLoss,
              form.name + "_" + Text(s.tokens) + "x" + Text(s.vocab) + "_short_weight",
              LossAttrs{.chunk_rows = s.chunk_rows, .precision = FastOf(form.dtype)},
              {form.Act({s.tokens, s.hidden}), Dense(form.dtype, {s.vocab, s.hidden}),
               Dense(kI32, {s.tokens}), Dense(kF32, {2}), Dense(kF32, {s.tokens})});
  }
}

// Whole, with rows and with columns split over ranks, whose parts need not begin on a block of
// random bits; in place, and added to what is there.
void AddDropout(const Form& form, CaseList* list) {
  const TensorShape x = form.Act({57, 2100});
  const TensorShape tokens = Dense(kI32, {57, 2});
  const DropoutAttrs attrs = {.probability = 0.1f, .seed = 77, .site = 3};
  list->Add(Op::kDropout, form.name, attrs, {x, tokens, x});
  list->Add(Op::kDropout, form.name + "_in_place", attrs, {x, tokens, x}).shared = {{2, 0}};
  DropoutAttrs more = attrs;
  more.accumulate = true;
  more.probability = 0.5f;
  list->Add(Op::kDropout, form.name + "_acc", more, {x, tokens, x});
  DropoutAttrs rows = attrs;
  rows.row_shards = 3;
  rows.shard = 2;
  list->Add(Op::kDropout, form.name + "_rows", rows, {x, Dense(kI32, {171, 2}), x});
  DropoutAttrs columns = attrs;
  columns.column_shards = 4;
  columns.shard = 1;
  columns.site = 4;
  list->Add(Op::kDropout, form.name + "_columns", columns,
            {form.Act({31, 77}), Dense(kI32, {31, 2}), form.Act({31, 77})});
  list->Add(Op::kDropout, form.name + "_none", DropoutAttrs{.seed = 1},
            {form.Act({3, 5}), Dense(kI32, {3, 2}), form.Act({3, 5})});
}

void AddCopies(const Form& form, CaseList* list) {
  list->Add(Op::kGatherRows, form.name, NoAttrs{},
            {form.Act({90, 70}), Dense(kI32, {1000}), form.Act({1000, 70})});
  for (DType to : {kF32, kBF16, kF16}) {
    const std::string suffix = form.name + "_to_" + std::string(Name(to));
    const TensorShape x = form.Act({123, 457});
    TensorShape y = x;
    y.dtype = to;
    list->Add(Op::kCast, suffix, NoAttrs{}, {x, y});
    list->Add(Op::kAdd, suffix, NoAttrs{}, {x, y});
    list->Add(Op::kCast, suffix + "_flat", NoAttrs{}, {form.Act({999}), Dense(to, {999})});
  }
  for (const Format format :
       {Format::kInt8Linear, Format::kFP8, Format::kInt4Linear, Format::kNF4}) {
    for (const auto& [count, block] :
         {std::pair<int64_t, int64_t>{1024, 128}, {70001, 256}, {999, 16}}) {
      const int64_t packed = RowOf(format).packed, n = count / packed * packed;
      const std::string suffix = form.name + "_" + std::string(RowOf(format).name) + "_" + Text(n) +
                                 "_block_" + Text(block);
      const BlockAttrs attrs = {.format = format, .block = block};
      const TensorShape x = Dense(form.dtype, {n}), codes = Dense(DType::kU8, {n / packed});
      const TensorShape scales = Dense(kF32, {(n + block - 1) / block});
      if (form.gap > 0) continue;
      list->Add(Op::kEncodeBlocks, suffix, attrs, {x, codes, scales, {}});
      for (const DType residual : {kF32, kBF16}) {
        list->Add(Op::kEncodeBlocks, suffix + "_residual_" + std::string(Name(residual)), attrs,
                  {x, codes, scales, Dense(residual, {n})});
      }
      list->Add(Op::kDecodeBlocks, suffix, attrs, {codes, scales, x});
      for (const int64_t runs : {2, 4}) {
        BlockAttrs by_part = attrs;
        by_part.runs = runs;
        by_part.parts = 3;
        const int64_t whole = 5 * runs * by_part.parts * block;
        list->Add(Op::kEncodeBlocks, suffix + "_in_" + Text(runs) + "_runs", by_part,
                  {Dense(form.dtype, {whole}), Dense(DType::kU8, {whole / packed}),
                   Dense(kF32, {whole / block}), runs > 2 ? TensorShape() : Dense(kF32, {whole})});
      }
      for (const int64_t parts : {1, 3}) {
        list->Add(
            Op::kSumBlocks, suffix + "_parts_" + Text(parts), attrs,
            {Dense(DType::kU8, {parts, n / packed}), Dense(kF32, {parts, scales.size[0]}), x});
      }
    }
  }
  list->Add(Op::kScale, form.name, ScaleAttrs{.scale = 1.7f}, {form.Act({211, 333})});
  for (const float softcap : {0.7f, 30.0f}) {  // far above what caps, and below
    const ScaleAttrs attrs = {.scale = softcap};
    const std::string name = form.name + (softcap > 1 ? "_wide" : "");
    list->Add(Op::kSoftcap, name, attrs, {form.Act({211, 333}), form.Act({211, 333})});
    list->Add(Op::kSoftcap, name + "_in_place", attrs, {form.Act({40, 50}), form.Act({40, 50})})
        .shared = {{1, 0}};
  }
  AddDropout(form, list);
  list->Add(Op::kFill, form.name, FillAttrs{.value = 0.375f}, {form.Act({211, 333})});
  list->Add(Op::kFill, form.name + "_zero", FillAttrs{}, {form.Act({3, 5, 7})});
}

// Ops of the optimizer step, which know no activation types.
void AddStepOps(CaseList* list) {
  for (DType dtype : {kF32, kBF16, kF16}) {
    for (const Sizes& size : {Sizes{1}, Sizes{200003}, Sizes{300, 257}}) {
      list->Add(Op::kSquaredNorm,
                std::string(Name(dtype)) + "_" + Text(size.size()) + "d_" + Text(size[0]),
                ScaleAttrs{.scale = size.size() == 2 ? 0.25f : 1.0f},
                {Dense(dtype, size), Dense(kF32, {1})});
    }
  }
  for (int64_t n : {1, 37}) {
    list->Add(Op::kSum, Text(n), NoAttrs{}, {Dense(kF32, {n}), Dense(kF32, {1})});
    list->Add(Op::kSumStats, Text(n), NoAttrs{}, {Dense(kF32, {n, 2}), Dense(kF32, {2})});
    for (const auto& [name, clip] :
         {std::pair<std::string, float>{"off", 0.0f}, {"tight", 1e-3f}, {"loose", 1e6f}}) {
      list->Add(Op::kGradScale, Text(n) + "_clip_" + name, ClipAttrs{.clip_grad_norm = clip},
                {Dense(kF32, {n}), Dense(kF32, {2}), Dense(kF32, {4}), kAbsent});
      list->Add(Op::kGradScale, Text(n) + "_scaled_clip_" + name, ClipAttrs{.clip_grad_norm = clip},
                {Dense(kF32, {n}), Dense(kF32, {2}), Dense(kF32, {4}), Dense(kF32, {4})});
    }
  }
}

void AddPreference(CaseList* list) {
  for (const int64_t pairs : {1, 5}) {
    for (const bool accumulate : {false, true}) {
      const PreferenceAttrs attrs = {.sequence = 37,
                                     .beta = accumulate ? 0.5f : 0.1f,
                                     .label_smoothing = accumulate ? 0.2f : 0.0f,
                                     .accumulate = accumulate};
      const TensorShape tokens = Dense(kF32, {2 * pairs * attrs.sequence});
      list->Add(Op::kPreferenceLoss, Text(pairs) + (accumulate ? "_acc" : ""), attrs,
                {tokens, tokens, tokens, Dense(kF32, {2}), Dense(kF32, {2})});
    }
  }
}

OpAttrs GradientAttrs(const GradientRule& rule, const OpCase& forward, bool accumulate) {
  if (rule.gradient == Op::kBiasGrad) return AccumulateAttrs{.accumulate = accumulate};
  OpAttrs attrs = forward.attrs;
  if (auto* norm = std::get_if<NormAttrs>(&attrs)) norm->accumulate = accumulate;
  if (auto* loss = std::get_if<LossAttrs>(&attrs)) loss->accumulate = accumulate;
  if (auto* block = std::get_if<AttentionBlockAttrs>(&attrs)) {
    block->accumulate = block->accumulate_keys = accumulate;
  }
  if (auto* rope = std::get_if<RopeAttrs>(&attrs)) rope->inverse = !rope->inverse;
  return attrs;
}

bool HasGradient(const GradientRule& rule, const OpCase& forward) {
  const auto* dropout = std::get_if<DropoutAttrs>(&forward.attrs);
  if (dropout != nullptr && dropout->accumulate) return false;
  if (rule.gradient != Op::kBiasGrad) return true;
  const auto& matmul = std::get<MatmulAttrs>(forward.attrs);
  return !forward.operands[3].absent() && matmul.epilogue == Epilogue::kNone;
}

// The forward op writes o as f32, the gradient op reads it and do as activations and writes f32.
void TypesOfBlockGrad(DType activation, OpCase* gradient) {
  for (int i : {3, 5}) gradient->operands[i].dtype = activation;
  for (int i : {6, 7, 8}) gradient->operands[i].dtype = kF32;
}

// The type of tables' and the LM head's gradients, whatever type these have.
void TypeOfWeightGrads(DType dtype, OpCase* gradient) {
  if (gradient->op != Op::kEmbeddingGrad && gradient->op != Op::kLmHeadLossGrad) return;
  const int first = gradient->op == Op::kEmbeddingGrad ? 2 : 5;
  const int end = gradient->op == Op::kEmbeddingGrad ? 4 : 6;
  for (int i = first; i < end; ++i) {
    if (!gradient->operands[i].absent()) gradient->operands[i].dtype = dtype;
  }
}

OpCase GradientOf(const GradientRule& rule, const std::shared_ptr<const OpCase>& forward,
                  bool accumulate) {
  OpCase gradient = {.name = std::string(Name(rule.gradient)) + "_of_" + forward->name +
                             (accumulate ? "_acc" : ""),
                     .op = rule.gradient,
                     .attrs = GradientAttrs(rule, *forward, accumulate),
                     .forward = forward};
  for (const GradientOperand& operand : rule.operands) {
    gradient.operands.push_back(
        operand.source == Source::kOwn ? kAbsent : forward->operands[operand.forward]);
  }
  if (rule.gradient == Op::kAttentionBlockGrad)
    TypesOfBlockGrad(forward->operands[0].dtype, &gradient);
  TypeOfWeightGrads(kF32, &gradient);
  return gradient;
}

// The gradient with a residual, apart and in place of dx; and with dx in place of dy.
void AddResidualForms(const OpCase& plain, int residual, int dx, CaseList* list) {
  OpCase with_residual = plain;
  with_residual.name += "_residual";
  with_residual.operands[residual] = plain.operands[dx];
  list->Add(with_residual);
  with_residual.name += "_in_place";
  with_residual.shared = {{residual, dx}};
  list->Add(with_residual);
  OpCase over_dy = plain;
  over_dy.name += "_over_dy";
  over_dy.shared = {{0, dx}};
  list->Add(over_dy);
}

// Of a table or head that is not trained. What is left of an embedding's is that of positions.
void AddFrozenForms(const OpCase& gradient, int weight, CaseList* list) {
  OpCase frozen = gradient;
  frozen.name += "_frozen";
  frozen.operands[weight] = kAbsent;
  list->Add(frozen);
  if (gradient.op != Op::kEmbeddingGrad) return;
  frozen.name += "_in_bf16";
  TypeOfWeightGrads(kBF16, &frozen);
  list->Add(frozen);
}

void AddVariants(const OpCase& gradient, CaseList* list) {
  const auto in_place = [&](std::vector<SharedMemory> shared) {
    OpCase variant = gradient;
    variant.name += "_in_place";
    variant.shared = std::move(shared);
    list->Add(variant);
  };
  if (gradient.op == Op::kLayerNormGrad) AddResidualForms(gradient, 5, 6, list);
  if (gradient.op == Op::kRmsNormGrad) AddResidualForms(gradient, 4, 5, list);
  if (gradient.op == Op::kGeluGrad && gradient.forward->shared.empty()) in_place({{2, 0}});
  if (gradient.op == Op::kSwigluGrad) in_place({{3, 1}, {4, 2}});
  if (gradient.op == Op::kEmbeddingGrad || gradient.op == Op::kLmHeadLossGrad) {
    OpCase rounded = gradient;
    rounded.name += "_in_bf16";
    TypeOfWeightGrads(kBF16, &rounded);
    list->Add(rounded);
  }
  if (gradient.op == Op::kEmbeddingGrad && !gradient.operands[3].absent())
    AddFrozenForms(gradient, 2, list);
  if (gradient.op == Op::kLmHeadLossGrad) AddFrozenForms(gradient, 5, list);
  if (gradient.op == Op::kLmHeadLossGrad) {
    OpCase scaled = gradient;
    scaled.name += "_scaled";
    scaled.operands[6] = Dense(kF32, {4});
    list->Add(scaled);
    scaled.name += "_weighted";
    scaled.operands[7] = Dense(kF32, {gradient.operands[0].rows()});
    list->Add(scaled);
  }
  if (gradient.op == Op::kAttentionBlockGrad) {
    OpCase keys_only = gradient;
    keys_only.name += "_acc_keys";
    std::get<AttentionBlockAttrs>(keys_only.attrs).accumulate_keys = true;
    list->Add(keys_only);
  }
}

std::vector<OpCase> ForwardCases() {
  CaseList list;
  for (const Form& form : kForms) {
    AddEmbedding(form, &list);
    AddNorms(form, &list);
    AddProducts(form, &list);
    AddActivations(form, &list);
    AddRope(form, &list);
    AddAttention(form, &list);
    AddAttentionCached(form, &list);
    AddScoreTerms(form, &list);
    AddLoss(form, &list);
    AddCopies(form, &list);
    AddLayoutCases(form, &list);
  }
  AddTiledAttention(&list);
  AddStepOps(&list);
  AddPreference(&list);
  AddUpdates(&list);
  return list.Take();
}

GradientOperand Forward(int i) { return {Source::kForward, i}; }
GradientOperand Seed(int i) { return {Source::kSeed, i}; }
GradientOperand Derivative(int i) { return {Source::kDerivative, i}; }

const std::vector<GradientRule>& GradientRules() {
  static const std::vector<GradientRule> rules = {
      {Op::kEmbedding,
       Op::kEmbeddingGrad,
       {Forward(0), Seed(3), Derivative(1), Derivative(2), Forward(4)}},
      {Op::kLayerNorm,
       Op::kLayerNormGrad,
       {Seed(3),
        Forward(0),
        Forward(1),
        Forward(4),
        Forward(5),
        {},
        Derivative(0),
        Derivative(1),
        Derivative(2)}},
      {Op::kRmsNorm,
       Op::kRmsNormGrad,
       {Seed(2), Forward(0), Forward(1), Forward(3), {}, Derivative(0), Derivative(1)}},
      {Op::kMatmul, Op::kBiasGrad, {Seed(2), Derivative(3)}},
      {Op::kGelu, Op::kGeluGrad, {Seed(1), Forward(0), Derivative(0)}},
      {Op::kSwiglu,
       Op::kSwigluGrad,
       {Seed(2), Forward(0), Forward(1), Derivative(0), Derivative(1)}},
      {Op::kRope, Op::kRope, {{Source::kSeedDerivative, 0}, Forward(1)}},
      {Op::kDropout, Op::kDropout, {Seed(2), Forward(1), Derivative(0)}},
      {Op::kAttention,
       Op::kAttentionGrad,
       {Forward(0), Forward(1), Forward(2), Forward(3), Forward(4), Seed(3), Derivative(0),
        Derivative(1), Derivative(2), Forward(5), Forward(6)}},
      {Op::kAttentionBlock,
       Op::kAttentionBlockGrad,
       {Forward(0), Forward(1), Forward(2), Forward(3), Forward(4), Seed(3), Derivative(0),
        Derivative(1), Derivative(2), Forward(5), Forward(6)}},
      {Op::kLmHeadLoss,
       Op::kLmHeadLossGrad,
       {Forward(0), Forward(1), Forward(2), Forward(3), Derivative(0), Derivative(1), {}, {}}},
  };
  return rules;
}

bool Accumulates(const GradientRule& rule) {
  return rule.gradient == Op::kLayerNormGrad || rule.gradient == Op::kRmsNormGrad ||
         rule.gradient == Op::kBiasGrad || rule.gradient == Op::kLmHeadLossGrad ||
         rule.gradient == Op::kAttentionBlockGrad;
}

// Finite differences across the corner of ReLU are no slopes.
bool HasCorner(const OpCase& op_case) {
  const auto* attrs = std::get_if<ActivationAttrs>(&op_case.attrs);
  return attrs != nullptr && attrs->activation == Activation::kRelu;
}

bool IsF32(const OpCase& op_case) {
  for (const TensorShape& shape : op_case.operands) {
    if (shape.dtype == kBF16 || shape.dtype == kF16) return false;
  }
  return std::visit(
      [](const auto& attrs) {
        if constexpr (requires { attrs.precision; }) {
          return attrs.precision == MatmulPrecision::kF32;
        } else {
          return true;
        }
      },
      op_case.attrs);
}

}  // namespace

const GradientRule* FindGradientRule(Op gradient) {
  for (const GradientRule& rule : GradientRules()) {
    if (rule.gradient == gradient) return &rule;
  }
  return nullptr;
}

std::vector<OpCase> AllCases() {
  CaseList list;
  for (const OpCase& forward : ForwardCases()) {
    list.Add(forward);
    for (const GradientRule& rule : GradientRules()) {
      if (rule.forward != forward.op || rule.gradient == rule.forward) continue;
      if (!HasGradient(rule, forward)) continue;
      const auto shared_forward = std::make_shared<const OpCase>(forward);
      const OpCase gradient = GradientOf(rule, shared_forward, false);
      list.Add(gradient);
      AddVariants(gradient, &list);
      if (Accumulates(rule)) list.Add(GradientOf(rule, shared_forward, true));
    }
  }
  return list.Take();
}

std::vector<OpCase> DifferentiableCases() {
  CaseList list;
  for (const OpCase& forward : ForwardCases()) {
    for (const GradientRule& rule : GradientRules()) {
      if (rule.forward != forward.op || !HasGradient(rule, forward) || !IsF32(forward)) continue;
      if (HasCorner(forward)) continue;
      list.Add(GradientOf(rule, std::make_shared<const OpCase>(forward), false));
    }
  }
  return list.Take();
}

}  // namespace terrace::kernels::conformance
