// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_conformance.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>

#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {
namespace {

using Source = GradientOperand::Source;
using Random = std::mt19937_64;

constexpr unsigned kSeed = 20261121;

// What lies in memory that nobody may read (outputs before the op) or write (gaps between rows). As
// f32 and as bf16 it is a NaN, so that whoever reads it spoils the result.
constexpr std::byte kPoison{0xff};

// ---- values

// Nearly normal: the sum of four uniform numbers, all from one draw.
double Normal(Random* random) {
  const uint64_t bits = (*random)();
  const uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<double>(sum) / 65536 - 2) * std::sqrt(3.0);
}

// Of the table that the tokens look up.
int64_t Shards(const OpCase& op_case) {
  return std::get<EmbeddingAttrs>(op_case.attrs).shard_rows > 0 ? 3 : 1;
}

int64_t RowsLookedUp(const OpCase& op_case) {
  switch (op_case.op) {
    case Op::kEmbedding:
      return op_case.operands[1].rows() * Shards(op_case);
    case Op::kEmbeddingGrad:
      return op_case.operands[2].rows() * Shards(op_case);
    case Op::kGatherRows:
      return op_case.operands[0].rows();
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
    if (targets && (*random)() % 5 == 0) value = -1;
  }
  return values;
}

// Random values of operand `index`, in the range that the op expects.
Values RandomOperand(const OpCase& op_case, int index, Random* random) {
  const TensorShape& shape = op_case.operands[index];
  if (shape.absent()) return {};
  if (shape.dtype == DType::kI32) return RandomIndices(op_case, shape, random);
  if (op_case.op == Op::kAdamw && index == 4) return {0.25, 1.5, 3.0, 0.0};
  if (op_case.op == Op::kAdamw && index == 5) return {0.125, 0.09375, 0.046875, 0.0};
  const bool positive = (op_case.op == Op::kAdamw && index == 3) || op_case.op == Op::kGradScale ||
                        op_case.op == Op::kSumStats;
  Values values(shape.Elements());
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

std::vector<Values> RandomOperands(const OpCase& op_case, Random* random) {
  std::vector<Values> operands;
  for (size_t i = 0; i < op_case.operands.size(); ++i) {
    operands.push_back(RandomOperand(op_case, static_cast<int>(i), random));
  }
  return operands;
}

// The operands of a forward op after it has run, in its element types.
std::vector<Values> RunForward(const OpCase& op_case, Random* random) {
  std::vector<Values> operands = RandomOperands(op_case, random);
  RunReference(op_case.op, op_case.attrs, op_case.operands, operands);
  for (size_t i = 0; i < operands.size(); ++i) {
    for (double& value : operands[i]) value = RoundTo(op_case.operands[i].dtype, value);
  }
  return operands;
}

std::vector<Values> MakeOperands(const OpCase& op_case) {
  Random random(kSeed);
  if (op_case.forward == nullptr) return RandomOperands(op_case, &random);
  const std::vector<Values> forward = RunForward(*op_case.forward, &random);
  std::vector<Values> operands = RandomOperands(op_case, &random);
  const GradientRule& rule = *FindGradientRule(op_case.op);
  for (size_t i = 0; i < operands.size(); ++i) {
    const GradientOperand& operand = rule.operands[i];
    if (operand.source != Source::kForward) continue;
    operands[i] = forward[operand.forward];
    for (double& value : operands[i]) value = RoundTo(op_case.operands[i].dtype, value);
  }
  return operands;
}

// ---- memory

float FloatOfBF16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

void WriteElement(DType dtype, double value, std::byte* to) {
  if (dtype == DType::kI32) {
    const auto number = static_cast<int32_t>(value);
    std::memcpy(to, &number, sizeof(number));
  } else if (dtype == DType::kBF16) {
    // `value` is a bf16 number: the upper half of its f32 form says it all.
    const auto bits =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
    std::memcpy(to, &bits, sizeof(bits));
  } else {
    const auto number = static_cast<float>(value);
    std::memcpy(to, &number, sizeof(number));
  }
}

double ReadElement(DType dtype, const std::byte* from) {
  if (dtype == DType::kI32) {
    int32_t number = 0;
    std::memcpy(&number, from, sizeof(number));
    return number;
  }
  if (dtype == DType::kBF16) {
    uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof(bits));
    return FloatOfBF16(bits);
  }
  float number = 0;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

int64_t OffsetOf(const TensorShape& shape, int64_t element) {
  const int64_t columns = shape.RowElements();
  return (element / columns * shape.row_stride + element % columns) * SizeOf(shape.dtype);
}

// The operands of a case in memory.
class Memory {
 public:
  Memory(const OpCase& op_case, const std::vector<Values>& values) : op_case_(op_case) {
    const size_t count = op_case.operands.size();
    buffers_.resize(count);
    owner_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      owner_[i] = static_cast<int>(i);
      buffers_[i].assign(op_case.operands[i].SpanBytes(), kPoison);
    }
    for (const SharedMemory& shared : op_case.shared) owner_[shared.operand] = shared.same_as;
    for (size_t i = 0; i < count; ++i) {
      if (IsRead(i)) Write(op_case.operands[i], values[i], &buffers_[owner_[i]]);
    }
  }

  std::vector<TensorView> Views() {
    std::vector<TensorView> views;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      TensorView view;
      static_cast<TensorShape&>(view) = op_case_.operands[i];
      if (!view.absent()) view.data = buffers_[owner_[i]].data();
      views.push_back(view);
    }
    return views;
  }

  Values Read(int index) const {
    const TensorShape& shape = op_case_.operands[index];
    Values values(shape.Elements());
    for (int64_t e = 0; e < shape.Elements(); ++e) {
      values[e] = ReadElement(shape.dtype, &buffers_[owner_[index]][OffsetOf(shape, e)]);
    }
    return values;
  }

  bool GapsAreUntouched(int index) const {
    const TensorShape& shape = op_case_.operands[index];
    const std::vector<std::byte>& buffer = buffers_[owner_[index]];
    const int64_t row_bytes = shape.RowElements() * SizeOf(shape.dtype);
    const int64_t stride_bytes = shape.row_stride * SizeOf(shape.dtype);
    for (size_t at = 0; at < buffer.size(); ++at) {
      if (static_cast<int64_t>(at) % stride_bytes >= row_bytes && buffer[at] != kPoison)
        return false;
    }
    return true;
  }

  const std::vector<std::vector<std::byte>>& buffers() const { return buffers_; }
  // No output lies in the memory of operand `index`.
  bool IsOnlyRead(int index) const {
    if (AccessOf(index) != Access::kRead) return false;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (owner_[i] == owner_[index] && AccessOf(i) != Access::kRead) return false;
    }
    return true;
  }

 private:
  static void Write(const TensorShape& shape, const Values& values,
                    std::vector<std::byte>* buffer) {
    for (int64_t e = 0; e < shape.Elements(); ++e) {
      WriteElement(shape.dtype, values[e], &(*buffer)[OffsetOf(shape, e)]);
    }
  }
  Access AccessOf(size_t i) const {
    return OperandAccess(op_case_.op, op_case_.attrs, static_cast<int>(i));
  }
  bool IsRead(size_t i) const {
    return AccessOf(i) == Access::kRead || AccessOf(i) == Access::kUpdate;
  }

  const OpCase& op_case_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<int> owner_;  // whose buffer each operand lies in
};

