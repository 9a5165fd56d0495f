// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/forward.h"

#include "absl/base/macros.h"
#include "coordinator/compiler/state/partition.h"

namespace terrace::compiler {

using kernels::DType;
using kernels::Epilogue;
using kernels::Op;

Slice Forward::Activation(const std::string& name, int64_t rows, int64_t columns) {
  return builder_.NewValue(name, v1::ACTIVATION, options_.precisions.activation, {rows, columns});
}

Slice Forward::Statistic(const std::string& name, const Dims& dims) {
  return builder_.NewValue(name, v1::ACTIVATION, DType::kF32, dims);
}

int64_t Forward::residual_rows() const {
  return parallel_.sequence_parallel ? tokens() / parallel_.tensor() : tokens();
}

kernels::TokenShare Forward::share() const {
  return {.ranks = parallel_.context(), .zigzag = parallel_.zigzag()};
}

// The rows of a table that is looked up by position: all of it, or those of the new tokens.
Slice Forward::AtPositions(Slice table, const std::string& name) {
  if (options_.kept == nullptr) return table;
  const Slice rows = builder_.NewValue(name, v1::ACTIVATION, table.shape.dtype,
                                       {tokens(), table.shape.RowElements()});
  builder_.Compute(Op::kGatherRows, kernels::NoAttrs{}, {table, positions_, rows}, name);
  return rows;
}

void Forward::SetNewTokens(Slice positions, Slice spans) {
  positions_ = positions;
  spans_ = spans;
}

// Gathered once for all layers that have this table.
Slice Forward::AnglesOf(int rope_table) {
  const Slice table = builder_.graph().Whole(rope_table);
  if (options_.kept == nullptr) return table;
  Slice& angles = angles_[rope_table];
  if (angles.absent()) angles = AtPositions(table, "angles");
  return angles;
}

Slice Forward::Embedding(Slice tokens) {
  const bool sharded = parallel_.tensor() > 1;
  Slice positions = Weight(TensorRole::kPositionEmbedding);
  if (config_.position_rows_before > 0)
    positions = Rows(positions, config_.position_rows_before, config_.max_positions);
  if (!positions.absent()) positions = AtPositions(positions, "position rows");
  const Slice x = Activation(BeforeSum("x"), this->tokens(), config_.hidden);
  builder_.Compute(
      Op::kEmbedding,
      kernels::EmbeddingAttrs{.sequence = table_sequence(),
                              .shard_rows = sharded ? VocabularyRows(config_, parallel_) : 0,
                              .context = share()},
      {tokens, Weight(TensorRole::kTokenEmbedding), positions, x,
       positions.absent() ? Slice() : starts_},
      "embedding");
  const Slice sum = LeaveRegion(x, "x");
  Multiply(sum, config_.embedding_scale, "x");
  const Slice x0 = config_.embedding_norm ? Norm(sum, TensorRole::kEmbeddingNorm,
                                                 TensorRole::kEmbeddingNormBias, "embedding_norm")
                                          : sum;
  return Drop(x0, config_.dropout.embedding, DropoutSite::kEmbedding, /*split=*/false, "x");
}

void Forward::Multiply(Slice x, double by, const std::string& name) {
  if (by == 1) return;
  builder_.Compute(Op::kScale, kernels::ScaleAttrs{.scale = static_cast<float>(by)}, {x},
                   name + " scale");
}

Slice Forward::Layer(int layer, Slice x) {
  Begin();
  builder_.layer = layer;
  const Slice read =
      Entered(x, TensorRole::kAttentionNorm, TensorRole::kAttentionNormBias, "attn_norm");
  const Slice attended = Attention(read, x);
  const Slice y = config_.shared_norm
                      ? Mlp(read, attended)
                      : Mlp(Entered(config_.parallel_residual ? x : attended, TensorRole::kMlpNorm,
                                    TensorRole::kMlpNormBias, "mlp_norm"),
                            attended);
  builder_.layer = kNone;
  return y;
}

Slice Forward::Hidden(Slice x) {
  Begin();
  const Slice normed = Norm(x, TensorRole::kFinalNorm, TensorRole::kFinalNormBias, "final_norm");
  // The products of the head are linear in what they read.
  Multiply(normed, config_.logits_scale, "logits");
  return EnterRegion(normed, "final_norm");
}

Slice Forward::ReferenceEmbedding(Slice tokens, Slice x) {
  if (!Drops(config_.dropout.embedding)) return x;
  return AsReference([&] { return Embedding(tokens); });
}

Slice Forward::ReferenceLayer(int layer, Slice x) {
  return AsReference([&] { return Layer(layer, x); });
}

Slice Forward::ReferenceHidden(Slice x) {
  return AsReference([&] { return Hidden(x); });
}

Slice Forward::Norm(Slice x, TensorRole weight, TensorRole bias, const std::string& name) {
  const int64_t rows = x.shape.rows();
  const Slice y = Activation(name, rows, config_.hidden);
  if (config_.norm == NormKind::kRmsNorm) {
    RmsNorm(x, Weight(weight), y, name);
    return y;
  }
  const kernels::NormAttrs attrs = {.epsilon = static_cast<float>(config_.norm_epsilon)};
  const Slice mean = Statistic(name + ".mean", {rows});
  const Slice rstd = Statistic(name + ".rstd", {rows});
  builder_.Compute(Op::kLayerNorm, attrs, {x, Weight(weight), Weight(bias), y, mean, rstd}, name);
  return y;
}

void Forward::RmsNorm(Slice x, Slice weight, Slice y, const std::string& name) {
  const kernels::NormAttrs attrs = {.epsilon = static_cast<float>(config_.norm_epsilon),
                                    .unit_offset = config_.norm_unit_offset};
  Dims dims(x.shape.size.begin(), x.shape.size.begin() + x.shape.dims - 1);
  builder_.Compute(Op::kRmsNorm, attrs, {x, weight, y, Statistic(name + ".rstd", dims)}, name);
}

void Forward::Linear(Slice x, Slice weight, Slice bias, Slice y, kernels::MatmulPrecision precision,
                     const LinearOptions& options, const std::string& name) {
  const kernels::MatmulAttrs attrs = {.transpose_b = options.transpose,
                                      .accumulate = options.accumulate,
                                      .epilogue = options.epilogue,
                                      .precision = precision};
  builder_.Compute(Op::kMatmul, attrs, {x, weight, y, bias, options.residual, options.aux}, name);
}

// Tiles of outputs make columns of y; tiles of inputs add up to y, to which the first has put all
// else.
void Forward::Product(Slice x, TensorRole weight, Slice bias, Slice y, const LinearOptions& options,
                      const std::string& name) {
  const int first = parameters_.Find(weight, builder_.layer);
  const kernels::MatmulPrecision precision = options_.precisions.Of(weight, builder_.layer);
  for (int i = first; i < first + parameters_.all()[first].tiles; ++i) {
    const Tile tile = parameters_.all()[i].tile;
    if (tile.size == 0) {
      Linear(x, weights_.OfParameter(i), bias, y, precision, options, name);
    } else if (tile.of_inputs) {
      const bool more = tile.begin > 0;
      Linear(Columns(x, tile.begin, tile.size), weights_.OfParameter(i), more ? Slice{} : bias, y,
             precision,
             more ? LinearOptions{.transpose = options.transpose, .accumulate = true} : options,
             name);
    } else {
      const auto part = [&](const Slice& slice) {
        return slice.absent() ? slice : Columns(slice, tile.begin, tile.size);
      };
      LinearOptions of_tile = options;
      of_tile.residual = part(options.residual);
      of_tile.aux = part(options.aux);
      Linear(x, weights_.OfParameter(i), bias.absent() ? bias : Range(bias, tile.begin, tile.size),
             part(y), precision, of_tile, name);
    }
  }
  Adapt(x, weight, y, name);
}

Slice Forward::Entered(Slice x, TensorRole weight, TensorRole bias, const std::string& name) {
  // Tensor-parallel ranks would sum the gradient of the residual stream with that of the block.
  ABSL_HARDENING_ASSERT(config_.norm_before || parallel_.groups.tensor == kNone);
  return config_.norm_before ? EnterRegion(Norm(x, weight, bias, name), name) : x;
}

// What the first product of a block reads: all tokens of this context share.
Slice Forward::EnterRegion(Slice x, const std::string& name) {
  const int group = parallel_.groups.tensor;
  if (group == kNone) return x;
  if (!parallel_.sequence_parallel) {
    builder_.RecordOnly({.what = EnterTensorParallel{group}, .operands = {x}, .text = name});
    return x;
  }
  const Slice all = Activation(name + ".all", tokens(), x.shape.RowElements());
  builder_.Collective(v1::ALL_GATHER, group, x, all, "gather " + name);
  return all;
}

std::string Forward::BeforeSum(const std::string& name) const {
  return parallel_.sequence_parallel ? name + ".partial" : name;
}

// The sum of the ranks' parts, in the shape of the residual stream.
Slice Forward::LeaveRegion(Slice partial, const std::string& name) {
  const int group = parallel_.groups.tensor;
  if (group == kNone) return partial;
  if (!parallel_.sequence_parallel) {
    builder_.AllReduce(group, partial, "sum " + name);
    return partial;
  }
  const Slice y = NewResidual(name);
  builder_.Collective(v1::REDUCE_SCATTER, group, partial, y, "sum " + name);
  return y;
}

// The last product of a block and the residual: fused on one rank; summed over the ranks first
// otherwise. What changes the block's result before the sum comes between them.
Slice Forward::RowProduct(Slice x, Slice residual, TensorRole weight, TensorRole bias,
                          const std::string& name) {
  LinearOptions linear = Stored();
  const Slice product = Activation(BeforeSum(name), x.shape.rows(), config_.hidden);
  if (config_.norm_after || config_.residual_scale != 1 || Drops(config_.dropout.residual)) {
    const bool whole = parallel_.groups.tensor == kNone;
    Product(x, weight, whole ? Weight(bias) : Slice(), product, linear, name);
    return AddChanged(product, residual, weight, whole ? Slice() : Weight(bias), name);
  }
  if (parallel_.groups.tensor == kNone) {
    linear.residual = residual;
    Product(x, weight, Weight(bias), product, linear, name);
    return product;
  }
  Product(x, weight, {}, product, linear, name);
  const Slice y = LeaveRegion(product, name);
  builder_.Compute(Op::kAddResidual, kernels::NoAttrs{}, {y, residual, Weight(bias), y},
                   name + " + residual");
  return y;
}

Slice Forward::Mlp(Slice x, Slice residual) {
  const Slice h = config_.mlp == MlpKind::kPlain ? PlainMlp(x) : GatedMlp(x);
  return RowProduct(h, residual, TensorRole::kMlpDown, TensorRole::kMlpDownBias, "mlp_down");
}

kernels::ActivationAttrs Forward::Activates() const {
  switch (config_.activation) {
    case ActivationKind::kGeluTanh:
      return {kernels::Activation::kGeluTanh};
    case ActivationKind::kGelu:
      return {kernels::Activation::kGelu};
    case ActivationKind::kRelu:
      return {kernels::Activation::kRelu};
    case ActivationKind::kSilu:
      return {kernels::Activation::kSilu};
  }
  return {};
}

// The product's epilogue is the tanh form of GELU. Other activations are ops of their own, and all
// are with adapters: what these add comes before it, and h has the gradients of two products.
Slice Forward::PlainMlp(Slice x) {
  const int64_t f = config_.intermediate / parallel_.tensor();
  const Slice h = Activation("mlp_gelu", tokens(), f);
  LinearOptions linear = Stored();
  if (config_.activation != ActivationKind::kGeluTanh || HasAdapter(TensorRole::kMlpUp) ||
      HasAdapter(TensorRole::kMlpDown)) {
    const Slice up = Activation("mlp_up", tokens(), f);
    Product(x, TensorRole::kMlpUp, Weight(TensorRole::kMlpUpBias), up, linear, "mlp_up");
    builder_.Compute(Op::kGelu, Activates(), {up, h}, "gelu");
    return h;
  }
  linear.epilogue = Epilogue::kGelu;
  if (options_.for_backward && !is_reference_) linear.aux = Activation("mlp_up", tokens(), f);
  Product(x, TensorRole::kMlpUp, Weight(TensorRole::kMlpUpBias), h, linear, "mlp_up");
  return h;
}

// One product for gate and up.
Slice Forward::GatedMlp(Slice x) {
  const int64_t f = config_.intermediate / parallel_.tensor();
  const Slice gate_up = Activation("mlp_gate_up", tokens(), 2 * f);
  Product(x, TensorRole::kMlpGate, Weight(TensorRole::kMlpGateBias), gate_up, Stored(),
          "mlp_gate_up");
  const Slice h = Activation("mlp_swiglu", tokens(), f);
  builder_.Compute(Op::kSwiglu, Activates(), {Columns(gate_up, 0, f), Columns(gate_up, f, f), h},
                   "swiglu");
  return h;
}

}  // namespace terrace::compiler
