// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_values.h"

#include <cmath>

namespace terrace::kernels::conformance {
namespace {

// Of the table that the tokens look up.
int64_t Shards(const OpCase& op_case) {
  return std::get<EmbeddingAttrs>(op_case.attrs).shard_rows > 0 ? 3 : 1;
}

int64_t RowsLookedUp(const OpCase& op_case) {
  switch (op_case.op) {
    case Op::kEmbedding:
      return op_case.operands[1].rows() * Shards(op_case);
    case Op::kEmbeddingGrad:
      return op_case.operands[2].absent() ? 1 : op_case.operands[2].rows() * Shards(op_case);
    case Op::kGatherRows:
      return op_case.operands[0].rows();
    case Op::kDropout:
      return 100'000'000;  // positions and numbers of sequences
    default:
      return op_case.operands[1].rows();  // targets among the vocabulary
  }
}

Values RandomIndices(const OpCase& op_case, const TensorShape& shape, Random* random) {
  const auto* entropy = std::get_if<CrossEntropyAttrs>(&op_case.attrs);
  const bool targets = op_case.op == Op::kLmHeadLoss || entropy != nullptr;
  const int64_t rows = entropy != nullptr ? entropy->vocabulary : RowsLookedUp(op_case);
  Values values(shape.Elements());
  for (double& value : values) {
    value = static_cast<double>((*random)() % rows);
    // A place that is none must not be read beyond either.
    if ((targets || op_case.op == Op::kDropout) && (*random)() % 5 == 0) value = -1;
  }
  return values;
}

// Which operand says where documents start; -1: the op has none.
int StartsOperand(Op op) {
  switch (op) {
    case Op::kEmbedding:
    case Op::kEmbeddingGrad:
      return 4;
    case Op::kAttention:
    case Op::kAttentionBlock:
      return 5;
    case Op::kAttentionGrad:
    case Op::kAttentionBlockGrad:
      return 9;
    default:
      return -1;
  }
}

// Documents of random lengths, some of a single token, in each whole sequence.
Values RandomStarts(const OpCase& op_case, Random* random) {
  TokenShare share;
  int64_t sequence = 0;
  if (const auto* embedding = std::get_if<EmbeddingAttrs>(&op_case.attrs)) {
    share = embedding->context;
    sequence = embedding->sequence;
  } else if (const auto* block = std::get_if<AttentionBlockAttrs>(&op_case.attrs)) {
    share = block->context;
    sequence = block->sequence;
  } else {
    sequence = std::get<AttentionAttrs>(op_case.attrs).sequence;
  }
  const int64_t whole = share.ranks * sequence;
  Values starts;
  for (int64_t row = 0; row < op_case.operands[0].rows(); row += sequence) {
    std::vector<int64_t> of_position;
    for (int64_t position = 0; position < whole; ++position) {
      const bool begins = position == 0 || (*random)() % 40 == 0 ||
                          (of_position.back() == position - 1 && (*random)() % 3 == 0);
      of_position.push_back(begins ? position : of_position.back());
    }
    for (int64_t i = 0; i < sequence; ++i)
      starts.push_back(static_cast<double>(of_position[share.Position(i, sequence)]));
  }
  return starts;
}

// {position, number} of the new tokens of each sequence: the first sequence has as many as there is
// room for, at the end of what is kept, and the second has none.
Values RandomSpans(const OpCase& op_case, Random* random) {
  const int64_t kept = op_case.operands[3].size[1];
  const int64_t most = std::get<AttentionAttrs>(op_case.attrs).sequence;
  Values spans = {static_cast<double>(kept - most), static_cast<double>(most)};
  for (int64_t b = 1; b < op_case.operands[3].size[0]; ++b) {
    const int64_t count = b == 1 ? 0 : static_cast<int64_t>((*random)() % most) + 1;
    spans.push_back(static_cast<double>((*random)() % (kept - count + 1)));
    spans.push_back(static_cast<double>(count));
  }
  return spans;
}

// Random values of operand `index`, in the range that the op expects.
Values RandomOperand(const OpCase& op_case, int index, Random* random) {
  const TensorShape& shape = op_case.operands[index];
  if (shape.absent()) return {};
  const int scale = op_case.op == Op::kUpdateFactored ? 8 : 4;  // the schedule is behind it
  if (IsUpdate(op_case.op) && index == scale) return {0.25, 1.5, 3.0, 0.0};
  if (IsUpdate(op_case.op) && index == scale + 1) return {0.125, 0.09375, 0.046875, 0.0};
  if (op_case.op == Op::kUpdateStochastic && index == 6) return {1234567.0};
  if (op_case.op == Op::kAttentionCached && index == 5) return RandomSpans(op_case, random);
  if (index == StartsOperand(op_case.op)) return RandomStarts(op_case, random);
  if (op_case.op != Op::kDropout && OperandName(op_case.op, index) == "places") {
    Values places(shape.Elements());
    for (double& value : places) value = static_cast<double>((*random)() % 100'000'000);
    return places;
  }
  if (shape.dtype == DType::kI32) return RandomIndices(op_case, shape, random);
  const bool positive = (IsUpdate(op_case.op) && index >= 3) || op_case.op == Op::kGradScale ||
                        op_case.op == Op::kSumStats;
  Values values(shape.Elements());
  if (shape.dtype == DType::kU8) {
    constexpr uint64_t kSign = 128, kNaN = 127;  // of fp8
    for (double& value : values) {
      value = static_cast<double>((*random)() % 256);
      const bool in_blocks = op_case.op == Op::kDecodeBlocks || op_case.op == Op::kSumBlocks;
      if (in_blocks && std::fmod(value, kSign) == kNaN) value = 0;
    }
    return values;
  }
  for (double& value : values) {
    value = Normal(random);
    if (positive) value = std::abs(value);
    value = RoundTo(shape.dtype, value);
  }
  // {max, sum, logit}: the sum of exponentials is positive.
  const bool rows = op_case.op == Op::kCrossEntropyLoss || op_case.op == Op::kCrossEntropyGrad;
  for (size_t i = 1; rows && index == 1 && i < values.size(); i += 3) {
    values[i] = static_cast<float>(std::abs(values[i]) + 1);
  }
  return values;
}

}  // namespace

double Normal(Random* random) {
  const uint64_t bits = (*random)();
  const uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<double>(sum) / 65536 - 2) * std::sqrt(3.0);
}

