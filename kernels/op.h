// The op table: every computation Terrace can put into a program, with its operands in their fixed
// order, its attributes, its shape rule, its exact FLOPs and bytes, and the workspace it needs. The
// compiler emits from it, the checker and the rank check against it, each backend implements it
// (kernels/cpu, kernels/cuda: one file an op, same names).
//
// Knows no CUDA, protobuf, gRPC or logging. Thread-safe: no state.
//
// Operand notation: name[shape] access, access being R (read), W (write: old content is ignored), U
// (update: read and write); "?" marks an operand that may be absent. T = tokens of one micro-batch
// (batch x sequence), h = hidden, V = vocabulary. "act" stands for the activation type (f32, bf16
// or f16); statistics are f32, and so are parameters, their gradients and moments but for tables,
// matrices and the weight of the LM head: these may be any of the three, their gradients bf16,
// their moments bf16 or int8. Where an op may work in place, its comment says which operands may be
// the same memory.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/format.h"
#include "kernels/optimizer_rule.h"
#include "kernels/rounding.h"
#include "kernels/tensor_view.h"

namespace terrace::kernels {

enum class Op : uint8_t {
  // x[T,h] act = table[tokens[t]] (+ positions[position of row t]).
  //   tokens[T] i32 R, table[V,h] R, positions[P,h] R ?, x W, starts[T] i32 R ?.
  //   EmbeddingAttrs
  // With starts (kAttention) positions count from the start of the row's document.
  // With a sharded vocabulary the table holds the rows from shard * shard_rows on; a token of
  // another shard gives zero, and shard 0 alone adds the positions, so that the sum over the shards
  // is the embedding.
  kEmbedding = 1,
  // Scatter-adds dx into the tables; deterministic whatever the number of threads. Tokens of other
  // shards are skipped, positions never. What one row gets is summed in f32 and rounded once.
  //   tokens[T] R, dx[T,h] R, dtable[V,h] U, dpositions[P,h] U ?, starts[T] i32 R ?.
  //   EmbeddingAttrs
  kEmbeddingGrad,

  // LayerNorm, Ba et al. 2016 (arXiv 1607.06450), over the last dimension; variance biased.
  //   x[n,d] R, weight[d] R, bias[d] R ?, y[n,d] W, mean[n] W, rstd[n] W.      NormAttrs
  kLayerNorm,
  // dx = residual + d(LayerNorm)/dx * dy. dx may be the memory of residual or of dy.
  //   dy[n,d] R, x[n,d] R, weight R, mean R, rstd R, residual[n,d] R ?, dx W, dweight[d] W|U,
  //   dbias[d] W|U ?.  NormAttrs
  kLayerNormGrad,
  // RMSNorm, Zhang and Sennrich 2019 (arXiv 1910.07467).
  //   x[n,d] or x[n,heads,d] R (rows may be strided; the last dimension is normalised), weight[d]
  //   R, y W (same shape,
  //   own stride), rstd[n] or rstd[n,heads] W.                         NormAttrs
  kRmsNorm,
  //   dy R, x R, weight R, rstd R, residual R ?, dx W, dweight[d] W|U.  Shapes as kRmsNorm. dx may
  //   be residual or dy.
  kRmsNormGrad,

  // C = op(A) op(B), then the epilogue in this order: + bias, + residual, activation; or C += op(A)
  // op(B).
  //   a R, b R, c[M,N] W|U, bias[N] R ?, residual[M,N] R ?, aux[M,N] (see Epilogue) R|W ?.
  //   MatmulAttrs
  // a is [M,K], or [K,M] with transpose_a; b is [K,N], or [N,K] with transpose_b. a, b, c each f32,
  // bf16 or f16, rows may be strided. Accumulation is f32 always. c may be the memory of residual.
  kMatmul,
  // dbias[d] = (+=) sum over rows of dy[n,d].   dy R, dbias W|U.        AccumulateAttrs
  kBiasGrad,

  // y = f(x), by attrs.activation GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415) or another.
  //   x R, y W. In place allowed.   ActivationAttrs
  kGelu,
  // dx = dy * f'(x).   dy R, x R, dx W. dx may be dy.   ActivationAttrs
  kGeluGrad,
  // y = f(gate) * up, Shazeer 2020 (arXiv 2002.05202).   gate[n,f] R, up[n,f] R, y[n,f] W; rows
  // may be strided.   ActivationAttrs
  kSwiglu,
  //   dy R, gate R, up R, dgate W, dup W. dgate may be gate's memory, dup may be up's.
  kSwigluGrad,

