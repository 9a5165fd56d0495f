// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_judge.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tests/conformance/op_memory.h"
#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {
namespace {

using Source = GradientOperand::Source;

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
    case Op::kEncodeBlocks:
    case Op::kDecodeBlocks:
    case Op::kSumBlocks:
    case Op::kScale:
    case Op::kDropout:
    case Op::kSoftcap:
    case Op::kPreferenceLoss:
      return 1e-6;
    case Op::kEmbeddingGrad:
    case Op::kLayerNorm:
    case Op::kRmsNorm:
    case Op::kUpdate:
    case Op::kUpdateStochastic:
    case Op::kUpdateInt8:
    case Op::kUpdateMatrix:
    case Op::kUpdateFactored:
    case Op::kMatmul:
      return 2e-6;
    case Op::kLayerNormGrad:
    case Op::kRmsNormGrad:
    case Op::kBiasGrad:
      return 5e-6;
    case Op::kAttention:
    case Op::kAttentionBlock:
    case Op::kAttentionCached:
    case Op::kLmHeadLoss:
      return 5e-6;
    case Op::kAttentionGrad:
    case Op::kAttentionBlockGrad:
    case Op::kLmHeadLossGrad:
      return 1e-5;
  }
  return 0;
}

// Attention and the LM head round what lies between their products to bf16 or f16 when asked to.
bool RoundsInsideTo(MatmulPrecision precision, const OpCase& op_case) {
  if (const auto* attention = std::get_if<AttentionAttrs>(&op_case.attrs)) {
    return attention->precision == precision;
  }
  if (const auto* block = std::get_if<AttentionBlockAttrs>(&op_case.attrs)) {
    return block->precision == precision;
  }
  if (const auto* loss = std::get_if<LossAttrs>(&op_case.attrs)) {
    return loss->precision == precision;
  }
  return false;
}
bool RoundsInside(const OpCase& op_case) {
  return RoundsInsideTo(MatmulPrecision::kBF16, op_case) ||
         RoundsInsideTo(MatmulPrecision::kF16, op_case);
}

// Products of f32 operands of which a backend may read 10 bits of the fraction.
bool MayReadTf32(const OpCase& op_case) {
  if (const auto* matmul = std::get_if<MatmulAttrs>(&op_case.attrs))
    return matmul->precision == MatmulPrecision::kTF32;
  if (const auto* loss = std::get_if<LossAttrs>(&op_case.attrs))
    return loss->precision == MatmulPrecision::kTF32;
  return false;
}

// A row that counts many times has as many times the error, beside a size that all rows have in
// common.
bool WeighsCappedRows(const OpCase& op_case) {
  const auto* entropy = std::get_if<CrossEntropyAttrs>(&op_case.attrs);
  constexpr int kWeights = 4;
  return entropy != nullptr && entropy->terms.softcap > 0 && op_case.op == Op::kCrossEntropyGrad &&
         !op_case.operands[kWeights].absent();
}

// Products of fewer bits change the weights that Muon updates: a bf16 operand's rounding, and that
// of tf32, an eighth of it, is made larger by an iteration that is steepest where values are small.
double IterationBound(const OpCase& op_case) {
  constexpr double kBF16 = 1.0 / 256;
  switch (std::get<UpdateAttrs>(op_case.attrs).precision) {
    case MatmulPrecision::kBF16:
      return kBF16;
    case MatmulPrecision::kTF32:
      return kBF16 / 8;
    default:
      return 0;
  }
}

// How often a result is rounded to the type that it is stored in.
double Roundings(const OpCase& op_case, int index) {
  constexpr int kHeadWeightGrad = 5;
  if (op_case.op != Op::kLmHeadLossGrad || index != kHeadWeightGrad) return 1;
  const int64_t rows = op_case.operands[0].rows();
  const int64_t chunk = std::get<LossAttrs>(op_case.attrs).chunk_rows;
  return static_cast<double>((rows + chunk - 1) / chunk);
}

double BoundOf(const OpCase& op_case, int index) {
  constexpr double kInsideBF16 = 1e-2;
  constexpr double kTf32 = 1.0 / 256;  // twice the error of two operands that are cut
  constexpr double kCapped = 1e-6;     // the rounding of tanh, which the softmax makes larger
  constexpr double kStoredAsBF16 = 1.0 / 256;       // twice the rounding error
  constexpr double kF16 = 1.0 / 8;                  // of the same: three more bits
  constexpr double kToEitherNeighbour = 1.0 / 128;  // all of the distance between two of bf16
  double bound = BoundOf(op_case.op);
  if (op_case.op == Op::kUpdateStochastic && index == 1) return bound + kToEitherNeighbour;
  if (RoundsInsideTo(MatmulPrecision::kBF16, op_case)) bound += kInsideBF16;
  if (RoundsInsideTo(MatmulPrecision::kF16, op_case)) bound += kInsideBF16 * kF16;
  if (MayReadTf32(op_case)) bound += kTf32;
  if (WeighsCappedRows(op_case)) bound += kCapped;
  if (op_case.op == Op::kUpdateMatrix && index == 1) bound += IterationBound(op_case);
  const double stored = Roundings(op_case, index) * kStoredAsBF16;
  if (bound > 0 && op_case.operands[index].dtype == DType::kBF16) bound += stored;
  if (bound > 0 && op_case.operands[index].dtype == DType::kF16) bound += stored * kF16;
  return bound;
}