// ---- judgement

// What an f32 result may differ by, relative to the size of the result.
double BoundOf(Op op) {
  switch (op) {
    case Op::kFill:
    case Op::kCast:
    case Op::kGatherRows:
    case Op::kPermute:
      return 0;
    case Op::kEmbedding:
    case Op::kRope:
    case Op::kAdd:
    case Op::kAddResidual:
    case Op::kGelu:
    case Op::kGeluGrad:
    case Op::kSwiglu:
    case Op::kSwigluGrad:
    case Op::kGradScale:
    case Op::kSum:
    case Op::kSumStats:
    case Op::kSquaredNorm:
    case Op::kCrossEntropyRows:
    case Op::kCrossEntropyLoss:
    case Op::kCrossEntropyGrad:
      return 1e-6;
    case Op::kEmbeddingGrad:
    case Op::kLayerNorm:
    case Op::kRmsNorm:
    case Op::kAdamw:
    case Op::kMatmul:
      return 2e-6;
    case Op::kLayerNormGrad:
    case Op::kRmsNormGrad:
    case Op::kBiasGrad:
      return 5e-6;
    case Op::kAttention:
    case Op::kAttentionBlock:
    case Op::kLmHeadLoss:
      return 5e-6;
    case Op::kAttentionGrad:
    case Op::kAttentionBlockGrad:
    case Op::kLmHeadLossGrad:
      return 1e-5;
  }
  return 0;
}