  // Rotary embedding, Su et al. 2021 (arXiv 2104.09864), Hugging Face "rotate half" pairing (i, i +
  // d/2), in place.
  //   x[T,heads,d] U (rows may be strided), table[P,r] f32 R: row p holds cos of the r/2 angles,
  //   then sin of them. The first r <= d of each head are rotated, in pairs (i, i + r/2).
  //   RopeAttrs
  kRope,

  // Causal flash attention (Dao 2023, arXiv 2307.08691), grouped queries, optional sliding window;
  // no S x S buffer.
  //   q[T,heads,d] R, k[T,kv_heads,d] R, v[T,kv_heads,d] R (rows may be strided), o[T,heads,d] W,
  //   lse[batch,heads,sequence] W, starts[T] i32 R ?, places[P,2] i32 R ?: with terms.dropout, of
  //   as many tokens of each sequence, in order.
  //   AttentionAttrs
  // With starts, sequences hold several documents one after the other: starts[t] is the position
  // in its sequence of the first token of row t's document, and no query sees keys before it. A
  // sequence's starts do not fall, and none lies behind its row.
  kAttention,
  //   q R, k R, v R, o R, lse R, do[T,heads,d] R, dq W, dk W, dv W (rows may be strided), starts[T]
  //   i32 R ?, places[P,2] i32 R ?.
  //   AttentionAttrs
  kAttentionGrad,

  // Fused LM head and cross-entropy; logits exist only in chunks of rows inside the workspace.
  //   hidden[T,h] R, weight[V,h] R, targets[T] i32 R (negative: not counted), stats[2] f32 W: {sum
  //   of losses in nats, number
  //   of counted targets}, losses[T] f32 W ?: of each row, 0 where it is not counted.
  //   LossAttrs
  kLmHeadLoss,
  // The same, and the gradients of the *sum* of losses, times schedule[3] where there is a
  // schedule:
  // dhidden W (act), dweight (W|U; in 16 bits it is rounded after each chunk).
  //   hidden R, weight R, targets R, stats W, dhidden[T,h] W, dweight[V,h] W|U, schedule[4] f32 R
  //   ?, weights[T] f32 R ?: each row's loss counts so many times in the gradients.
  //   LossAttrs
  kLmHeadLossGrad,

  // Part of causal attention whose keys are split over ranks: ring attention (Liu et al. 2023,
  // arXiv 2310.01889). The queries are those of context index `index`, the keys those of index -
  // step mod ranks; who sees whom follows from their positions in the sequence. Merges into o and
  // lse by their log-sum-exp (accumulate), or writes them; rows that see no key get o = 0, lse =
  // -inf.
  //   q[T,heads,d] R, k[T,kv_heads,d] R, v[T,kv_heads,d] R (rows may be strided), o[T,heads,d] f32
  //   W|U (the same), lse[batch,heads,sequence] f32 W|U, starts[T] i32 R ?, places[P,2] i32 R ?: of
  //   the queries, as in kAttention.     AttentionBlockAttrs
  kAttentionBlock,
  // o and lse are those of the whole attention. dq f32 is written or, with accumulate, added to; dk
  // and dv f32 likewise with accumulate_keys: they travel with the keys.
  //   q R, k R, v R, o[T,heads,d] act R, lse R, do[T,heads,d] R, dq W|U, dk W|U, dv W|U (rows may
  //   be strided), starts[T] i32 R ?, places[P,2] i32 R ?.    AttentionBlockAttrs
  kAttentionBlockGrad,

