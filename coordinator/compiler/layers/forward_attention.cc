// The attention block of the forward pass (forward.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/layers/forward.h"
#include "coordinator/compiler/state/partition.h"

namespace terrace::compiler {

using kernels::DType;
using kernels::Op;

int64_t Forward::Window() const {
  const int64_t window = config_.window.empty() ? 0 : config_.window[builder_.layer];
  const int64_t longest = options_.kept != nullptr ? options_.kept->max_length : options_.sequence;
  return window < longest ? window : 0;
}

float Forward::Scale() const {
  const double scale = config_.attention_scale;
  return static_cast<float>(scale > 0 ? scale : 1.0 / std::sqrt(config_.head_dim));
}

// What this layer does to scores. Elements of the softmax are dropped where there are places.
kernels::ScoreTerms Forward::Terms() const {
  kernels::ScoreTerms terms = {.softcap = static_cast<float>(config_.score_softcap),
                               .alibi_heads = config_.alibi ? config_.heads : 0};
  if (Drops(config_.dropout.attention)) {
    terms.dropout = static_cast<float>(config_.dropout.attention);
    terms.seed = options_.dropout_seed;
    terms.site = NumberOf(DropoutSite::kScores);
  }
  return terms;
}

// The table of this layer's angles; kNone where it has none.
int Forward::RopeTable() const {
  const RopeConfig* rope = RopeOf(config_, builder_.layer);
  if (rope == nullptr) return kNone;
  return rope == &config_.rope ? options_.rope_tables.rope : options_.rope_tables.local;
}

Slice Forward::Attention(Slice x, Slice residual) {
  const Slice qkv = QkvProduct(x);
  const int64_t heads = LocalHeads(config_, parallel_), kv = LocalKeyHeads(config_, parallel_);
  const int64_t qk_columns = (heads + kv) * config_.head_dim;
  Slice qk = Columns(qkv, 0, qk_columns);
  if (config_.qk_norm) qk = HeadNorms(qkv);
  const int table = RopeTable();
  if (table != kNone && config_.interleaved_rope) qk = HalvesApart(qk);
  if (table != kNone) Rotate(qk, table);
  const Heads split = SplitHeads(qk, Columns(qkv, qk_columns, kv * config_.head_dim));
  const Slice o = options_.kept != nullptr   ? CachedOver(split)
                  : parallel_.context() == 1 ? AttentionOver(split)
                  : parallel_.ulysses        ? UlyssesOver(split)
                                             : RingOver(split);
  return RowProduct(Reshape(o, {tokens(), heads * config_.head_dim}), residual,
                    TensorRole::kAttentionOut, TensorRole::kAttentionOutBias, "attn_out");
}

// q and k at once where one product made them.
void Forward::Rotate(Slice qk, int table) {
  const int64_t d = config_.head_dim;
  const int64_t heads = LocalHeads(config_, parallel_), kv = LocalKeyHeads(config_, parallel_);
  const auto rotate = [&](int64_t first_head, int64_t count, const char* name) {
    builder_.Compute(
        Op::kRope, kernels::RopeAttrs{.sequence = table_sequence(), .context = share()},
        {Reshape(Columns(qk, first_head * d, count * d), {tokens(), count, d}), AnglesOf(table)},
        name);
  };
  if (parallel_.tensor_block == 1) {
    rotate(0, heads + kv, "rope");
    return;
  }
  rotate(0, heads, "rope q");
  rotate(heads, kv, "rope k");
}

// One product for q, k and v where their weights lie next to each other (parameters.h), otherwise
// one for q and one for both others; the columns of the result lie next to each other anyway.
Slice Forward::QkvProduct(Slice x) {
  const int64_t d = config_.head_dim;
  const int64_t q = LocalHeads(config_, parallel_) * d;
  const int64_t kv = 2 * LocalKeyHeads(config_, parallel_) * d;
  const Slice qkv = Activation("qkv", tokens(), q + kv);
  const bool fused = config_.qkv != QkvKind::kApart;
  const TensorRole weight = fused ? TensorRole::kQkv : TensorRole::kQ;
  const Slice bias = Weight(fused ? TensorRole::kQkvBias : TensorRole::kQBias);
  if (parallel_.tensor_block == 1) {
    Product(x, weight, bias, qkv, Stored(), "qkv");
    // One key head's queries, k and v lie as those of all heads do.
    if (config_.qkv != QkvKind::kByHead || kv == 2 * d) return qkv;
    return config_.kv_heads == config_.heads ? HeadsApart(qkv) : GroupsApart(qkv);
  }
  Product(x, weight, bias, Columns(qkv, 0, q), Stored(), "q");
  Product(x, TensorRole::kK, Weight(TensorRole::kKBias), Columns(qkv, q, kv), Stored(), "kv");
  return qkv;
}

// [T, heads, 3, d] as the weights lie -> [T, 3, heads, d].
Slice Forward::HeadsApart(Slice qkv) {
  const int64_t heads = LocalHeads(config_, parallel_), d = config_.head_dim;
  const Slice apart = Activation("qkv.apart", tokens(), 3 * heads * d);
  builder_.Compute(Op::kPermute, kernels::PermuteAttrs{.order = {0, 2, 1, 3}},
                   {Reshape(qkv, {tokens(), heads, 3, d}), Reshape(apart, {tokens(), 3, heads, d})},
                   "q, k and v apart");
  return apart;
}

// The same where several queries share a key head: [T, key heads, queries of each + 2, d].
Slice Forward::GroupsApart(Slice qkv) {
  const int64_t heads = LocalHeads(config_, parallel_), kv = LocalKeyHeads(config_, parallel_);
  const int64_t d = config_.head_dim, queries = heads / kv * d;
  const Slice apart = Activation("qkv.apart", tokens(), (heads + 2 * kv) * d);
  const auto copy = [&](int64_t from, int64_t to, int64_t columns, const char* name) {
    builder_.Compute(Op::kCast, kernels::NoAttrs{},
                     {Columns(qkv, from, columns), Columns(apart, to, columns)}, name);
  };
  for (int64_t i = 0; i < kv; ++i) {
    const int64_t group = i * (queries + 2 * d);
    copy(group, i * queries, queries, "q apart");
    copy(group + queries, (heads + i) * d, d, "k apart");
    copy(group + queries + d, (heads + kv + i) * d, d, "v apart");
  }
  return apart;
}

// Puts the first elements of all pairs before the second ones, where neighbours are rotated as
// pairs. Scores do not depend on the order of a head's elements if q and k have the same.
Slice Forward::HalvesApart(Slice qk) {
  const int64_t columns = qk.shape.RowElements(), d = config_.head_dim;
  const Slice apart = Activation("qk.halves", tokens(), columns);
  builder_.Compute(Op::kPermute, kernels::PermuteAttrs{.order = {0, 1, 3, 2}},
                   {Reshape(DenseCopy(qk, "qk.dense"), {tokens(), columns / d, d / 2, 2}),
                    Reshape(apart, {tokens(), columns / d, 2, d / 2})},
                   "halves of heads apart");
  return apart;
}

// RMSNorm of each head of q and k, or of all of q and all of k, into memory of its own: the
// backward pass needs q and k as they were.
Slice Forward::HeadNorms(Slice qkv) {
  const int64_t d = config_.head_dim;
  const int64_t heads = LocalHeads(config_, parallel_), kv = LocalKeyHeads(config_, parallel_);
  const Slice qk = Activation("qk_norm", tokens(), (heads + kv) * d);
  const auto norm = [&](int64_t first_head, int64_t count, TensorRole weight, const char* name) {
    const int64_t norms = config_.qk_norm_whole ? 1 : count;
    const auto part = [&](Slice slice) {
      return Reshape(Columns(slice, first_head * d, count * d),
                     {tokens(), norms, count * d / norms});
    };
    RmsNorm(part(qkv), Weight(weight), part(qk), name);
  };
  norm(0, heads, TensorRole::kQNorm, "q_norm");
  norm(heads, kv, TensorRole::kKNorm, "k_norm");
  return qk;
}

Forward::Heads Forward::SplitHeads(Slice qk, Slice v) const {
  const int64_t d = config_.head_dim;
  const int64_t heads = LocalHeads(config_, parallel_), kv = LocalKeyHeads(config_, parallel_);
  return {.q = Reshape(Columns(qk, 0, heads * d), {tokens(), heads, d}),
          .k = Reshape(Columns(qk, heads * d, kv * d), {tokens(), kv, d}),
          .v = Reshape(v, {tokens(), kv, d})};
}

// Rows of one sequence after the other, all tokens of a sequence on this rank.
Slice Forward::AttentionOver(const Heads& heads) {
  const int64_t rows = heads.q.shape.rows(), count = heads.q.shape.size[1];
  const Slice o = Activation("attn", rows, count * config_.head_dim);
  const Slice lse = Statistic("attn.lse", {options_.batch, count, options_.sequence});
  builder_.Compute(Op::kAttention,
                   kernels::AttentionAttrs{.sequence = options_.sequence,
                                           .window = Window(),
                                           .scale = Scale(),
                                           .precision = options_.precisions.scores,
                                           .terms = Terms()},
                   {heads.q, heads.k, heads.v, Reshape(o, {rows, count, config_.head_dim}), lse,
                    starts_, PlacesOfScores()},
                   "attention");
  return o;
}

// New tokens over what is kept, which their own keys and values join.
Slice Forward::CachedOver(const Heads& heads) {
  const int64_t count = heads.q.shape.size[1];
  const Slice o = Activation("attn", tokens(), count * config_.head_dim);
  const auto kept = [&](const std::vector<int>& values) {
    return builder_.graph().Whole(values[builder_.layer]);
  };
  builder_.Compute(
      Op::kAttentionCached,
      kernels::AttentionAttrs{.sequence = options_.sequence,
                              .window = Window(),
                              .scale = Scale(),
                              .precision = options_.precisions.scores,
                              .terms = Terms()},
      {heads.q, heads.k, heads.v, kept(options_.kept->keys), kept(options_.kept->values), spans_,
       Reshape(o, {tokens(), count, config_.head_dim})},
      "attention");
  return o;
}

// Keys and values go round the ring while the queries stay; the next pair is on its way while this
// one is used.
Slice Forward::RingOver(const Heads& heads) {
  const int64_t d = config_.head_dim;
  const int64_t count = heads.q.shape.size[1], kv = heads.k.shape.size[1];
  const auto part = [&](const Slice& pair, int64_t i) {
    return Reshape(Range(pair, i * tokens() * kv * d, tokens() * kv * d), {tokens(), kv, d});
  };
  const auto new_pair = [&](int64_t step) {
    return Activation(absl::StrCat("kv.step", step), 2 * tokens(), kv * d);
  };
  kernels::AttentionBlockAttrs attrs = {.sequence = local_sequence(),
                                        .window = Window(),
                                        .scale = Scale(),
                                        .precision = options_.precisions.scores,
                                        .context = share(),
                                        .terms = Terms()};
  const kernels::AttentionBlockAttrs first = attrs;
  const Slice sum = Statistic("attn.sum", {tokens(), count, d});
  const Slice lse = Statistic("attn.lse", {options_.batch, count, local_sequence()});
  const Slice o = Activation("attn", tokens(), count * d);

  builder_.has_rule = false;
  Slice pair = new_pair(0);
  const Slice own = pair;
  for (const auto& [from, i] : {std::pair(heads.k, 0), std::pair(heads.v, 1)}) {
    builder_.Compute(Op::kCast, kernels::NoAttrs{}, {from, part(pair, i)},
                     i == 0 ? "keys for the ring" : "values for the ring");
  }
  for (int64_t step = 0; step < parallel_.context(); ++step) {
    const Slice now = pair;
    if (step + 1 < parallel_.context()) {
      pair = new_pair(step + 1);
      builder_.Collective(v1::RING_SHIFT, parallel_.groups.context, now, pair,
                          absl::StrCat("ring shift ", step));
    }
    attrs.step = step;
    attrs.accumulate = step > 0;
    builder_.Compute(Op::kAttentionBlock, attrs,
                     {heads.q, part(now, 0), part(now, 1), sum, lse, starts_, PlacesOfScores()},
                     absl::StrCat("attention step ", step));
  }
  builder_.Compute(Op::kCast, kernels::NoAttrs{}, {Reshape(sum, {tokens(), count * d}), o},
                   "attention out");
  builder_.has_rule = true;
  builder_.RecordOnly({.what = RingAttention{first, parallel_.groups.context},
                       .operands = {heads.q, heads.k, heads.v, Reshape(o, {tokens(), count, d}),
                                    lse, own, starts_, PlacesOfScores()},
                       .text = "ring attention"});
  return o;
}

Slice Forward::UlyssesOver(const Heads& heads) {
  const Slice o = AttentionOver({.q = HeadsForTokens(heads.q, "q"),
                                 .k = HeadsForTokens(heads.k, "k"),
                                 .v = HeadsForTokens(heads.v, "v")});
  return TokensForHeads(o, "attn");
}

Slice Forward::DenseCopy(Slice x, const std::string& name) {
  const int64_t rows = x.shape.rows(), columns = x.shape.RowElements();
  const Slice y = Activation(name, rows, columns);
  builder_.Compute(Op::kCast, kernels::NoAttrs{}, {Reshape(x, {rows, columns}), y}, name);
  return y;
}

// Swaps the first two of the four dimensions that `from` is cut into.
Slice Forward::Permute(Slice x, const Dims& from, const std::string& name) {
  const Slice y = builder_.NewValue(name, v1::ACTIVATION, options_.precisions.activation,
                                    {from[1], from[0], from[2], from[3]});
  builder_.Compute(Op::kPermute, kernels::PermuteAttrs{.order = {1, 0, 2, 3}},
                   {Reshape(x, from), y}, name);
  return y;
}

Slice Forward::Exchange(Slice x, const std::string& name) {
  const Slice flat = Flat(x);
  const Slice y = builder_.NewValue(name, v1::ACTIVATION, options_.precisions.activation,
                                    {flat.shape.Elements()});
  builder_.Collective(v1::ALL_TO_ALL, parallel_.groups.context, flat, y, name);
  return y;
}

// [own tokens, all heads] -> [all tokens, own heads].
Slice Forward::HeadsForTokens(Slice x, const std::string& name) {
  const int64_t cp = parallel_.context(), own = x.shape.size[1] / cp, d = config_.head_dim;
  const int64_t batch = options_.batch, part = local_sequence();
  const Slice dense = DenseCopy(x, name + ".dense");
  const Slice sent =
      Exchange(Permute(dense, {batch * part, cp, own, d}, name + ".by_rank"), name + ".exchanged");
  const Slice all = Permute(sent, {cp, batch, part, own * d}, name + ".by_sequence");
  return Reshape(Flat(all), {batch * options_.sequence, own, d});
}

// The way back.
Slice Forward::TokensForHeads(Slice x, const std::string& name) {
  const int64_t cp = parallel_.context(), d = config_.head_dim;
  const int64_t batch = options_.batch, part = local_sequence();
  const int64_t own = x.shape.RowElements() / d;
  const Slice sent =
      Exchange(Permute(x, {batch, cp, part, own * d}, name + ".by_rank"), name + ".exchanged");
  const Slice all = Permute(sent, {cp, batch * part, own, d}, name + ".by_token");
  return Reshape(Flat(all), {tokens(), cp * own * d});
}

}  // namespace terrace::compiler