// Attention and the LM head round what lies between their products to bf16 when asked to.
bool RoundsInside(const OpCase& op_case) {
  if (const auto* attention = std::get_if<AttentionAttrs>(&op_case.attrs)) {
    return attention->precision == MatmulPrecision::kBF16;
  }
  if (const auto* block = std::get_if<AttentionBlockAttrs>(&op_case.attrs)) {
    return block->precision == MatmulPrecision::kBF16;
  }
  if (const auto* loss = std::get_if<LossAttrs>(&op_case.attrs)) {
    return loss->precision == MatmulPrecision::kBF16;
  }
  return false;
}

double BoundOf(const OpCase& op_case, int index) {
  constexpr double kInsideBF16 = 1e-2;
  constexpr double kStoredAsBF16 = 1.0 / 256;  // twice the rounding error
  double bound = BoundOf(op_case.op);
  if (RoundsInside(op_case)) bound += kInsideBF16;
  if (bound > 0 && op_case.operands[index].dtype == DType::kBF16) bound += kStoredAsBF16;
  return bound;
}

// Of the finite values: the log-sum-exp of no key is minus infinity.
double RootMeanSquare(const Values& values) {
  double sum = 0;
  for (double value : values) sum += std::isfinite(value) ? value * value : 0;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// For results whose single elements may be far off: bf16 scores under an exponential.
void ExpectCloseOnAverage(const Values& got, const Values& want, double bound) {
  Values error(want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(std::isfinite(got[i]), std::isfinite(want[i])) << "element " << i;
    error[i] = got[i] == want[i] ? 0 : got[i] - want[i];
  }
  EXPECT_LE(RootMeanSquare(error), bound * RootMeanSquare(want));
}

// Each element within `bound` of its own size and `common_size` together.
void ExpectCloseEach(const Values& got, const Values& want, double bound, double common_size) {
  double worst = 0;
  size_t worst_at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    double error = std::abs(got[i] - want[i]) / (std::abs(want[i]) + common_size + 1e-30);
    if (got[i] == want[i]) error = 0;
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error > worst) {
      worst = error;
      worst_at = i;
    }
  }
  EXPECT_LE(worst, bound) << "element " << worst_at << ": got " << got[worst_at]
                          << ", the reference has " << want[worst_at];
}

void ExpectClose(const OpCase& op_case, int index, const Values& got, Values want) {
  const TensorShape& shape = op_case.operands[index];
  SCOPED_TRACE("operand '" + std::string(OperandName(op_case.op, index)) + "' " + shape.ToString());
  const double bound = BoundOf(op_case, index);
  if (bound == 0) {
    for (double& value : want) value = RoundTo(shape.dtype, value);
    EXPECT_EQ(got, want);
  } else if (RoundsInside(op_case)) {
    ExpectCloseOnAverage(got, want, bound);
  } else {
    // Each of grad_scale's results stands for itself: no other one says how wrong it may be.
    ExpectCloseEach(got, want, bound, op_case.op == Op::kGradScale ? 0.0 : RootMeanSquare(want));
  }
}

void ExpectRuns(const Backend& backend, const OpCase& op_case, Memory* memory, int threads) {
  const std::vector<TensorView> views = memory->Views();
  const Status status = backend(op_case.op, op_case.attrs, views, threads);
  EXPECT_TRUE(status.ok()) << status.message;
}

}  // namespace

void PrintTo(const OpCase& op_case, std::ostream* out) {
  for (size_t i = 0; i < op_case.operands.size(); ++i) {
    *out << (i > 0 ? ", " : "") << OperandName(op_case.op, static_cast<int>(i)) << ' '
         << op_case.operands[i].ToString();
  }
}