  // Cross-entropy over logits whose columns are split over ranks (Shoeybi et al. 2019, arXiv
  // 1909.08053, section 3): this rank holds the columns from shard * shard_rows on; columns at or
  // beyond `vocabulary` are padding.
  //   logits[n,Vs] f32 R (rows may be strided), targets[n] i32 R (negative: not counted), rows[n,3]
  //   f32 W: {max, sum of exp(z - max), what the shard adds to the score}. The score is the logit
  //   of the target; with label smoothing e it is 1 - e of that and e / V of every logit. A shard
  //   of nothing but padding has {lowest f32, 0, 0}.     CrossEntropyAttrs
  kCrossEntropyRows,
  // From the rows of all shards: stats[2] W|U = {sum of losses in nats, number of counted targets}.
  // The loss of a row is log Z - score + z_loss log^2 Z.
  //   targets[n] i32 R, rows[shards,n,3] f32 R, stats[2] f32 W|U, losses[n] f32 W ?: as in
  //   kLmHeadLoss.       CrossEntropyAttrs
  kCrossEntropyLoss,
  // dlogits = (1 + 2 z_loss log Z) softmax - d score of the sum of losses, times schedule[3] where
  // there is a schedule, in place; 0 in rows that are not counted and in padding.
  //   targets[n] i32 R, rows[shards,n,3] f32 R, logits[n,Vs] f32 U (rows may be strided),
  //   schedule[4] f32 R ?, weights[n] f32 R ?: as in kLmHeadLossGrad.
  //   CrossEntropyAttrs
  kCrossEntropyGrad,

