// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "proto/program/op_codec.h"

namespace terrace {
namespace {

using kernels::Op;
using kernels::OpAttrs;
using v1::ComputeOp;

// Left out when the sequence is not split.
template <typename Out>
void EncodeContext(const kernels::TokenShare& context, Out out) {
  if (context.ranks <= 1) return;
  v1::ContextAttrs* m = out();
  m->set_ranks(context.ranks);
  m->set_zigzag(context.zigzag);
}

// Left out when the loss is -log p alone.
template <typename Out>
void EncodeTerms(const kernels::LossTerms& terms, Out out) {
  if (terms == kernels::LossTerms()) return;
  v1::LossTerms* m = out();
  m->set_label_smoothing(terms.label_smoothing);
  m->set_z_loss(terms.z_loss);
  m->set_softcap(terms.softcap);
}

template <typename Out>
void EncodeScores(const kernels::ScoreTerms& terms, Out out) {
  if (terms == kernels::ScoreTerms()) return;
  v1::ScoreTerms* m = out();
  m->set_softcap(terms.softcap);
  m->set_alibi_heads(terms.alibi_heads);
  m->set_dropout(terms.dropout);
  m->set_seed(terms.seed);
  m->set_site(terms.site);
}

// One encoder an alternative of OpAttrs; std::visit refuses to compile when one is missing.
struct Encoder {
  ComputeOp* out;