std::vector<Values> RandomOperands(const OpCase& op_case, Random* random) {
  std::vector<Values> operands;
  for (size_t i = 0; i < op_case.operands.size(); ++i) {
    operands.push_back(RandomOperand(op_case, static_cast<int>(i), random));
  }
  return operands;
}

namespace {

// The operands of a forward op after it has run, in its element types.
std::vector<Values> RunForward(const OpCase& op_case, Random* random) {
  std::vector<Values> operands = RandomOperands(op_case, random);
  RunReference(op_case.op, op_case.attrs, op_case.operands, operands);
  for (size_t i = 0; i < operands.size(); ++i) {
    for (double& value : operands[i]) value = RoundTo(op_case.operands[i].dtype, value);
  }
  return operands;
}

}  // namespace

std::vector<Values> MakeOperands(const OpCase& op_case, uint64_t seed) {
  Random random(seed);
  if (op_case.forward == nullptr) return RandomOperands(op_case, &random);
  const std::vector<Values> forward = RunForward(*op_case.forward, &random);
  std::vector<Values> operands = RandomOperands(op_case, &random);
  const GradientRule& rule = *FindGradientRule(op_case.op);
  for (size_t i = 0; i < operands.size(); ++i) {
    const GradientOperand& operand = rule.operands[i];
    if (operand.source != GradientOperand::Source::kForward) continue;
    operands[i] = forward[operand.forward];
    for (double& value : operands[i]) value = RoundTo(op_case.operands[i].dtype, value);
  }
  return operands;
}

}  // namespace terrace::kernels::conformance
