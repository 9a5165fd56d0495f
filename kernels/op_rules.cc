// SPDX-License-Identifier: Apache-2.0
#include "kernels/op_rules.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/format.h"
#include "kernels/op_complaint.h"

namespace terrace::kernels {
namespace {

using Operands = std::span<const TensorShape>;

std::string Number(int64_t value) { return std::to_string(value); }

// Sequences are numbered by 32-bit positions in the kernels.
constexpr int64_t kMaxPositions = int64_t{1} << 28;

// A rank's share of each sequence: `sequence` tokens of ranks * sequence.
std::string CheckShare(const OpRow& row, const TokenShare& share, int64_t sequence) {
  if (share.ranks < 1 || share.ranks > kMaxPositions) {
    return ComplainAttr(row, "context.ranks", Number(share.ranks),
                        "be 1 to " + Number(kMaxPositions));
  }
  if (share.index < 0 || share.index >= share.ranks) {
    return ComplainAttr(row, "context.index", Number(share.index),
                        "be 0 to " + Number(share.ranks - 1) + ", a rank of the context");
  }
  if (share.zigzag && sequence % 2 != 0) {
    return ComplainAttr(row, "sequence", Number(sequence),
                        "be even where the context is in zig-zag");
  }
  if (sequence <= kMaxPositions / share.ranks) return "";
  return ComplainAttr(row, "sequence", Number(sequence),
                      "be at most " + Number(kMaxPositions / share.ranks) + " for " +
                          Number(share.ranks) + " ranks of a context");
}

// A table with a row for each position that a rank of the context looks up.
std::string CheckPositions(const OpRow& row, const TokenShare& share, int64_t sequence, int index,
                           Operands operands) {
  std::string error = CheckShare(row, share, sequence);
  if (!error.empty()) return error;
  const int64_t positions = share.ranks * sequence;
  if (operands[index].rows() >= positions) return "";
  return Complain(row, index, operands[index],
                  "have a row for each of the sequence's " + Number(positions) + " positions");
}

std::string CheckEmbedding(const OpRow& row, const EmbeddingAttrs& attrs, int table, int positions,
                           Operands operands) {
  if (attrs.shard_rows < 0 || attrs.shard < 0) {
    return ComplainAttr(row, attrs.shard < 0 ? "shard" : "shard_rows",
                        Number(std::min(attrs.shard, attrs.shard_rows)), "not be negative");
  }
  if (attrs.shard_rows > 0 && !operands[table].absent() &&
      operands[table].rows() != attrs.shard_rows) {
    return Complain(row, table, operands[table],
                    "have shard_rows = " + Number(attrs.shard_rows) + " rows");
  }
  if (operands[positions].absent()) return "";
  if (attrs.sequence < 1) {
    return ComplainAttr(row, "sequence", Number(attrs.sequence),
                        "be at least 1 where there is a table of positions");
  }
  return CheckPositions(row, attrs.context, attrs.sequence, positions, operands);
}

std::string CheckNorm(const OpRow& row, const NormAttrs& attrs) {
  const bool of_rms = row.op == Op::kRmsNorm || row.op == Op::kRmsNormGrad;
  if (attrs.unit_offset && !of_rms) {
    return ComplainAttr(row, "unit_offset", "true", "be false: only an RMSNorm has it");
  }
  if (attrs.epsilon >= 0 && std::isfinite(attrs.epsilon)) return "";
  return ComplainAttr(row, "epsilon", std::to_string(attrs.epsilon), "be finite and not negative");
}

// The rank of `x` where the table leaves it open: rows, or rows of heads.
std::string CheckRmsNorm(const OpRow& row, const NormAttrs& attrs, int index, Operands operands) {
  const TensorShape& x = operands[index];
  if (x.dims != 2 && x.dims != 3) {
    return Complain(row, index, x, "be of shape [n,d] or [n,heads,d]");
  }
  return CheckNorm(row, attrs);
}

std::string CheckMatmul(const OpRow& row, const MatmulAttrs& attrs, Operands operands) {
  constexpr int kBias = 3, kResidual = 4, kAux = 5;
  for (int index : {kBias, kResidual, kAux}) {
    if (attrs.accumulate && !operands[index].absent()) {
      return Complain(row, index, operands[index], "be absent when the product is accumulated");
    }
  }
  if (attrs.gradient != Fp8Gradient::kNone && attrs.precision != MatmulPrecision::kFP8) {
    return ComplainAttr(row, "gradient", Number(static_cast<int>(attrs.gradient)),
                        "be 0 where the product is not fp8");
  }
  const TensorShape& aux = operands[kAux];
  switch (attrs.epilogue) {
    case Epilogue::kNone:
      return aux.absent() ? "" : Complain(row, kAux, aux, "be absent without an epilogue");
    case Epilogue::kGelu:
      break;
    case Epilogue::kGeluGrad:
      if (aux.absent()) return Complain(row, kAux, aux, "be given for the gelu_grad epilogue");
      break;
    default:
      return ComplainAttr(row, "epilogue", Number(static_cast<int>(attrs.epilogue)),
                          "be none, gelu or gelu_grad");
  }
  if (!attrs.accumulate) return "";
  return ComplainAttr(row, "accumulate", "true", "be false with an epilogue");
}

std::string CheckRope(const OpRow& row, const RopeAttrs& attrs, Operands operands) {
  constexpr int kX = 0, kTable = 1;
  if (attrs.sequence < 1) {
    return ComplainAttr(row, "sequence", Number(attrs.sequence), "be at least 1");
  }
  const int64_t rotated = operands[kTable].size[1], head = operands[kX].size[2];
  if (rotated % 2 != 0 || rotated > head) {
    return Complain(row, kTable, operands[kTable],
                    "have an even last dimension of at most the head's " + Number(head));
  }
  return CheckPositions(row, attrs.context, attrs.sequence, kTable, operands);
}

std::string CheckActivation(const OpRow& row, const ActivationAttrs& attrs) {
  switch (attrs.activation) {
    case Activation::kGeluTanh:
    case Activation::kGelu:
    case Activation::kRelu:
    case Activation::kSilu:
      return "";
  }
  return ComplainAttr(row, "activation", Number(static_cast<int>(attrs.activation)),
                      "be one of Activation");
}

std::string CheckScale(const OpRow& row, const ScaleAttrs& attrs) {
  if (std::isfinite(attrs.scale)) return "";
  return ComplainAttr(row, "scale", std::to_string(attrs.scale), "be finite");
}

std::string CheckSoftcap(const OpRow& row, const ScaleAttrs& attrs) {
  if (attrs.scale > 0 && std::isfinite(attrs.scale)) return "";
  return ComplainAttr(row, "scale", std::to_string(attrs.scale), "be finite, above 0");
}

std::string CheckDropout(const OpRow& row, const DropoutAttrs& attrs, Operands operands) {
  constexpr int kX = 0, kPlaces = 1;
  if (!(attrs.probability >= 0 && attrs.probability < 1)) {
    return ComplainAttr(row, "probability", std::to_string(attrs.probability),
                        "be at least 0 and below 1");
  }
  const int64_t shards = std::max(attrs.row_shards, attrs.column_shards);
  if (std::min(attrs.row_shards, attrs.column_shards) != 1) {
    return ComplainAttr(row, "row_shards", Number(attrs.row_shards),
                        "be 1, or column_shards must be, which is " + Number(attrs.column_shards));
  }
  if (attrs.shard < 0 || attrs.shard >= shards) {
    return ComplainAttr(row, "shard", Number(attrs.shard), "be 0 to " + Number(shards - 1));
  }
  const int64_t rows = operands[kPlaces].size[0];
  if (rows % attrs.row_shards != 0 || rows / attrs.row_shards != operands[kX].size[0]) {
    return Complain(row, kPlaces, operands[kPlaces],
                    "have a row for each of x's " + Number(operands[kX].size[0]) + " rows on " +
                        Number(attrs.row_shards) + " ranks");
  }
  // A column and the block of its bits are counted in 32 bits.
  if (operands[kX].size[1] <= std::numeric_limits<int32_t>::max() / attrs.column_shards) return "";
  return ComplainAttr(row, "column_shards", Number(attrs.column_shards),
                      "give fewer than 2^31 columns over all shards");
}

// Attention and the LM head know no fp8: their bf16 is its companion.
std::string RefuseFp8(const OpRow& row, MatmulPrecision precision) {
  if (precision != MatmulPrecision::kFP8) return "";
  return ComplainAttr(row, "precision", "fp8", "be another one: only matmul has fp8 products");
}

// The widest head that the kernels keep in registers and on the stack.
constexpr int64_t kMaxHeadDim = 256;

// Of an op whose queries have `heads` heads on this rank.
std::string CheckScores(const OpRow& row, const ScoreTerms& terms, int64_t heads) {
  if (!(terms.softcap >= 0) || !std::isfinite(terms.softcap)) {
    return ComplainAttr(row, "softcap", std::to_string(terms.softcap),
                        "be 0 (no softcap) or more, and finite");
  }
  if (!(terms.dropout >= 0 && terms.dropout < 1)) {
    return ComplainAttr(row, "dropout", std::to_string(terms.dropout), "be at least 0 and below 1");
  }
  constexpr int64_t kMaxHeads = int64_t{1} << 31;  // counted in 32 bits
  if (terms.alibi_heads != 0 && (terms.alibi_heads < heads || terms.alibi_heads >= kMaxHeads)) {
    return ComplainAttr(
        row, "alibi_heads", Number(terms.alibi_heads),
        "be 0 (no ALiBi), or the heads over all ranks, of which this one has " + Number(heads));
  }
  const int64_t most = (terms.alibi_heads == 0 ? kMaxHeads : terms.alibi_heads) - heads;
  if (terms.first_head >= 0 && terms.first_head <= most) return "";
  return ComplainAttr(row, "first_head", Number(terms.first_head), "be 0 to " + Number(most));
}

// Both kinds of attention attributes: what all forms of attention ask for.
template <typename Attrs>
std::string CheckQueries(const OpRow& row, const Attrs& attrs, Operands operands) {
  constexpr int kQ = 0, kK = 1;
  const TensorShape& q = operands[kQ];
  if (attrs.sequence < 1) {
    return ComplainAttr(row, "sequence", Number(attrs.sequence), "be at least 1");
  }
  if (attrs.window < 0) {
    return ComplainAttr(row, "window", Number(attrs.window), "be 0 (no window) or more");
  }
  if (std::string refusal = RefuseFp8(row, attrs.precision); !refusal.empty()) return refusal;
  if (!(attrs.scale > 0) || !std::isfinite(attrs.scale)) {
    return ComplainAttr(row, "scale", std::to_string(attrs.scale), "be finite and above 0");
  }
  if (q.size[2] > kMaxHeadDim) {
    return Complain(row, kQ, q, "have a last dimension of at most " + Number(kMaxHeadDim));
  }
  if (q.rows() % attrs.sequence != 0) {
    return Complain(
        row, kQ, q,
        "have a multiple of the sequence length " + Number(attrs.sequence) + " as its rows");
  }
  if (q.size[1] % operands[kK].size[1] != 0) {
    return Complain(row, kK, operands[kK],
                    "have a number of heads that divides the query's " + Number(q.size[1]));
  }
  return CheckScores(row, attrs.terms, q.size[1]);
}

// The places of the tokens are there where elements of the softmax are dropped, and nowhere else.
std::string CheckPlaces(const OpRow& row, const ScoreTerms& terms, int index, int64_t batch,
                        Operands operands) {
  const TensorShape& places = operands[index];
  if (places.absent() != (terms.dropout == 0)) {
    return ComplainAttr(row, "dropout", std::to_string(terms.dropout),
                        places.absent() ? "be 0 without places" : "be above 0 with places");
  }
  if (places.absent() || places.rows() % batch == 0) return "";
  return Complain(row, index, places,
                  "have as many rows for each of the " + Number(batch) + " sequences");
}

// And of those that give a log-sum-exp.
template <typename Attrs>
std::string CheckAttention(const OpRow& row, const Attrs& attrs, Operands operands) {
  constexpr int kQ = 0, kLse = 4;
  if (std::string error = CheckQueries(row, attrs, operands); !error.empty()) return error;
  const TensorShape& q = operands[kQ];
  const TensorShape& lse = operands[kLse];
  const int64_t batch = q.rows() / attrs.sequence;
  if (lse.size[0] == batch && lse.size[2] == attrs.sequence) {
    const bool forward = row.op == Op::kAttention || row.op == Op::kAttentionBlock;
    return CheckPlaces(row, attrs.terms, forward ? 6 : 10, batch, operands);
  }
  return Complain(row, kLse, lse,
                  "be [batch,heads,sequence] = [" + Number(batch) + "," + Number(q.size[1]) + "," +
                      Number(attrs.sequence) + "]");
}

std::string CheckAttentionCached(const OpRow& row, const AttentionAttrs& attrs, Operands operands) {
  constexpr int kQ = 0, kKeys = 3;
  if (std::string error = CheckQueries(row, attrs, operands); !error.empty()) return error;
  if (attrs.terms.dropout != 0) {
    return ComplainAttr(row, "dropout", std::to_string(attrs.terms.dropout),
                        "be 0: nothing is dropped while text is generated");
  }
  const TensorShape& keys = operands[kKeys];
  const int64_t batch = operands[kQ].rows() / attrs.sequence;
  if (keys.size[0] != batch) {
    return Complain(row, kKeys, keys,
                    "be [batch,max_length,kv_heads,d] with the batch " + Number(batch) + " of q");
  }
  if (keys.size[1] >= attrs.sequence) return "";
  return Complain(row, kKeys, keys,
                  "have room for the " + Number(attrs.sequence) + " new tokens of a sequence");
}

std::string CheckAttentionBlock(const OpRow& row, const AttentionBlockAttrs& attrs,
                                Operands operands) {
  std::string error = CheckAttention(row, attrs, operands);
  if (error.empty()) error = CheckShare(row, attrs.context, attrs.sequence);
  if (!error.empty()) return error;
  if (attrs.step >= 0 && attrs.step < attrs.context.ranks) return "";
  return ComplainAttr(row, "step", Number(attrs.step),
                      "be 0 to " + Number(attrs.context.ranks - 1) + ", less than context.ranks");
}

std::string CheckTerms(const OpRow& row, const LossTerms& terms) {
  if (!(terms.label_smoothing >= 0 && terms.label_smoothing < 1)) {
    return ComplainAttr(row, "label_smoothing", std::to_string(terms.label_smoothing),
                        "be at least 0 and below 1");
  }
  if (!(terms.z_loss >= 0))
    return ComplainAttr(row, "z_loss", std::to_string(terms.z_loss), "not be negative");
  if (terms.softcap >= 0 && std::isfinite(terms.softcap)) return "";
  return ComplainAttr(row, "softcap", std::to_string(terms.softcap), "be finite, not negative");
}

// `logits` and `rows` are indices of operands, -1 where the op has none.
std::string CheckCrossEntropy(const OpRow& row, const CrossEntropyAttrs& attrs, int logits,
                              int rows, Operands operands) {
  if (std::string error = CheckTerms(row, attrs.terms); !error.empty()) return error;
  if (attrs.shard_rows < 1) {
    return ComplainAttr(row, "shard_rows", Number(attrs.shard_rows), "be at least 1");
  }
  if (attrs.vocabulary < 1) {
    return ComplainAttr(row, "vocabulary", Number(attrs.vocabulary), "be at least 1");
  }
  const int64_t shards =
      rows < 0 ? (attrs.vocabulary - 1) / attrs.shard_rows + 1 : operands[rows].size[0];
  if (attrs.shard < 0 ||
      attrs.shard_rows > kMaxSpanElements / (std::max(shards, attrs.shard) + 1)) {
    return ComplainAttr(row, "shard", Number(attrs.shard),
                        "be 0 or more, and fewer than 2^56 columns over all shards");
  }
  if (logits >= 0 && operands[logits].size[1] != attrs.shard_rows) {
    return Complain(row, logits, operands[logits],
                    "have shard_rows = " + Number(attrs.shard_rows) + " columns");
  }
  if (rows < 0) return "";
  if (shards * attrs.shard_rows < attrs.vocabulary) {
    return Complain(row, rows, operands[rows],
                    "come from enough shards of " + Number(attrs.shard_rows) +
                        " columns for the vocabulary of " + Number(attrs.vocabulary));
  }
  if (logits < 0 || attrs.shard < shards) return "";
  return ComplainAttr(row, "shard", Number(attrs.shard),
                      "be 0 to " + Number(shards - 1) + ", one of the shards in 'rows'");
}

std::string CheckPreference(const OpRow& row, const PreferenceAttrs& attrs, Operands operands) {
  if (attrs.sequence < 1 || attrs.sequence > kMaxSpanElements / 2 ||
      operands[0].size[0] % (2 * attrs.sequence) != 0) {
    return Complain(row, 0, operands[0],
                    "have whole pairs of sequences of " + Number(attrs.sequence) + " tokens");
  }
  if (!(attrs.beta > 0 && std::isfinite(attrs.beta)))
    return ComplainAttr(row, "beta", std::to_string(attrs.beta), "be above 0");
  if (attrs.label_smoothing >= 0 && attrs.label_smoothing < 0.5f) return "";
  return ComplainAttr(row, "label_smoothing", std::to_string(attrs.label_smoothing),
                      "be at least 0 and below 0.5");
}

std::string CheckPermute(const OpRow& row, const PermuteAttrs& attrs, Operands operands) {
  uint32_t seen = 0;
  std::string sizes;
  bool fits = true;
  for (int d = 0; d < kMaxDims; ++d) {
    const int32_t from = attrs.order[d];
    if (from < 0 || from >= kMaxDims) {
      return ComplainAttr(row, "order[" + Number(d) + "]", Number(from), "be 0 to 3");
    }
    seen |= 1u << from;
    fits = fits && operands[1].size[d] == operands[0].size[from];
    sizes += (d == 0 ? "" : ",") + Number(operands[0].size[from]);
  }
  if (seen != 0b1111) {
    return ComplainAttr(row, "order", "not a permutation", "hold each of 0, 1, 2 and 3 once");
  }
  return fits ? "" : Complain(row, 1, operands[1], "have the reordered dimensions [" + sizes + "]");
}

// Of what has several parts, one behind the other, the elements of one.
int64_t OfAPart(const TensorShape& shape) { return shape.size[shape.dims - 1]; }

// Blocks of `elements` elements, with a scale for each in each of the operands named.
std::string CheckBlocks(const OpRow& row, int64_t block, int64_t elements,
                        std::initializer_list<int> scales, Operands operands) {
  const bool power = block > 0 && (block & (block - 1)) == 0;
  if (!power || block < kLeastBlock || block > kInt8Block) {
    return ComplainAttr(
        row, "block", Number(block),
        "be a power of two from " + Number(kLeastBlock) + " to " + Number(kInt8Block));
  }
  const int64_t blocks = (elements + block - 1) / block;
  for (const int index : scales) {
    if (OfAPart(operands[index]) != blocks)
      return Complain(row, index, operands[index],
                      "have a scale for each of the " + Number(blocks) + " blocks");
  }
  return "";
}

// Runs of parts of whole blocks, which are encoded part by part.
std::string CheckRuns(const OpRow& row, const BlockAttrs& attrs, int64_t elements) {
  if (attrs.runs < 1 || attrs.parts < 1 || attrs.runs > elements || attrs.parts > elements) {
    const bool runs = attrs.runs < 1 || attrs.runs > elements;
    return ComplainAttr(row, runs ? "runs" : "parts", Number(runs ? attrs.runs : attrs.parts),
                        "be 1 to " + Number(elements) + ", the number of elements");
  }
  if (attrs.runs == 1 && attrs.parts == 1) return "";
  if (row.op != Op::kEncodeBlocks) {
    const bool runs = attrs.runs > 1;
    return ComplainAttr(row, runs ? "runs" : "parts", Number(runs ? attrs.runs : attrs.parts),
                        "be 1 but for encode_blocks");
  }
  if (elements % attrs.runs == 0 && elements / attrs.runs % attrs.parts == 0 &&
      elements / attrs.runs / attrs.parts % attrs.block == 0) {
    return "";
  }
  return ComplainAttr(row, "runs", Number(attrs.runs),
                      "cut " + Number(elements) + " elements into runs of " + Number(attrs.parts) +
                          " parts of whole blocks of " + Number(attrs.block));
}

// `codes`, `scales` and `elements` are indices of operands.
std::string CheckCodes(const OpRow& row, const BlockAttrs& attrs, int codes, int scales,
                       int elements, Operands operands) {
  const bool known = attrs.format == Format::kInt8Linear || attrs.format == Format::kInt4Linear ||
                     attrs.format == Format::kFP8 || attrs.format == Format::kNF4;
  if (!known) {
    return ComplainAttr(row, "format", std::string(RowOf(attrs.format).name),
                        "be int8_linear, int4_linear, fp8 or nf4");
  }
  const int64_t count = operands[elements].rows(), packed = RowOf(attrs.format).packed;
  if (OfAPart(operands[codes]) * packed != count) {
    return Complain(row, codes, operands[codes],
                    "have " + std::string(packed == 1 ? "a code" : "half a byte") +
                        " for each of the " + Number(count) + " elements");
  }
  std::string error = CheckBlocks(row, attrs.block, count, {scales}, operands);
  return error.empty() ? CheckRuns(row, attrs, count) : error;
}

// A rule has the moments that its row says, and their scales where they are in blocks.
std::string CheckMoments(const OpRow& row, const UpdateAttrs& attrs, Operands operands) {
  constexpr int kFirst = 2, kScales = 6;
  const OptimizerRow& rule = RowOf(attrs.rule);
  const bool in_blocks = row.op == Op::kUpdateInt8;
  for (int moment = 0; moment < kMomentsMax; ++moment) {
    for (const int index : {kFirst + moment, kScales + moment}) {
      if (index >= kScales && !in_blocks) continue;
      if (operands[index].absent() == (moment >= rule.moments)) continue;
      return ComplainAttr(row, "rule", std::string(rule.name),
                          "keep " + Number(rule.moments) + " moments: operand '" +
                              std::string(row.operands[index].name) + "' is " +
                              (operands[index].absent() ? "absent" : "there"));
    }
  }
  if (in_blocks) {
    std::string error = CheckBlocks(row, attrs.block, operands[0].rows(), {kScales}, operands);
    if (!error.empty() || rule.moments < kMomentsMax) return error;
    return CheckBlocks(row, attrs.block, operands[0].rows(), {kScales + 1}, operands);
  }
  if (attrs.block == 0) return "";
  return ComplainAttr(row, "block", Number(attrs.block), "be 0 where moments are not in blocks");
}

// Five are usual; each costs as much as the last.
constexpr int64_t kIterationsMax = 100;

// Rules of whole matrices have an op of their own, and the others do not know what they say.
std::string CheckWholeMatrix(const OpRow& row, const UpdateAttrs& attrs) {
  const OptimizerRow& rule = RowOf(attrs.rule);
  const bool whole = row.op == Op::kUpdateMatrix;
  if (whole != rule.whole_matrix) {
    return ComplainAttr(row, "rule", std::string(rule.name),
                        whole ? "be one of whole matrices" : "update elements by themselves");
  }
  if (!whole) {
    const bool says_nothing =
        attrs.step_scale == 1 && attrs.iterations == 0 && attrs.precision == MatmulPrecision::kF32;
    return says_nothing ? ""
                        : ComplainAttr(row, "iterations", Number(attrs.iterations),
                                       "be 0, step_scale 1 and precision f32");
  }
  if (!(attrs.epsilon > 0))  // of a matrix of zeros the norm
    return ComplainAttr(row, "epsilon", std::to_string(attrs.epsilon), "be above 0");
  if (!(attrs.step_scale > 0) || !std::isfinite(attrs.step_scale))
    return ComplainAttr(row, "step_scale", std::to_string(attrs.step_scale), "be above 0");
  if (attrs.iterations < 1 || attrs.iterations > kIterationsMax) {
    return ComplainAttr(row, "iterations", Number(attrs.iterations),
                        "be from 1 to " + Number(kIterationsMax));
  }
  return RefuseFp8(row, attrs.precision);
}

bool SaysNothingFactored(const UpdateAttrs& attrs) {
  return attrs.clip_threshold == 0 && attrs.least_scale == 0 && attrs.beta3 == 0 &&
         attrs.error_epsilon == 0;
}

std::string CheckFactoredAttrs(const OpRow& row, const UpdateAttrs& attrs) {
  const bool came = attrs.rule == OptimizerRule::kCame;
  const auto amount = [&row](std::string_view name, float value, bool may_be_zero) {
    return std::isfinite(value) && (value > 0 || (may_be_zero && value == 0))
               ? ""
               : ComplainAttr(row, name, std::to_string(value),
                              may_be_zero ? "not be negative" : "be above 0");
  };
  std::string error = amount("epsilon", attrs.epsilon, false);
  if (error.empty()) error = amount("clip_threshold", attrs.clip_threshold, true);
  if (error.empty()) error = amount("least_scale", attrs.least_scale, true);
  if (error.empty() && came) error = amount("error_epsilon", attrs.error_epsilon, false);
  if (!error.empty()) return error;
  if (attrs.beta3 < 0 || !(attrs.beta3 < 1)) {
    return ComplainAttr(row, "beta3", std::to_string(attrs.beta3), "be at least 0 and below 1");
  }
  if (came ? attrs.least_scale == 0 : attrs.beta3 == 0 && attrs.error_epsilon == 0) return "";
  return ComplainAttr(row, came ? "least_scale" : "beta3",
                      std::to_string(came ? attrs.least_scale : attrs.beta3),
                      came ? "be 0 with the rule came" : "be 0, and error_epsilon, but for came");
}

// A matrix has means of its rows and columns, a vector is one row and has `v`; kCame always has a
// first moment, kAdafactor where it decays, and kCame alone has errors, of matrices.
std::string CheckFactored(const OpRow& row, const UpdateAttrs& attrs, Operands operands) {
  constexpr int kM = 2, kV = 3, kRows = 4, kErrorRows = 6;
  std::string error = CheckFactoredAttrs(row, attrs);
  if (!error.empty()) return error;
  const bool came = attrs.rule == OptimizerRule::kCame, vector = !operands[kV].absent();
  const auto must = [&](int index, bool there) {
    return operands[index].absent() != there
               ? ""
               : Complain(row, index, operands[index],
                          there ? "be there" : "be absent for this tensor and rule");
  };
  error = must(kM, came || attrs.beta1 > 0);
  for (int i = 0; error.empty() && i < 2; ++i) error = must(kRows + i, !vector);
  for (int i = 0; error.empty() && i < 2; ++i) error = must(kErrorRows + i, came && !vector);
  if (!error.empty() || !vector || operands[0].size[0] == 1) return error;
  return Complain(row, kV, operands[kV], "be of one row, or come as means of rows and columns");
}

std::string CheckUpdate(const OpRow& row, const UpdateAttrs& attrs, Operands operands) {
  const auto beta_error = [&row](std::string_view name, float beta) {
    return beta >= 0 && beta < 1
               ? ""
               : ComplainAttr(row, name, std::to_string(beta), "be at least 0 and below 1");
  };
  if (RowOf(attrs.rule).rule != attrs.rule) {
    return ComplainAttr(row, "rule", Number(static_cast<int64_t>(attrs.rule)),
                        "be one of the rules in kernels/optimizer_rule.h");
  }
  std::string error = beta_error("beta1", attrs.beta1);
  if (error.empty()) error = beta_error("beta2", attrs.beta2);
  if (!error.empty()) return error;
  if (!(attrs.epsilon >= 0)) {
    return ComplainAttr(row, "epsilon", std::to_string(attrs.epsilon), "not be negative");
  }
  if (!(attrs.weight_decay >= 0)) {
    return ComplainAttr(row, "weight_decay", std::to_string(attrs.weight_decay), "not be negative");
  }
  if (!(attrs.lr_scale > 0)) {
    return ComplainAttr(row, "lr_scale", std::to_string(attrs.lr_scale), "be above 0");
  }
  if (attrs.rounding.first < 0)
    return ComplainAttr(row, "rounding.first", Number(attrs.rounding.first), "not be negative");
  error = CheckWholeMatrix(row, attrs);
  if (!error.empty()) return error;
  const bool factored = row.op == Op::kUpdateFactored;
  if (factored != RowOf(attrs.rule).factored) {
    return ComplainAttr(row, "rule", std::string(RowOf(attrs.rule).name),
                        factored ? "keep means of rows and columns" : "keep no such means");
  }
  if (factored) return CheckFactored(row, attrs, operands);
  if (!SaysNothingFactored(attrs)) {
    return ComplainAttr(row, "clip_threshold", std::to_string(attrs.clip_threshold),
                        "be 0, as least_scale, beta3 and error_epsilon");
  }
  return CheckMoments(row, attrs, operands);
}

}  // namespace

std::string CheckOwnRules(const OpRow& row, const OpAttrs& attrs, Operands operands) {
  switch (row.op) {
    case Op::kEmbedding:
      return CheckEmbedding(row, std::get<EmbeddingAttrs>(attrs), 1, 2, operands);
    case Op::kEmbeddingGrad:
      return CheckEmbedding(row, std::get<EmbeddingAttrs>(attrs), 2, 3, operands);
    case Op::kLayerNorm:
    case Op::kLayerNormGrad:
      return CheckNorm(row, std::get<NormAttrs>(attrs));
    case Op::kRmsNorm:
      return CheckRmsNorm(row, std::get<NormAttrs>(attrs), 0, operands);
    case Op::kRmsNormGrad:
      return CheckRmsNorm(row, std::get<NormAttrs>(attrs), 1, operands);
    case Op::kMatmul:
      return CheckMatmul(row, std::get<MatmulAttrs>(attrs), operands);
    case Op::kGelu:
    case Op::kGeluGrad:
    case Op::kSwiglu:
    case Op::kSwigluGrad:
      return CheckActivation(row, std::get<ActivationAttrs>(attrs));
    case Op::kScale:
      return CheckScale(row, std::get<ScaleAttrs>(attrs));
    case Op::kSoftcap:
      return CheckSoftcap(row, std::get<ScaleAttrs>(attrs));
    case Op::kDropout:
      return CheckDropout(row, std::get<DropoutAttrs>(attrs), operands);
    case Op::kRope:
      return CheckRope(row, std::get<RopeAttrs>(attrs), operands);
    case Op::kAttention:
    case Op::kAttentionGrad:
      return CheckAttention(row, std::get<AttentionAttrs>(attrs), operands);
    case Op::kAttentionCached:
      return CheckAttentionCached(row, std::get<AttentionAttrs>(attrs), operands);
    case Op::kAttentionBlock:
    case Op::kAttentionBlockGrad:
      return CheckAttentionBlock(row, std::get<AttentionBlockAttrs>(attrs), operands);
    case Op::kCrossEntropyRows:
      return CheckCrossEntropy(row, std::get<CrossEntropyAttrs>(attrs), 0, -1, operands);
    case Op::kCrossEntropyLoss:
      return CheckCrossEntropy(row, std::get<CrossEntropyAttrs>(attrs), -1, 1, operands);
    case Op::kCrossEntropyGrad:
      return CheckCrossEntropy(row, std::get<CrossEntropyAttrs>(attrs), 2, 1, operands);
    case Op::kPermute:
      return CheckPermute(row, std::get<PermuteAttrs>(attrs), operands);
    case Op::kLmHeadLoss:
    case Op::kLmHeadLossGrad: {
      const auto& loss = std::get<LossAttrs>(attrs);
      if (std::string error = CheckTerms(row, loss.terms); !error.empty()) return error;
      if (loss.chunk_rows > 0) return RefuseFp8(row, loss.precision);
      return ComplainAttr(row, "chunk_rows", Number(loss.chunk_rows), "be at least 1");
    }
    case Op::kPreferenceLoss:
      return CheckPreference(row, std::get<PreferenceAttrs>(attrs), operands);
    case Op::kUpdate:
    case Op::kUpdateStochastic:
    case Op::kUpdateInt8:
    case Op::kUpdateMatrix:
    case Op::kUpdateFactored:
      return CheckUpdate(row, std::get<UpdateAttrs>(attrs), operands);
    case Op::kEncodeBlocks:
      return CheckCodes(row, std::get<BlockAttrs>(attrs), 1, 2, 0, operands);
    case Op::kDecodeBlocks:
    case Op::kSumBlocks:
      return CheckCodes(row, std::get<BlockAttrs>(attrs), 0, 1, 2, operands);
    default:
      return "";
  }
}

}  // namespace terrace::kernels