// Of the finite values: the log-sum-exp of no key is minus infinity.
double RootMeanSquare(const Values& values) {
  double sum = 0;
  for (double value : values) sum += std::isfinite(value) ? value * value : 0;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

// "operand 'y' bf16[3,7]: ..."
std::string About(const OpCase& op_case, int index, const std::string& what) {
  return "operand '" + std::string(OperandName(op_case.op, index)) + "' " +
         op_case.operands[index].ToString() + ": " + what;
}

// What is wrong with one operand's values, as a part of the bound; `element` is the worst.
struct Error {
  double relative = 0;
  size_t element = 0;
};

// For results whose single elements may be far off: bf16 scores under an exponential.
Error ErrorOnAverage(const Values& got, const Values& want) {
  Values error(want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i] && !(std::isfinite(got[i]) && std::isfinite(want[i]))) {
      return {std::numeric_limits<double>::infinity(), i};
    }
    error[i] = got[i] == want[i] ? 0 : got[i] - want[i];
  }
  const double size = RootMeanSquare(error);
  return {size == 0 ? 0 : size / RootMeanSquare(want), 0};
}

// Each element relative to its own size and `common_size` together.
Error ErrorOfEach(const Values& got, const Values& want, double common_size) {
  Error worst;
  for (size_t i = 0; i < want.size(); ++i) {
    double error = std::abs(got[i] - want[i]) / (std::abs(want[i]) + common_size + 1e-30);
    if (got[i] == want[i]) error = 0;
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error > worst.relative) worst = {error, i};
  }
  return worst;
}

// The whole numbers of codes of 4 bits, of which a byte has two: those of nf4 have no sign.
Values Unpacked(const OpCase& op_case, const Values& bytes) {
  const auto* blocks = std::get_if<BlockAttrs>(&op_case.attrs);
  if (blocks == nullptr || RowOf(blocks->format).packed == 1) return bytes;
  const int sign = blocks->format == Format::kInt4Linear ? 8 : 0;
  Values numbers;
  for (const double byte : bytes) {
    for (const int shift : {0, 4})
      numbers.push_back(((static_cast<int>(byte) >> shift & 15) ^ sign) - sign);
  }
  return numbers;
}

// Of numbers that lie next to the bound between two codes, f32 and double may choose either.
void JudgeCodes(const OpCase& op_case, int index, const Values& got_bytes, const Values& want_bytes,
                Judgement* judgement) {
  constexpr double kMayDiffer = 1e-4;  // of all elements
  const Values got = Unpacked(op_case, got_bytes), want = Unpacked(op_case, want_bytes);
  int64_t others = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double distance = std::abs(got[i] - want[i]);
    others += distance > 0;
    if (distance <= 1) continue;
    judgement->Complain(About(op_case, index,
                              "element " + std::to_string(i) + " is " + Number(got[i]) +
                                  ", the reference has " + Number(want[i])));
    return;
  }
  if (static_cast<double>(others) <= kMayDiffer * static_cast<double>(want.size())) return;
  judgement->Complain(About(op_case, index, std::to_string(others) + " codes are others"));
}

// What is left of numbers of which most is taken away; where the code is another, the step to it.
void JudgeResidual(const OpCase& op_case, int index, const Values& got, const Values& want,
                   Judgement* judgement) {
  constexpr double kMayDiffer = 1e-4;  // of all elements
  constexpr double kTakenAway = 1e-4;  // of what is left, for the rounding of what there was
  const double bound = kTakenAway + BoundOf(op_case, index), size = RootMeanSquare(want);
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  int64_t others = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double distance = std::abs(got[i] - want[i]);
    if (distance <= bound * (std::abs(want[i]) + size)) continue;
    ++others;
    if (distance <= 2 * largest * (1 + bound)) continue;
    judgement->Complain(About(op_case, index,
                              "element " + std::to_string(i) + " is " + Number(got[i]) +
                                  ", the reference has " + Number(want[i])));
    return;
  }
  if (static_cast<double>(others) <= kMayDiffer * static_cast<double>(want.size())) return;
  judgement->Complain(About(op_case, index, std::to_string(others) + " residuals are others"));
}