void ExpectMatchesReference(const Backend& backend, const OpCase& op_case) {
  ASSERT_EQ(CheckShapes(op_case.op, op_case.attrs, op_case.operands), "");
  std::vector<Values> values = MakeOperands(op_case);
  Memory memory(op_case, values);
  ExpectRuns(backend, op_case, &memory, 2);

  const std::vector<Values> before = values;
  RunReference(op_case.op, op_case.attrs, op_case.operands, values);
  for (int i = 0; i < static_cast<int>(values.size()); ++i) {
    if (op_case.operands[i].absent()) continue;
    EXPECT_TRUE(memory.GapsAreUntouched(i)) << OperandName(op_case.op, i);
    const Access access = OperandAccess(op_case.op, op_case.attrs, i);
    if (access == Access::kWrite || access == Access::kUpdate) {
      ExpectClose(op_case, i, memory.Read(i), values[i]);
    } else if (memory.IsOnlyRead(i)) {
      EXPECT_EQ(memory.Read(i), before[i]) << "read-only " << OperandName(op_case.op, i);
    }
  }
}

void ExpectSameForAnyThreads(const Backend& backend, const OpCase& op_case) {
  const std::vector<Values> values = MakeOperands(op_case);
  Memory alone(op_case, values);
  ExpectRuns(backend, op_case, &alone, 1);
  for (int threads : {2, 3}) {
    Memory together(op_case, values);
    ExpectRuns(backend, op_case, &together, threads);
    EXPECT_EQ(together.buffers(), alone.buffers()) << threads << " threads";
  }
}

namespace {

// The sum that gradients are taken of: what the seeds weigh, or the loss.
double Objective(const OpCase& gradient_case, const std::vector<Values>& gradient_operands,
                 std::vector<Values> forward) {
  const OpCase& op_case = *gradient_case.forward;
  RunReference(op_case.op, op_case.attrs, op_case.operands, forward);
  if (op_case.op == Op::kLmHeadLoss) return forward[3][0];
  const GradientRule& rule = *FindGradientRule(gradient_case.op);
  double sum = 0;
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    const GradientOperand& operand = rule.operands[i];
    if (operand.source != Source::kSeed && operand.source != Source::kSeedDerivative) continue;
    const Values& seed = gradient_operands[i];
    for (size_t e = 0; e < seed.size(); ++e) sum += seed[e] * forward[operand.forward][e];
  }
  return sum;
}

// Compares <gradient, direction> with the central difference along a random direction.
void ExpectSlope(const OpCase& op_case, const std::vector<Values>& operands,
                 const std::vector<Values>& forward, int input, const Values& gradient,
                 Random* random) {
  constexpr double kStep = 1e-5;
  std::vector<Values> ahead = forward;
  std::vector<Values> behind = forward;
  double slope = 0;
  for (size_t e = 0; e < gradient.size(); ++e) {
    const double direction = Normal(random);
    slope += gradient[e] * direction;
    ahead[input][e] += kStep * direction;
    behind[input][e] -= kStep * direction;
  }
  const double difference =
      (Objective(op_case, operands, ahead) - Objective(op_case, operands, behind)) / (2 * kStep);
  const double size = RootMeanSquare(gradient) * std::sqrt(static_cast<double>(gradient.size()));
  EXPECT_NEAR(slope, difference, 3e-5 * size + 1e-9)
      << "by '" << OperandName(op_case.forward->op, input) << "'";
}

}  // namespace

void ExpectMatchesFiniteDifferences(const Backend& backend, const OpCase& op_case) {
  constexpr int kDirections = 3;
  ASSERT_EQ(CheckShapes(op_case.op, op_case.attrs, op_case.operands), "");
  Random random(kSeed);
  // The first numbers drawn are the forward operands, as in MakeOperands: the same values here.
  const std::vector<Values> forward = RandomOperands(*op_case.forward, &random);
  const std::vector<Values> operands = MakeOperands(op_case);
  Memory memory(op_case, operands);
  ExpectRuns(backend, op_case, &memory, 2);
  const GradientRule& rule = *FindGradientRule(op_case.op);
  for (size_t i = 0; i < operands.size(); ++i) {
    const GradientOperand& operand = rule.operands[i];
    const bool derivative =
        operand.source == Source::kDerivative || operand.source == Source::kSeedDerivative;
    if (!derivative || op_case.operands[i].absent()) continue;
    Values gradient = memory.Read(static_cast<int>(i));
    // The embedding's tables are added to whatever the attributes say.
    if (op_case.op == Op::kEmbeddingGrad) {
      for (size_t e = 0; e < gradient.size(); ++e) gradient[e] -= operands[i][e];
    }
    for (int n = 0; n < kDirections; ++n) {
      ExpectSlope(op_case, operands, forward, operand.forward, gradient, &random);
    }
  }
}

}  // namespace terrace::kernels::conformance