  // y = x + residual + bias. y may be the memory of x or of residual.
  //   x[n,d] R, residual[n,d] R ?, bias[d] f32 R ?, y[n,d] W; x, residual and y each f32,
  // bf16 or f16.
  kAddResidual,
  // y = x with its dimensions in another order: y's dimension i is x's dimension order[i]. Both
  // dense, 4 dimensions.
  //   x[a,b,c,d] R, y W.                                                PermuteAttrs
  kPermute,
  // y[i] = x[index[i]].   x[T,h] R, index[n] i32 R, y[n,h] W.
  kGatherRows,
  // y = x with another element type.   x R, y W.
  kCast,
  // x = value.   x W.    FillAttrs
  kFill,
  // y += x.   x R, y U.
  kAdd,
  // out[1] = scale * sum of squares of x, blocked in a fixed order so that the result does not
  // depend on the thread count.
  //   x R, out[1] f32 W.                                                ScaleAttrs
  kSquaredNorm,
  // out[1] = sum of x[n], in order.   x[n] f32 R, out[1] f32 W.
  kSum,
  // total[2] = sum over the rows of stats[n,2].   stats R, total W.
  kSumStats,
  // From the reduced statistics of the step to the factor that kUpdate multiplies gradients by.
  //   squares[n] f32 R (one partial sum of squares of the *summed* gradient each), total[2] f32 R
  //   {loss sum, tokens},
  //   out[4] f32 W: {scale, grad_norm, mean loss, skip}, schedule[4] f32 R ?. With f = schedule[3],
  //   which gradients have been multiplied by (1 without a schedule):
  //   grad_norm = sqrt(sum squares) / (f tokens);
  //   scale = min(1, clip / grad_norm) / (f tokens) (1 / (f tokens) when clip <= 0); skip = 1 and
  //   scale = 0 when grad_norm is not finite or tokens is 0.
  //   ClipAttrs
  kGradScale,
  // The optimizer's update of weights by attrs.rule (optimizer_rule.h), in f32. m and v are there
  // as
  // the rule keeps one moment, two or none.
  //   grad[n] R, param[n] U, m[n] U ?, v[n] U ? (both f32 or both bf16, then rounded to the
  //   nearest), scale[4] R (kGradScale's out; nothing changes when skip is set),
  //   schedule[4] f32 R: {learning rate, 1 - beta1^t, 1 - beta2^t, any}.    UpdateAttrs
  kUpdate,
  // The same with weights in bf16 and no copy of them in f32: computed in f32 from what they are,
  // rounded stochastically to what they become (rounding.h).
  //   grad[n] R, param[n] bf16 U, m[n] U ?, v[n] U ? (as in kUpdate), scale[4] R, schedule[4] R,
  //   step[1] i32 R: the bits are those of this step.    UpdateAttrs
  kUpdateStochastic,
  // kUpdate with moments in int8 blocks (dynamic_map.h) of attrs.block elements, the last perhaps
  // of fewer: decoded, updated in f32 and encoded again. The rule keeps at least one.
  //   grad[n] R, param[n] f32 U, m[n] u8 U, v[n] u8 U ?, scale[4] R, schedule[4] R, m_scales[b] f32
  //   U, v_scales[b] f32 U ?, b blocks.    UpdateAttrs
  kUpdateInt8,
  // The codes and scales of x in blocks of attrs.block elements, the last perhaps of fewer
  // (block_codes.h). Where a byte has two codes, n is even and codes[c] has c = n / 2, else c = n.
  // With attrs.runs x is so many runs of attrs.parts parts, whole blocks each, and codes and scales
  // come part by part: part i of every run, in the order of the runs, before part i + 1 of any.
  // With a residual x + residual is encoded, and the residual comes nearer to what the codes are
  // not worth of it (KeptResidual in block_codes.h), in f32; zeros where a block is not finite.
  //   x[n] R, codes[c] u8 W, scales[b] f32 W, optional residual[n] U, b blocks.       BlockAttrs
  kEncodeBlocks,
  // What they are worth.   codes[c] u8 R, scales[b] f32 R, y[n] W.      BlockAttrs
  kDecodeBlocks,
  // The sum over parts of what their codes are worth: in f32, in the order of the parts.
  //   codes[p,c] u8 R, scales[p,b] f32 R, b blocks of a part, y[n] W.   BlockAttrs
  kSumBlocks,
  // x *= scale.   x U.        ScaleAttrs
  kScale,
  // Dropout, Srivastava et al. 2014 ("Dropout: a simple way to prevent neural networks from
  // overfitting"): y = (+=) x / (1 - p), and 0 where the element's random bits say so
  // (kernels/dropout.h). They are those of the token and the column, so that the same op on dy is
  // the gradient. y may be the memory of x.
  //   x[n,d] R (rows may be strided), places[T,2] i32 R: {position in its sequence, number of the
  //   sequence in the run} of each token, y[n,d] W|U.        DropoutAttrs
  kDropout,
  // The update of one matrix by a rule that needs all of it at once (OptimizerRow.whole_matrix).
  //   grad[r,c] R, param[r,c] f32 U, m[r,c] U ?, v[r,c] U ? (moments as in kUpdate), scale[4] R,
  //   schedule[4] R.    UpdateAttrs
  kUpdateMatrix,
  // Causal attention of new tokens of sequences whose earlier keys and values are kept. spans[b] =
  // {p, n}: the first n rows of sequence b are its tokens p to p + n - 1. Their keys and values go
  // to the rows p to p + n - 1 of its part of `keys` and `values`; then each query sees what these
  // hold up to its own position. The other rows are padding, whose o is 0. p + n <= max_length.
  //   q[T,heads,d] R, k[T,kv_heads,d] R, v[T,kv_heads,d] R (rows may be strided),
  //   keys[batch,max_length,kv_heads,d] U, values (the same) U, spans[batch,2] i32 R,
  //   o[T,heads,d] W.
  //   AttentionAttrs
  kAttentionCached,
  // The update of one tensor by a rule that keeps means of squares by row and by column
  // (OptimizerRow.factored). A matrix has `rows` and `columns`, a vector is one row with `v`
  // instead.
  //   grad[r,c] R, param[r,c] f32 U, m[r,c] U ? (as in kUpdate), v[r,c] f32 U ?, rows[r] f32 U ?,
  //   columns[c] f32 U ?, error_rows[r] f32 U ?, error_columns[c] f32 U ? (both of kCame), scale[4]
  //   R, schedule[4] R: the third is 1 - beta2 of this step.    UpdateAttrs
  kUpdateFactored,
  // y = c tanh(x / c), c being attrs.scale: Gemma Team 2024 (Gemma 2, arXiv 2408.00118, section 2).
  //   x R, y W. In place allowed.   ScaleAttrs
  kSoftcap,
  // Direct preference optimisation, Rafailov et al. 2023 (arXiv 2305.18290, equation 7), of pairs
  // of sequences, the preferred one first. With s the sum of reference - losses over a sequence and
  // d = s of the first - s of the second, a pair's loss is -(1 - e) log sigmoid(beta d) - e log
  // sigmoid(-beta d), e being the label smoothing. weights are its derivatives by `losses`.
  //   losses[T] f32 R: of each token, 0 where it is not counted, reference[T] f32 R: the same under
  //   the model that is kept, weights[T] f32 W, stats[2] f32 W|U: {sum of losses, pairs},
  //   margins[2] f32 W|U: {sum of beta d, pairs with d > 0}.   PreferenceAttrs
  kPreferenceLoss,
  kLastOp = kPreferenceLoss,
};

constexpr bool IsUpdate(Op op) {
  return op == Op::kUpdate || op == Op::kUpdateStochastic || op == Op::kUpdateInt8 ||
         op == Op::kUpdateMatrix || op == Op::kUpdateFactored;
}

std::string_view Name(Op op);  // "layer_norm_grad"
// False when no op has that name.
bool ParseOp(std::string_view name, Op* op);

struct NoAttrs {
  bool operator==(const NoAttrs&) const = default;
};
// Which tokens of each sequence a rank holds, when `ranks` of them share it.
struct TokenShare {
  int64_t ranks = 1;
  int64_t index = 0;  // of this rank; not part of a program
  // Pieces index and 2 ranks - 1 - index of 2 ranks; otherwise piece index of ranks.
  bool zigzag = false;