  void operator()(const kernels::NoAttrs&) const { out->clear_attrs(); }
  void operator()(const kernels::EmbeddingAttrs& a) const {
    out->mutable_embedding()->set_sequence(a.sequence);
    out->mutable_embedding()->set_shard_rows(a.shard_rows);
    EncodeContext(a.context, [&] { return out->mutable_embedding()->mutable_context(); });
  }
  void operator()(const kernels::NormAttrs& a) const {
    out->mutable_norm()->set_epsilon(a.epsilon);
    out->mutable_norm()->set_accumulate(a.accumulate);
    if (a.unit_offset) out->mutable_norm()->set_unit_offset(true);
  }
  void operator()(const kernels::MatmulAttrs& a) const {
    v1::MatmulAttrs* m = out->mutable_matmul();
    m->set_transpose_a(a.transpose_a);
    m->set_transpose_b(a.transpose_b);
    m->set_accumulate(a.accumulate);
    m->set_epilogue(static_cast<v1::Epilogue>(a.epilogue));
    m->set_precision(static_cast<v1::MatmulPrecision>(a.precision));
    m->set_gradient(static_cast<v1::Fp8Gradient>(a.gradient));
  }
  void operator()(const kernels::AccumulateAttrs& a) const {
    out->mutable_accumulate()->set_accumulate(a.accumulate);
  }
  void operator()(const kernels::RopeAttrs& a) const {
    out->mutable_rope()->set_sequence(a.sequence);
    out->mutable_rope()->set_inverse(a.inverse);
    EncodeContext(a.context, [&] { return out->mutable_rope()->mutable_context(); });
  }
  void operator()(const kernels::AttentionAttrs& a) const {
    v1::AttentionAttrs* m = out->mutable_attention();
    m->set_sequence(a.sequence);
    m->set_window(a.window);
    m->set_scale(a.scale);
    m->set_precision(static_cast<v1::MatmulPrecision>(a.precision));
    EncodeScores(a.terms, [&] { return m->mutable_terms(); });
  }
  void operator()(const kernels::LossAttrs& a) const {
    v1::LossAttrs* m = out->mutable_loss();
    m->set_chunk_rows(a.chunk_rows);
    m->set_accumulate(a.accumulate);
    m->set_precision(static_cast<v1::MatmulPrecision>(a.precision));
    EncodeTerms(a.terms, [&] { return m->mutable_terms(); });
  }
  void operator()(const kernels::FillAttrs& a) const { out->mutable_fill()->set_value(a.value); }
  void operator()(const kernels::ClipAttrs& a) const {
    out->mutable_clip()->set_clip_grad_norm(a.clip_grad_norm);
  }
  void operator()(const kernels::UpdateAttrs& a) const {
    v1::UpdateAttrs* m = out->mutable_update();
    m->set_rule(EncodeRule(a.rule));
    m->set_beta1(a.beta1);
    m->set_beta2(a.beta2);
    m->set_epsilon(a.epsilon);
    m->set_weight_decay(a.weight_decay);
    m->set_block(a.block);
    if (a.lr_scale != 1) m->set_lr_scale(a.lr_scale);
    if (a.step_scale != 1) m->set_step_scale(a.step_scale);
    m->set_iterations(a.iterations);
    m->set_precision(static_cast<v1::MatmulPrecision>(a.precision));
    m->set_clip_threshold(a.clip_threshold);
    m->set_least_scale(a.least_scale);
    m->set_beta3(a.beta3);
    m->set_error_epsilon(a.error_epsilon);
    if (a.rounding.buffer < 0) return;
    v1::StochasticRounding* rounding = m->mutable_rounding();
    rounding->set_seed(a.rounding.seed);
    rounding->set_buffer(static_cast<uint32_t>(a.rounding.buffer));
    rounding->set_first(a.rounding.first);
  }
  void operator()(const kernels::AttentionBlockAttrs& a) const {
    v1::AttentionBlockAttrs* m = out->mutable_attention_block();
    m->set_sequence(a.sequence);
    m->set_window(a.window);
    m->set_scale(a.scale);
    m->set_precision(static_cast<v1::MatmulPrecision>(a.precision));
    EncodeContext(a.context, [&] { return m->mutable_context(); });
    m->set_step(a.step);
    m->set_accumulate(a.accumulate);
    m->set_accumulate_keys(a.accumulate_keys);
    EncodeScores(a.terms, [&] { return m->mutable_terms(); });
  }
  void operator()(const kernels::CrossEntropyAttrs& a) const {
    v1::CrossEntropyAttrs* m = out->mutable_cross_entropy();
    m->set_shard_rows(a.shard_rows);
    m->set_vocabulary(a.vocabulary);
    m->set_accumulate(a.accumulate);
    EncodeTerms(a.terms, [&] { return m->mutable_terms(); });
  }
  void operator()(const kernels::ScaleAttrs& a) const { out->mutable_scale()->set_scale(a.scale); }
  void operator()(const kernels::PermuteAttrs& a) const {
    for (int32_t dimension : a.order) out->mutable_permute()->add_order(dimension);
  }
  void operator()(const kernels::BlockAttrs& a) const {
    v1::BlockAttrs* m = out->mutable_block();
    m->set_format(EncodeBlockFormat(a.format));
    m->set_block(a.block);
    if (a.runs > 1) m->set_runs(a.runs);
    if (a.parts > 1) m->set_parts(a.parts);
  }
  void operator()(const kernels::ActivationAttrs& a) const {
    out->mutable_activation()->set_activation(static_cast<v1::Activation>(a.activation));
  }
  void operator()(const kernels::DropoutAttrs& a) const {
    v1::DropoutAttrs* m = out->mutable_dropout();
    m->set_probability(a.probability);
    m->set_seed(a.seed);
    m->set_site(a.site);
    if (a.row_shards > 1) m->set_row_shards(a.row_shards);
    if (a.column_shards > 1) m->set_column_shards(a.column_shards);
    m->set_accumulate(a.accumulate);
  }
  void operator()(const kernels::PreferenceAttrs& a) const {
    v1::PreferenceAttrs* m = out->mutable_preference();
    m->set_sequence(a.sequence);
    m->set_beta(a.beta);
    m->set_label_smoothing(a.label_smoothing);
    m->set_accumulate(a.accumulate);
  }
};

}  // namespace

void EncodeOp(Op op, const OpAttrs& attrs, ComputeOp* compute) {
  compute->set_op(std::string(kernels::Name(op)));
  std::visit(Encoder{compute}, attrs);
}

v1::OptimizerRule EncodeRule(kernels::OptimizerRule rule) {
  return static_cast<v1::OptimizerRule>(rule);
}

v1::BlockFormat EncodeBlockFormat(kernels::Format format) {
  switch (format) {
    case kernels::Format::kFP8:
      return v1::FP8_E4M3;
    case kernels::Format::kInt4Linear:
      return v1::INT4_LINEAR;
    case kernels::Format::kNF4:
      return v1::NF4;
    default:
      return v1::INT8_LINEAR;
  }
}

v1::DType EncodeDType(kernels::DType dtype) { return static_cast<v1::DType>(dtype); }

}  // namespace terrace