void JudgeOperand(const OpCase& op_case, int index, const Values& got, Values want,
                  Judgement* judgement) {
  const TensorShape& shape = op_case.operands[index];
  constexpr int kResidual = 3;
  if (shape.dtype == DType::kU8) return JudgeCodes(op_case, index, got, want, judgement);
  if (op_case.op == Op::kEncodeBlocks && index == kResidual)
    return JudgeResidual(op_case, index, got, want, judgement);
  const double bound = BoundOf(op_case, index);
  if (bound == 0) {
    for (double& value : want) value = RoundTo(shape.dtype, value);
    if (got == want) return;
    judgement->worst = std::numeric_limits<double>::infinity();
    judgement->Complain(About(op_case, index, "is not exactly the reference's"));
    return;
  }
  // Each of grad_scale's results stands for itself: no other one says how wrong it may be.
  const Error error =
      RoundsInside(op_case) || MayReadTf32(op_case)
          ? ErrorOnAverage(got, want)
          : ErrorOfEach(got, want, op_case.op == Op::kGradScale ? 0.0 : RootMeanSquare(want));
  judgement->worst = std::max(judgement->worst, error.relative / bound);
  if (error.relative <= bound) return;
  judgement->Complain(About(op_case, index,
                            "error " + Number(error.relative) + ", at most " + Number(bound) +
                                "; element " + std::to_string(error.element) + " is " +
                                Number(got[error.element]) + ", the reference has " +
                                Number(want[error.element])));
}

void RunOp(const Backend& backend, const OpCase& op_case, OpMemory* memory, int threads,
           Judgement* judgement) {
  const std::vector<TensorView> views = memory->Views();
  const Status status = backend(op_case.op, op_case.attrs, views, threads);
  if (!status.ok()) judgement->Complain(status.message);
}

bool FitsTheTable(const OpCase& op_case, Judgement* judgement) {
  const std::string error = CheckShapes(op_case.op, op_case.attrs, op_case.operands);
  if (!error.empty()) judgement->Complain(error);
  return error.empty();
}

}  // namespace

Judgement JudgeAgainstReference(const Backend& backend, const OpCase& op_case, uint64_t seed) {
  Judgement judgement;
  if (!FitsTheTable(op_case, &judgement)) return judgement;
  std::vector<Values> values = MakeOperands(op_case, seed);
  OpMemory memory(op_case, values);
  RunOp(backend, op_case, &memory, 2, &judgement);

  const std::vector<Values> before = values;
  RunReference(op_case.op, op_case.attrs, op_case.operands, values);
  for (int i = 0; i < static_cast<int>(values.size()); ++i) {
    if (op_case.operands[i].absent()) continue;
    if (!memory.GapsAreUntouched(i)) {
      judgement.Complain(About(op_case, i, "the gaps between its rows have changed"));
    }
    const Access access = OperandAccess(op_case.op, op_case.attrs, i);
    if (access == Access::kWrite || access == Access::kUpdate) {
      JudgeOperand(op_case, i, memory.Read(i), values[i], &judgement);
    } else if (memory.IsOnlyRead(i) && memory.Read(i) != before[i]) {
      judgement.Complain(About(op_case, i, "is only read, but has changed"));
    }
  }
  return judgement;
}

Judgement JudgeThreads(const Backend& backend, const OpCase& op_case, uint64_t seed) {
  Judgement judgement;
  const std::vector<Values> values = MakeOperands(op_case, seed);
  OpMemory alone(op_case, values);
  RunOp(backend, op_case, &alone, 1, &judgement);
  for (int threads : {2, 3}) {
    OpMemory together(op_case, values);
    RunOp(backend, op_case, &together, threads, &judgement);
    if (together.buffers() == alone.buffers()) continue;
    judgement.Complain("the bytes are others with " + std::to_string(threads) + " threads");
  }
  return judgement;
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
void JudgeSlope(const OpCase& op_case, const std::vector<Values>& operands,
                const std::vector<Values>& forward, int input, const Values& gradient,
                Random* random, Judgement* judgement) {
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
  const double bound = 3e-5 * size + 1e-9;
  const double error = std::abs(slope - difference);
  judgement->worst = std::max(judgement->worst, error / bound);
  if (error <= bound) return;
  judgement->Complain("the slope by '" + std::string(OperandName(op_case.forward->op, input)) +
                      "' is " + Number(slope) + ", finite differences say " + Number(difference));
}

}  // namespace

Judgement JudgeFiniteDifferences(const Backend& backend, const OpCase& op_case, uint64_t seed) {
  constexpr int kDirections = 3;
  Judgement judgement;
  if (!FitsTheTable(op_case, &judgement)) return judgement;
  Random random(seed);
  // The first numbers drawn are the forward operands, as in MakeOperands: the same values here.
  const std::vector<Values> forward = RandomOperands(*op_case.forward, &random);
  const std::vector<Values> operands = MakeOperands(op_case, seed);
  OpMemory memory(op_case, operands);
  RunOp(backend, op_case, &memory, 2, &judgement);
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
      JudgeSlope(op_case, operands, forward, operand.forward, gradient, &random, &judgement);
    }
  }
  return judgement;
}

}  // namespace terrace::kernels::conformance