  // The position in its sequence of row t, when this rank holds `sequence` tokens of each.
  int64_t Position(int64_t t, int64_t sequence) const {
    const int64_t i = t % sequence;
    if (!zigzag) return index * sequence + i;
    const int64_t piece = sequence / 2;
    return i < piece ? index * piece + i : (2 * ranks - 1 - index) * piece + (i - piece);
  }
  bool operator==(const TokenShare&) const = default;
};
struct EmbeddingAttrs {
  int64_t sequence = 0;    // tokens of each sequence that this rank holds
  int64_t shard_rows = 0;  // rows of each rank's part of the table; 0: the table is whole
  int64_t shard = 0;       // of this rank; not part of a program
  TokenShare context;
  bool operator==(const EmbeddingAttrs&) const = default;
};
struct NormAttrs {
  float epsilon = 1e-5f;
  bool accumulate = false;   // gradients of weight and bias are added to instead of written
  bool unit_offset = false;  // of an RMSNorm: its factor is 1 + weight
  bool operator==(const NormAttrs&) const = default;
};
enum class Activation : uint8_t {
  kGeluTanh = 0,
  kGelu,  // x Phi(x), by erf
  kRelu,
  kSilu,
};
struct ActivationAttrs {
  Activation activation = Activation::kGeluTanh;
  bool operator==(const ActivationAttrs&) const = default;
};
// What happens to the product before it is stored, and what `aux` means.
enum class Epilogue : uint8_t {
  kNone = 0,
  // c = gelu(product); aux W receives the product before the activation. Then c is the gelu of aux
  // as it is stored: kGelu on aux gives the bits of c where both have one element type. Without aux
  // c is the gelu of the unrounded product.
  kGelu,
  kGeluGrad,  // c = product * gelu'(aux); aux R is the value before the activation
};
// The arithmetic of the product. Inputs are converted on the fly when their element type differs.
enum class MatmulPrecision : uint8_t {
  kF32 = 0,  // f32 products (or an emulation with error no larger than f32's own)
  kBF16,     // operands rounded to bf16, products accumulated in f32
  // f32 operands of which a backend may use only the upper 10 bits of the fraction (NVIDIA's TF32),
  // accumulated in f32. The CPU computes it as kF32.
  kTF32,
  // f16 operands, products accumulated in f32. f32 operands are rounded to f16 first, which is
  // infinity from 65520 on; in attention a backend may use them as they are.
  kF16,
  // Operands of any type quantised to 8 bits (fp8.h), each with one scale that its own largest
  // magnitude gives; their products accumulated in f32, then times both factors. kMatmul alone.
  kFP8 = 4,
};
// The operand of an fp8 product that is a gradient: E5M2, which has the range that gradients need;
// the other, or both, are E4M3.
enum class Fp8Gradient : uint8_t { kNone = 0, kA, kB };
struct MatmulAttrs {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // c is updated; allowed only without bias, residual and epilogue
  Epilogue epilogue = Epilogue::kNone;
  MatmulPrecision precision = MatmulPrecision::kF32;
  Fp8Gradient gradient = Fp8Gradient::kNone;  // of fp8 products alone
  bool operator==(const MatmulAttrs&) const = default;
};
struct AccumulateAttrs {
  bool accumulate = false;
  bool operator==(const AccumulateAttrs&) const = default;
};
struct RopeAttrs {
  int64_t sequence = 0;  // tokens of each sequence that this rank holds
  bool inverse = false;  // rotate by minus the angle: the gradient of the forward op
  TokenShare context;
  bool operator==(const RopeAttrs&) const = default;
};
// What becomes of scores beside their scale and the mask.
struct ScoreTerms {
  float softcap = 0;  // scores are softcap * tanh(score / softcap), as kSoftcap; 0: as they are
  // Press et al. 2022 (ALiBi, arXiv 2108.12409): the distance from key to query times the slope of
  // the head is subtracted. So many heads over all ranks, which the slopes follow from; 0: none.
  int64_t alibi_heads = 0;
  // Probability with which an element of the softmax is dropped (kernels/dropout.h), by the bits of
  // seed, site, the query's place, the key's position and the head.
  float dropout = 0;
  uint64_t seed = 0;
  uint32_t site = 0;
  int64_t first_head = 0;  // of this rank's heads, over all ranks; not part of a program
  bool operator==(const ScoreTerms&) const = default;
};
struct AttentionAttrs {
  int64_t sequence = 0;  // T = batch * sequence
  int64_t window = 0;    // a query sees itself and window - 1 keys before it; 0: all before it
  float scale = 0;       // of the scores, usually 1 / sqrt(d)
  MatmulPrecision precision = MatmulPrecision::kF32;
  ScoreTerms terms = {};
  bool operator==(const AttentionAttrs&) const = default;
};
struct AttentionBlockAttrs {
  int64_t sequence = 0;  // tokens of each sequence that a rank holds; T = batch * sequence
  int64_t window = 0;    // as in AttentionAttrs
  float scale = 0;
  MatmulPrecision precision = MatmulPrecision::kF32;
  TokenShare context;            // of the queries
  int64_t step = 0;              // the keys are those of context.index - step mod context.ranks
  bool accumulate = false;       // o and lse (dq) are updated instead of written
  bool accumulate_keys = false;  // dk and dv are
  ScoreTerms terms = {};
  bool operator==(const AttentionBlockAttrs&) const = default;
};
// What a counted target's loss has beside -log p(target); both act on gradients as on losses.
struct LossTerms {
  // Szegedy et al. 2015 (arXiv 1512.00567, section 7): the target has 1 - label_smoothing of its
  // weight, every entry of the vocabulary label_smoothing / V, as torch's cross_entropy does it.
  float label_smoothing = 0;
  // Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, section 5): z_loss * log^2 Z, where Z is the sum
  // that the softmax divides by.
  float z_loss = 0;
  float softcap = 0;  // logits are first softcap * tanh(logit / softcap), as kSoftcap; 0: not
  bool operator==(const LossTerms&) const = default;
};
struct CrossEntropyAttrs {
  int64_t shard_rows = 0;  // columns of logits of each rank
  int64_t shard = 0;       // of this rank; not part of a program
  int64_t vocabulary = 0;  // columns that count, over all ranks
  bool accumulate = false;
  LossTerms terms = {};
  bool operator==(const CrossEntropyAttrs&) const = default;
};
// T = batch * sequence, the batch being pairs.
struct PreferenceAttrs {
  int64_t sequence = 0;
  float beta = 0.1f;
  float label_smoothing = 0;  // below 0.5
  bool accumulate = false;    // stats and margins are added to
  bool operator==(const PreferenceAttrs&) const = default;
};
struct ScaleAttrs {
  float scale = 1;
  bool operator==(const ScaleAttrs&) const = default;
};
struct PermuteAttrs {
  std::array<int32_t, 4> order = {0, 1, 2, 3};
  bool operator==(const PermuteAttrs&) const = default;
};
struct LossAttrs {
  int64_t chunk_rows = 0;   // rows of logits held at a time, > 0
  bool accumulate = false;  // dweight is added to instead of written
  MatmulPrecision precision = MatmulPrecision::kF32;
  LossTerms terms = {};
  bool operator==(const LossAttrs&) const = default;
};
struct DropoutAttrs {
  float probability = 0;  // of an element to be dropped; at least 0, below 1
  uint64_t seed = 0;
  uint32_t site = 0;  // which of the values that are dropped in a pass; each has other bits
  // Ranks that have x's rows, or its columns, in parts, this rank the part `shard`; the places are
  // those of all rows. At most one is above 1.
  int64_t row_shards = 1, column_shards = 1;
  int64_t shard = 0;  // of this rank; not part of a program
  bool accumulate = false;
  bool operator==(const DropoutAttrs&) const = default;
};
struct FillAttrs {
  float value = 0;
  bool operator==(const FillAttrs&) const = default;
};
struct ClipAttrs {
  float clip_grad_norm = 0;  // <= 0: no clipping
  bool operator==(const ClipAttrs&) const = default;
};
// Of kUpdateStochastic: whose random bits its weights are rounded with. Element i of the operand is
// element first + i of the state that rests in `buffer`, whose tensors the program names.
struct RoundingAttrs {
  uint64_t seed = 0;
  int64_t buffer = -1;  // of a program; -1: none
  int64_t first = 0;
  // What follows for this rank, at most kMaxRoundingParts; not part of a program.
  std::shared_ptr<const std::vector<RoundingPart>> parts;
  bool operator==(const RoundingAttrs&) const = default;
};
struct UpdateAttrs {
  OptimizerRule rule = OptimizerRule::kAdamw;
  float beta1 = 0.9f;  // of kMomentum, kNesterov and kMuon the momentum
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  RoundingAttrs rounding = {};
  int64_t block = 0;      // of kUpdateInt8: elements of a moment that share a scale
  float lr_scale = 1.0f;  // times the schedule's learning rate
  // The next three belong to kUpdateMatrix alone.
  float step_scale = 1.0f;                            // times the step, but not its weight decay
  int64_t iterations = 0;                             // of Newton and Schulz
  MatmulPrecision precision = MatmulPrecision::kF32;  // of their products
  // The next four belong to kUpdateFactored alone.
  float clip_threshold = 0;  // the root mean square of a step, before the learning rate, is at most
                             // this; 0: it may be any
  float least_scale = 0;     // the step is times the root mean square of the tensor, or times this
                             // where that is less; 0: neither
  float beta3 = 0;           // of kCame: the decay of its errors
  float error_epsilon = 0;   // of kCame: added to their squares
  bool operator==(const UpdateAttrs&) const = default;
};

// int8_linear, int4_linear, fp8 or nf4, in blocks of so many elements.
struct BlockAttrs {
  Format format = Format::kInt8Linear;
  int64_t block = kActivationBlock;
  int64_t runs = 1;   // of kEncodeBlocks; what the others read is in order
  int64_t parts = 1;  // of a run
  bool operator==(const BlockAttrs&) const = default;
};

using OpAttrs = std::variant<NoAttrs, EmbeddingAttrs, NormAttrs, MatmulAttrs, AccumulateAttrs,
    RopeAttrs, AttentionAttrs, LossAttrs, FillAttrs, ClipAttrs, UpdateAttrs, AttentionBlockAttrs,
    CrossEntropyAttrs, ScaleAttrs, PermuteAttrs, BlockAttrs, ActivationAttrs, DropoutAttrs,
    PreferenceAttrs>;

enum class Access : uint8_t { kNone, kRead, kWrite, kUpdate };

// Number of operands of `op`, absent ones counted; the workspace is not one of them.
int OperandCount(Op op);
std::string_view OperandName(Op op, int index);
bool OperandOptional(Op op, int index);
// What the op does to operand `index`, given its attributes. Absent operands have no access
// whatever this says.
Access OperandAccess(Op op, const OpAttrs& attrs, int index);

// Empty when the operands fit the op; otherwise one sentence with the op, the operand, its shape
// and the rule.
std::string CheckShapes(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands);

// Floating-point operations; a multiply-add counts 2; causal attention counts the half that is
// computed. REQUIRES (this and the next two): CheckShapes is empty.
int64_t Flops(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands);
// Bytes that must cross memory at least once (each operand once, updates twice, workspace not
// counted).
int64_t BytesMoved(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands);
// Scratch bytes that the instruction must bring, for a CPU rank that computes with `threads`
// threads. A kernel allocates nothing itself. 0 where it needs none.
int64_t WorkspaceBytes(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands,
                       int threads);

}  // namespace terrace::kernels
