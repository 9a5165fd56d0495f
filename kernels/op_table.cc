// SPDX-License-Identifier: Apache-2.0
#include "kernels/op_table.h"

#include <iterator>
#include <type_traits>

namespace terrace::kernels {
namespace {

template <typename T, size_t i = 0>
constexpr size_t AttrsOf() {
  if constexpr (std::is_same_v<std::variant_alternative_t<i, OpAttrs>, T>) {
    return i;
  } else {
    return AttrsOf<T, i + 1>();
  }
}

constexpr auto kI32 = Elements::kI32;
constexpr auto kF32 = Elements::kF32;
constexpr auto kBF16 = Elements::kBF16;
constexpr auto kU8 = Elements::kU8;
constexpr auto kMoment = Elements::kMoment;
constexpr auto kGradient = Elements::kGradient;
constexpr auto kAct = Elements::kActivation;
constexpr auto kFloat = Elements::kFloat;
constexpr auto kRead = Role::kRead;
constexpr auto kWrite = Role::kWrite;
constexpr auto kUpdate = Role::kUpdate;
constexpr auto kSum = Role::kSum;

constexpr OperandRow Dense(std::string_view name, std::string_view dims, Elements elements,
                           Role role) {
  return {.name = name, .dims = dims, .elements = elements, .role = role};
}
constexpr OperandRow Rows(std::string_view name, std::string_view dims, Elements elements,
                          Role role) {
  return {.name = name, .dims = dims, .elements = elements, .role = role, .strided = true};
}
constexpr OperandRow Optional(OperandRow row) {
  row.optional = true;
  return row;
}

// clang-format off
constexpr OpRow kRows[] = {
    {Op::kEmbedding, "embedding", AttrsOf<EmbeddingAttrs>(),
     {Dense("tokens", "T", kI32, kRead), Dense("table", "V,h", kFloat, kRead),
      Optional(Dense("positions", "P,h", kFloat, kRead)), Rows("x", "T,h", kAct, kWrite),
      Optional(Dense("starts", "T", kI32, kRead))}},
    {Op::kEmbeddingGrad, "embedding_grad", AttrsOf<EmbeddingAttrs>(),
     {Dense("tokens", "T", kI32, kRead), Rows("dx", "T,h", kAct, kRead),
      Optional(Dense("dtable", "V,h", kGradient, kUpdate)),
      Optional(Dense("dpositions", "P,h", kGradient, kUpdate)),
      Optional(Dense("starts", "T", kI32, kRead))}},
    {Op::kLayerNorm, "layer_norm", AttrsOf<NormAttrs>(),
     {Rows("x", "n,d", kAct, kRead), Dense("weight", "d", kF32, kRead),
      Optional(Dense("bias", "d", kF32, kRead)), Rows("y", "n,d", kAct, kWrite),
      Dense("mean", "n", kF32, kWrite), Dense("rstd", "n", kF32, kWrite)}},
    {Op::kLayerNormGrad, "layer_norm_grad", AttrsOf<NormAttrs>(),
     {Rows("dy", "n,d", kAct, kRead), Rows("x", "n,d", kAct, kRead),
      Dense("weight", "d", kF32, kRead), Dense("mean", "n", kF32, kRead),
      Dense("rstd", "n", kF32, kRead), Optional(Rows("residual", "n,d", kAct, kRead)),
      Rows("dx", "n,d", kAct, kWrite), Dense("dweight", "d", kF32, kSum),
      Optional(Dense("dbias", "d", kF32, kSum))}},
    {Op::kRmsNorm, "rms_norm", AttrsOf<NormAttrs>(),
     {Rows("x", "..,d", kAct, kRead), Dense("weight", "d", kF32, kRead),
      Rows("y", "..,d", kAct, kWrite), Dense("rstd", "..", kF32, kWrite)}},
    {Op::kRmsNormGrad, "rms_norm_grad", AttrsOf<NormAttrs>(),
     {Rows("dy", "..,d", kAct, kRead), Rows("x", "..,d", kAct, kRead),
      Dense("weight", "d", kF32, kRead), Dense("rstd", "..", kF32, kRead),
      Optional(Rows("residual", "..,d", kAct, kRead)), Rows("dx", "..,d", kAct, kWrite),
      Dense("dweight", "d", kF32, kSum)}},
    {Op::kMatmul, "matmul", AttrsOf<MatmulAttrs>(),
     {Rows("a", "M,K", kFloat, kRead), Rows("b", "K,N", kFloat, kRead),
      Rows("c", "M,N", kFloat, kSum), Optional(Dense("bias", "N", kF32, kRead)),
      Optional(Rows("residual", "M,N", kFloat, kRead)),
      Optional(Rows("aux", "M,N", kFloat, Role::kAux))}},
    {Op::kBiasGrad, "bias_grad", AttrsOf<AccumulateAttrs>(),
     {Rows("dy", "n,d", kAct, kRead), Dense("dbias", "d", kF32, kSum)}},
    {Op::kGelu, "gelu", AttrsOf<ActivationAttrs>(),
     {Rows("x", "..", kAct, kRead), Rows("y", "..", kAct, kWrite)}},
    {Op::kGeluGrad, "gelu_grad", AttrsOf<ActivationAttrs>(),
     {Rows("dy", "..", kAct, kRead), Rows("x", "..", kAct, kRead), Rows("dx", "..", kAct, kWrite)}},
    {Op::kSwiglu, "swiglu", AttrsOf<ActivationAttrs>(),
     {Rows("gate", "n,f", kAct, kRead), Rows("up", "n,f", kAct, kRead),
      Rows("y", "n,f", kAct, kWrite)}},
    {Op::kSwigluGrad, "swiglu_grad", AttrsOf<ActivationAttrs>(),
     {Rows("dy", "n,f", kAct, kRead), Rows("gate", "n,f", kAct, kRead),
      Rows("up", "n,f", kAct, kRead), Rows("dgate", "n,f", kAct, kWrite),
      Rows("dup", "n,f", kAct, kWrite)}},
    {Op::kRope, "rope", AttrsOf<RopeAttrs>(),
     {Rows("x", "T,H,d", kAct, kUpdate), Dense("table", "P,r", kF32, kRead)}},
    {Op::kAttention, "attention", AttrsOf<AttentionAttrs>(),
     {Rows("q", "T,H,d", kAct, kRead), Rows("k", "T,G,d", kAct, kRead),
      Rows("v", "T,G,d", kAct, kRead), Rows("o", "T,H,d", kAct, kWrite),
      Dense("lse", "B,H,S", kF32, kWrite), Optional(Dense("starts", "T", kI32, kRead)),
      Optional(Dense("places", "P,2", kI32, kRead))}},
    {Op::kAttentionGrad, "attention_grad", AttrsOf<AttentionAttrs>(),
     {Rows("q", "T,H,d", kAct, kRead), Rows("k", "T,G,d", kAct, kRead),
      Rows("v", "T,G,d", kAct, kRead), Rows("o", "T,H,d", kAct, kRead),
      Dense("lse", "B,H,S", kF32, kRead), Rows("do", "T,H,d", kAct, kRead),
      Rows("dq", "T,H,d", kAct, kWrite), Rows("dk", "T,G,d", kAct, kWrite),
      Rows("dv", "T,G,d", kAct, kWrite), Optional(Dense("starts", "T", kI32, kRead)),
      Optional(Dense("places", "P,2", kI32, kRead))}},
    {Op::kLmHeadLoss, "lm_head_loss", AttrsOf<LossAttrs>(),
     {Rows("hidden", "T,h", kAct, kRead), Dense("weight", "V,h", kFloat, kRead),
      Dense("targets", "T", kI32, kRead), Dense("stats", "2", kF32, kWrite),
      Optional(Dense("losses", "T", kF32, kWrite))}},
    {Op::kLmHeadLossGrad, "lm_head_loss_grad", AttrsOf<LossAttrs>(),
     {Rows("hidden", "T,h", kAct, kRead), Dense("weight", "V,h", kFloat, kRead),
      Dense("targets", "T", kI32, kRead), Dense("stats", "2", kF32, kWrite),
      Rows("dhidden", "T,h", kAct, kWrite), Optional(Dense("dweight", "V,h", kGradient, kSum)),
      Optional(Dense("schedule", "4", kF32, kRead)), Optional(Dense("weights", "T", kF32, kRead))}},
    {Op::kAttentionBlock, "attention_block", AttrsOf<AttentionBlockAttrs>(),
     {Rows("q", "T,H,d", kAct, kRead), Rows("k", "T,G,d", kAct, kRead),
      Rows("v", "T,G,d", kAct, kRead), Rows("o", "T,H,d", kF32, kSum),
      Dense("lse", "B,H,S", kF32, kSum), Optional(Dense("starts", "T", kI32, kRead)),
      Optional(Dense("places", "P,2", kI32, kRead))}},
    {Op::kAttentionBlockGrad, "attention_block_grad", AttrsOf<AttentionBlockAttrs>(),
     {Rows("q", "T,H,d", kAct, kRead), Rows("k", "T,G,d", kAct, kRead),
      Rows("v", "T,G,d", kAct, kRead), Rows("o", "T,H,d", kAct, kRead),
      Dense("lse", "B,H,S", kF32, kRead), Rows("do", "T,H,d", kAct, kRead),
      Rows("dq", "T,H,d", kF32, kSum), Rows("dk", "T,G,d", kF32, Role::kSumKeys),
      Rows("dv", "T,G,d", kF32, Role::kSumKeys), Optional(Dense("starts", "T", kI32, kRead)),
      Optional(Dense("places", "P,2", kI32, kRead))}},
    {Op::kCrossEntropyRows, "cross_entropy_rows", AttrsOf<CrossEntropyAttrs>(),
     {Rows("logits", "n,v", kF32, kRead), Dense("targets", "n", kI32, kRead),
      Dense("rows", "n,3", kF32, kWrite)}},
    {Op::kCrossEntropyLoss, "cross_entropy_loss", AttrsOf<CrossEntropyAttrs>(),
     {Dense("targets", "n", kI32, kRead), Dense("rows", "s,n,3", kF32, kRead),
      Dense("stats", "2", kF32, kSum), Optional(Dense("losses", "n", kF32, kWrite))}},
    {Op::kCrossEntropyGrad, "cross_entropy_grad", AttrsOf<CrossEntropyAttrs>(),
     {Dense("targets", "n", kI32, kRead), Dense("rows", "s,n,3", kF32, kRead),
      Rows("logits", "n,v", kF32, kUpdate), Optional(Dense("schedule", "4", kF32, kRead)),
      Optional(Dense("weights", "n", kF32, kRead))}},
    {Op::kAddResidual, "add_residual", AttrsOf<NoAttrs>(),
     {Rows("x", "n,d", kFloat, kRead), Optional(Rows("residual", "n,d", kFloat, kRead)),
      Optional(Dense("bias", "d", kF32, kRead)), Rows("y", "n,d", kFloat, kWrite)}},
    {Op::kPermute, "permute", AttrsOf<PermuteAttrs>(),
     {Dense("x", "a,b,c,d", kAct, kRead), Dense("y", "p,q,r,s", kAct, kWrite)}},
    {Op::kGatherRows, "gather_rows", AttrsOf<NoAttrs>(),
     {Rows("x", "T,h", kAct, kRead), Dense("index", "n", kI32, kRead),
      Rows("y", "n,h", kAct, kWrite)}},
    {Op::kCast, "cast", AttrsOf<NoAttrs>(),
     {Rows("x", "..", kFloat, kRead), Rows("y", "..", kFloat, kWrite)}},
    {Op::kFill, "fill", AttrsOf<FillAttrs>(), {Rows("x", "..", kFloat, kWrite)}},
    {Op::kAdd, "add", AttrsOf<NoAttrs>(),
     {Rows("x", "..", kFloat, kRead), Rows("y", "..", kFloat, kUpdate)}},
    {Op::kSquaredNorm, "squared_norm", AttrsOf<ScaleAttrs>(),
     {Dense("x", "..", kFloat, kRead), Dense("out", "1", kF32, kWrite)}},
    {Op::kSum, "sum", AttrsOf<NoAttrs>(),
     {Dense("x", "n", kF32, kRead), Dense("out", "1", kF32, kWrite)}},
    {Op::kSumStats, "sum_stats", AttrsOf<NoAttrs>(),
     {Dense("stats", "n,2", kF32, kRead), Dense("total", "2", kF32, kWrite)}},
    {Op::kGradScale, "grad_scale", AttrsOf<ClipAttrs>(),
     {Dense("squares", "n", kF32, kRead), Dense("total", "2", kF32, kRead),
      Dense("out", "4", kF32, kWrite), Optional(Dense("schedule", "4", kF32, kRead))}},
    {Op::kUpdate, "update", AttrsOf<UpdateAttrs>(),
     {Dense("grad", "n", kGradient, kRead), Dense("param", "n", kF32, kUpdate),
      Optional(Dense("m", "n", kMoment, kUpdate)), Optional(Dense("v", "n", kMoment, kUpdate)),
      Dense("scale", "4", kF32, kRead), Dense("schedule", "4", kF32, kRead)}},
    {Op::kUpdateStochastic, "update_stochastic", AttrsOf<UpdateAttrs>(),
     {Dense("grad", "n", kGradient, kRead), Dense("param", "n", kBF16, kUpdate),
      Optional(Dense("m", "n", kMoment, kUpdate)), Optional(Dense("v", "n", kMoment, kUpdate)),
      Dense("scale", "4", kF32, kRead), Dense("schedule", "4", kF32, kRead),
      Dense("step", "1", kI32, kRead)}},
    {Op::kUpdateInt8, "update_int8", AttrsOf<UpdateAttrs>(),
     {Dense("grad", "n", kGradient, kRead), Dense("param", "n", kF32, kUpdate),
      Dense("m", "n", kU8, kUpdate), Optional(Dense("v", "n", kU8, kUpdate)),
      Dense("scale", "4", kF32, kRead), Dense("schedule", "4", kF32, kRead),
      Dense("m_scales", "b", kF32, kUpdate), Optional(Dense("v_scales", "c", kF32, kUpdate))}},
    {Op::kEncodeBlocks, "encode_blocks", AttrsOf<BlockAttrs>(),
     {Dense("x", "n", kFloat, kRead), Dense("codes", "c", kU8, kWrite),
      Dense("scales", "b", kF32, kWrite), Optional(Dense("residual", "n", kFloat, kUpdate))}},
    {Op::kDecodeBlocks, "decode_blocks", AttrsOf<BlockAttrs>(),
     {Dense("codes", "c", kU8, kRead), Dense("scales", "b", kF32, kRead),
      Dense("y", "n", kFloat, kWrite)}},
    {Op::kSumBlocks, "sum_blocks", AttrsOf<BlockAttrs>(),
     {Dense("codes", "p,c", kU8, kRead), Dense("scales", "p,b", kF32, kRead),
      Dense("y", "n", kFloat, kWrite)}},
    {Op::kScale, "scale", AttrsOf<ScaleAttrs>(), {Rows("x", "..", kFloat, kUpdate)}},
    {Op::kDropout, "dropout", AttrsOf<DropoutAttrs>(),
     {Rows("x", "n,d", kAct, kRead), Dense("places", "T,2", kI32, kRead),
      Rows("y", "n,d", kAct, kSum)}},
    {Op::kUpdateMatrix, "update_matrix", AttrsOf<UpdateAttrs>(),
     {Dense("grad", "r,c", kGradient, kRead), Dense("param", "r,c", kF32, kUpdate),
      Optional(Dense("m", "r,c", kMoment, kUpdate)), Optional(Dense("v", "r,c", kMoment, kUpdate)),
      Dense("scale", "4", kF32, kRead), Dense("schedule", "4", kF32, kRead)}},
    {Op::kAttentionCached, "attention_cached", AttrsOf<AttentionAttrs>(),
     {Rows("q", "T,H,d", kAct, kRead), Rows("k", "T,G,d", kAct, kRead),
      Rows("v", "T,G,d", kAct, kRead), Dense("keys", "B,P,G,d", kAct, kUpdate),
      Dense("values", "B,P,G,d", kAct, kUpdate), Dense("spans", "B,2", kI32, kRead),
      Rows("o", "T,H,d", kAct, kWrite)}},
    {Op::kUpdateFactored, "update_factored", AttrsOf<UpdateAttrs>(),
     {Dense("grad", "r,c", kGradient, kRead), Dense("param", "r,c", kF32, kUpdate),
      Optional(Dense("m", "r,c", kMoment, kUpdate)), Optional(Dense("v", "r,c", kF32, kUpdate)),
      Optional(Dense("rows", "r", kF32, kUpdate)), Optional(Dense("columns", "c", kF32, kUpdate)),
      Optional(Dense("error_rows", "r", kF32, kUpdate)),
      Optional(Dense("error_columns", "c", kF32, kUpdate)),
      Dense("scale", "4", kF32, kRead), Dense("schedule", "4", kF32, kRead)}},
    {Op::kSoftcap, "softcap", AttrsOf<ScaleAttrs>(),
     {Rows("x", "..", kAct, kRead), Rows("y", "..", kAct, kWrite)}},
    {Op::kPreferenceLoss, "preference_loss", AttrsOf<PreferenceAttrs>(),
     {Dense("losses", "T", kF32, kRead), Dense("reference", "T", kF32, kRead),
      Dense("weights", "T", kF32, kWrite), Dense("stats", "2", kF32, kSum),
      Dense("margins", "2", kF32, kSum)}},
};
// clang-format on

constexpr bool RowsFollowTheEnum() {
  int value = 1;
  for (const OpRow& row : kRows) {
    if (static_cast<int>(row.op) != value++) return false;
  }
  return value == static_cast<int>(Op::kLastOp) + 1;
}
static_assert(RowsFollowTheEnum(), "one row an op, in the order of the enum");

bool Accumulates(const OpAttrs& attrs) {
  return std::visit(
      [](const auto& a) {
        if constexpr (requires { a.accumulate; }) {
          return a.accumulate;
        } else {
          return false;
        }
      },
      attrs);
}

bool AccumulatesKeys(const OpAttrs& attrs) {
  const auto* block = std::get_if<AttentionBlockAttrs>(&attrs);
  return block != nullptr && block->accumulate_keys;
}

Access AuxAccess(const OpAttrs& attrs) {
  const auto* matmul = std::get_if<MatmulAttrs>(&attrs);
  if (matmul == nullptr) return Access::kNone;
  switch (matmul->epilogue) {
    case Epilogue::kNone:
      return Access::kNone;
    case Epilogue::kGelu:
      return Access::kWrite;
    case Epilogue::kGeluGrad:
      return Access::kRead;
  }
  return Access::kNone;
}

}  // namespace

const OpRow* FindRow(Op op) {
  const auto index = static_cast<size_t>(op) - 1;
  return index < std::size(kRows) ? &kRows[index] : nullptr;
}

std::string_view Name(Op op) {
  const OpRow* row = FindRow(op);
  return row == nullptr ? "unknown" : row->name;
}

bool ParseOp(std::string_view name, Op* op) {
  for (const OpRow& row : kRows) {
    if (row.name != name) continue;
    *op = row.op;
    return true;
  }
  return false;
}

int OperandCount(Op op) {
  const OpRow* row = FindRow(op);
  if (row == nullptr) return 0;
  int count = 0;
  while (count < kMaxOperands && !row->operands[count].name.empty()) ++count;
  return count;
}

std::string_view OperandName(Op op, int index) { return FindRow(op)->operands[index].name; }

bool OperandOptional(Op op, int index) { return FindRow(op)->operands[index].optional; }

Access OperandAccess(Op op, const OpAttrs& attrs, int index) {
  switch (FindRow(op)->operands[index].role) {
    case Role::kRead:
      return Access::kRead;
    case Role::kWrite:
      return Access::kWrite;
    case Role::kUpdate:
      return Access::kUpdate;
    case Role::kSum:
      return Accumulates(attrs) ? Access::kUpdate : Access::kWrite;
    case Role::kSumKeys:
      return AccumulatesKeys(attrs) ? Access::kUpdate : Access::kWrite;
    case Role::kAux:
      return AuxAccess(attrs);
  }
  return Access::kNone;
}

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "unknown";
}

std::string TensorShape::ToString() const {
  if (absent()) return "absent";
  std::string text(Name(dtype));
  text += '[';
  for (int d = 0; d < dims; ++d) {
    if (d > 0) text += ',';
    text += std::to_string(size[d]);
  }
  text += ']';
  if (!dense()) text += '/' + std::to_string(row_stride);
  return text;
}

}  // namespace terrace::kernels
