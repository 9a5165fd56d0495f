// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>

#include "kernels/block_codes.h"
#include "kernels/philox.h"
#include "tests/conformance/attention_reference.h"
#include "tests/conformance/layout_reference.h"
#include "tests/conformance/norm_reference.h"
#include "tests/conformance/reference_tools.h"
#include "tests/conformance/update_reference.h"

namespace terrace::kernels::conformance {
namespace {

using Shapes = std::span<const TensorShape>;
using Operands = std::span<Values>;

int64_t Index(double value) { return static_cast<int64_t>(value); }

int64_t PositionOf(const EmbeddingAttrs& attrs, const Values& starts, int64_t row) {
  return attrs.context.Position(row, attrs.sequence) - (starts.empty() ? 0 : Index(starts[row]));
}

void EmbeddingRef(const EmbeddingAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t h = shapes[1].size[1];
  const bool positions = !shapes[2].absent() && attrs.shard == 0;
  Begin(&operands[3], shapes[3], false);
  for (int64_t t = 0; t < shapes[3].rows(); ++t) {
    const int64_t row = Index(operands[0][t]) - attrs.shard * attrs.shard_rows;
    const bool here = row >= 0 && row < shapes[1].rows();
    const int64_t position = positions ? PositionOf(attrs, operands[4], t) : 0;
    for (int64_t i = 0; i < h; ++i) {
      if (here) operands[3][t * h + i] += operands[1][row * h + i];
      if (positions) operands[3][t * h + i] += operands[2][position * h + i];
    }
  }
}

void EmbeddingGradRef(const EmbeddingAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t h = shapes[1].size[1];
  const bool table = !shapes[2].absent(), positions = !shapes[3].absent();
  for (int64_t t = 0; t < shapes[1].rows(); ++t) {
    const int64_t row = Index(operands[0][t]) - attrs.shard * attrs.shard_rows;
    const bool here = table && row >= 0 && row < shapes[2].rows();
    const int64_t position = positions ? PositionOf(attrs, operands[4], t) : 0;
    for (int64_t i = 0; i < h; ++i) {
      const double dx = operands[1][t * h + i];
      if (here) operands[2][row * h + i] += dx;
      if (positions) operands[3][position * h + i] += dx;
    }
  }
}

double GeluOf(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(u));
}

double GeluSlope(double x) {
  const double c = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

double ActivationOf(Activation activation, double x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return GeluOf(x);
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

double SlopeOf(Activation activation, double x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return GeluSlope(x);
    case Activation::kGelu:
      return 0.5 * std::erfc(-x / std::numbers::sqrt2) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    case Activation::kRelu:
      return x > 0 ? 1 : 0;
    case Activation::kSilu: {
      const double s = 1 / (1 + std::exp(-x));
      return s + x * s * (1 - s);
    }
  }
  return 0;
}

// Quantised to 8 bits and back, by the words of the format: `exponents` down to `lowest`, `bits` of
// fraction. The scale and its product are f32, as kernels/fp8.h says.
struct Fp8Words {
  double largest;
  int lowest, bits;
};
void RoundToFp8(const Fp8Words& words, Values* values) {
  float largest = 0;
  for (double value : *values) largest = std::max(largest, static_cast<float>(std::abs(value)));
  const float scale = largest == 0 ? 1.0f : static_cast<float>(words.largest) / largest;
  for (double& value : *values) {
    const double scaled = static_cast<float>(value) * scale;
    int exponent = 0;
    std::frexp(scaled, &exponent);
    const double ulp = std::ldexp(1.0, std::max(exponent - 1, words.lowest) - words.bits);
    const double rounded = std::nearbyint(scaled / ulp) * ulp;
    value = std::clamp(rounded, -words.largest, words.largest) * (1 / scale);
  }
}

void MatmulRef(const MatmulAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t m = shapes[2].size[0];
  const int64_t n = shapes[2].size[1];
  const int64_t k = shapes[0].size[attrs.transpose_a ? 0 : 1];
  Values a = operands[0];
  Values b = operands[1];
  if (attrs.precision == MatmulPrecision::kBF16 || attrs.precision == MatmulPrecision::kF16) {
    const DType type = attrs.precision == MatmulPrecision::kF16 ? DType::kF16 : DType::kBF16;
    for (double& value : a) value = RoundTo(type, value);
    for (double& value : b) value = RoundTo(type, value);
  }
  if (attrs.precision == MatmulPrecision::kFP8) {
    constexpr Fp8Words kE4M3 = {448, -6, 3}, kE5M2 = {57344, -14, 2};
    RoundToFp8(attrs.gradient == Fp8Gradient::kA ? kE5M2 : kE4M3, &a);
    RoundToFp8(attrs.gradient == Fp8Gradient::kB ? kE5M2 : kE4M3, &b);
  }
  const bool keep = attrs.epilogue == Epilogue::kGelu && !shapes[5].absent();
  if (keep) Begin(&operands[5], shapes[5], false);
  Begin(&operands[2], shapes[2], attrs.accumulate);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) {
        sum += a[attrs.transpose_a ? p * m + i : i * k + p] *
               b[attrs.transpose_b ? j * k + p : p * n + j];
      }
      const int64_t at = i * n + j;
      if (!shapes[3].absent()) sum += operands[3][j];
      if (!shapes[4].absent()) sum += operands[4][at];
      if (keep) operands[5][at] = sum;
      if (attrs.epilogue == Epilogue::kGelu) sum = GeluOf(sum);
      if (attrs.epilogue == Epilogue::kGeluGrad) sum *= GeluSlope(operands[5][at]);
      operands[2][at] += sum;
    }
  }
}

void BiasGradRef(const AccumulateAttrs& attrs, Shapes shapes, Operands operands) {
  Begin(&operands[1], shapes[1], attrs.accumulate);
  const int64_t d = shapes[1].rows();
  for (size_t i = 0; i < operands[0].size(); ++i) operands[1][i % d] += operands[0][i];
}

Activation KindOf(const OpAttrs& attrs) { return std::get<ActivationAttrs>(attrs).activation; }

void SwigluRef(Activation activation, Operands operands) {
  operands[2].resize(operands[0].size());
  for (size_t i = 0; i < operands[0].size(); ++i) {
    operands[2][i] = ActivationOf(activation, operands[0][i]) * operands[1][i];
  }
}

void SwigluGradRef(Activation activation, Operands operands) {
  operands[3].resize(operands[0].size());
  operands[4].resize(operands[0].size());
  for (size_t i = 0; i < operands[0].size(); ++i) {
    const double dy = operands[0][i], gate = operands[1][i], up = operands[2][i];
    operands[3][i] = dy * up * SlopeOf(activation, gate);
    operands[4][i] = dy * ActivationOf(activation, gate);
  }
}

void RopeRef(const RopeAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t d = shapes[0].size[2], rotated = shapes[1].size[1], half = rotated / 2;
  for (int64_t t = 0; t < shapes[0].rows(); ++t) {
    const double* angles = &operands[1][attrs.context.Position(t, attrs.sequence) * rotated];
    for (int64_t head = 0; head < shapes[0].size[1]; ++head) {
      double* x = &operands[0][(t * shapes[0].size[1] + head) * d];
      for (int64_t i = 0; i < half; ++i) {
        const double cos = angles[i];
        const double sin = attrs.inverse ? -angles[half + i] : angles[half + i];
        const double a = x[i], b = x[half + i];
        x[i] = a * cos - b * sin;
        x[half + i] = b * cos + a * sin;
      }
    }
  }
}

// Both loss ops; the gradients are outputs 4 and 5 where `with_gradients`, else output 4 is the
// loss of each row.
void LossRef(const LossAttrs& attrs, bool with_gradients, Shapes shapes, Operands operands) {
  const int64_t h = shapes[0].size[1];
  const int64_t vocab = shapes[1].rows();
  const double scheduled = with_gradients && !shapes[6].absent() ? operands[6][3] : 1.0;
  const bool of_rows = !with_gradients && !shapes[4].absent();
  Begin(&operands[3], shapes[3], false);
  const bool of_weight = with_gradients && !shapes[5].absent();
  if (with_gradients || of_rows) Begin(&operands[4], shapes[4], false);
  if (of_weight) Begin(&operands[5], shapes[5], attrs.accumulate);
  for (int64_t t = 0; t < shapes[0].rows(); ++t) {
    const int64_t target = Index(operands[2][t]);
    if (target < 0) continue;
    const double* hidden = &operands[0][t * h];
    Values logits(vocab);
    const double softcap = attrs.terms.softcap;
    for (int64_t v = 0; v < vocab; ++v)
      logits[v] = CappedRef(softcap, Dot(hidden, &operands[1][v * h], h));
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double logit : logits) sum += std::exp(logit - largest);
    const double lse = largest + std::log(sum);
    const double smoothing = attrs.terms.label_smoothing, z_loss = attrs.terms.z_loss;
    double loss = (1 - smoothing) * (lse - logits[target]) + z_loss * lse * lse;
    for (double logit : logits) loss += smoothing / static_cast<double>(vocab) * (lse - logit);
    operands[3][0] += loss;
    operands[3][1] += 1;
    if (of_rows) operands[4][t] = loss;
    const bool weighted = with_gradients && !shapes[7].absent();
    const double factor = weighted ? scheduled * operands[7][t] : scheduled;
    for (int64_t v = 0; with_gradients && v < vocab; ++v) {
      const double wished =
          (v == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(vocab);
      const double g = factor * CappedSlopeRef(softcap, logits[v]) *
                       (std::exp(logits[v] - lse) * (1 + 2 * z_loss * lse) - wished);
      for (int64_t i = 0; i < h; ++i) {
        operands[4][t * h + i] += g * operands[1][v * h + i];
        if (of_weight) operands[5][v * h + i] += g * hidden[i];
      }
    }
  }
}

// Element by element, from the definition in kernels/dropout.h.
void DropoutRef(const DropoutAttrs& attrs, Shapes shapes, Operands operands) {
  const int64_t rows = shapes[0].size[0], columns = shapes[0].size[1];
  const int64_t first_row = attrs.row_shards > 1 ? attrs.shard * rows : 0;
  const int64_t first_column = attrs.column_shards > 1 ? attrs.shard * columns : 0;
  const double below = std::round(static_cast<double>(attrs.probability) * 65536);
  const PhiloxBlock key =
      Philox({{attrs.site, 0, 0x64726f70, 0}},
             {{static_cast<uint32_t>(attrs.seed), static_cast<uint32_t>(attrs.seed >> 32)}});
  for (int64_t i = 0; i < rows; ++i) {
    const auto position = static_cast<uint32_t>(Index(operands[1][2 * (first_row + i)]));
    const auto sequence = static_cast<uint32_t>(Index(operands[1][2 * (first_row + i) + 1]));
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t column = first_column + j;
      const PhiloxBlock block = Philox({{static_cast<uint32_t>(column / 8), position, sequence, 0}},
                                       {{key.word[0], key.word[1]}});
      const uint32_t word = block.word[column % 8 / 2];
      const uint32_t bits = column % 2 == 0 ? word & 0xffff : word >> 16;
      const double kept = bits < below ? 0 : operands[0][i * columns + j] / (1 - below / 65536);
      double& y = operands[2][i * columns + j];
      y = attrs.accumulate ? y + kept : kept;
    }
  }
}

void GatherRowsRef(Shapes shapes, Operands operands) {
  const int64_t h = shapes[0].size[1];
  operands[2].resize(shapes[2].Elements());
  for (size_t i = 0; i < operands[2].size(); ++i) {
    operands[2][i] = operands[0][Index(operands[1][i / h]) * h + i % h];
  }
}

void GradScaleRef(const ClipAttrs& attrs, Shapes shapes, Operands operands) {
  double sum = 0;
  for (double square : operands[0]) sum += square;
  const double factor = shapes[3].absent() ? 1.0 : operands[3][3];
  const double tokens = operands[1][1];
  const double norm = std::sqrt(sum) / (factor * tokens);
  const double shrink = attrs.clip_grad_norm > 0 ? std::min(1.0, attrs.clip_grad_norm / norm) : 1.0;
  operands[2] = {shrink / (factor * tokens), norm, operands[1][0] / tokens, 0.0};
}

void PreferenceRef(const PreferenceAttrs& attrs, Shapes shapes, Operands operands) {
  const double beta = attrs.beta, smoothing = attrs.label_smoothing;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (int i : {3, 4}) Begin(&operands[i], shapes[i], attrs.accumulate);
  for (int64_t first = 0; first < shapes[0].rows(); first += 2 * attrs.sequence) {
    double difference = 0;
    for (int64_t t = 0; t < 2 * attrs.sequence; ++t)
      difference +=
          (t < attrs.sequence ? 1 : -1) * (operands[1][first + t] - operands[0][first + t]);
    const double p = sigmoid(beta * difference);
    operands[3][0] -= (1 - smoothing) * std::log(p) + smoothing * std::log(1 - p);
    operands[3][1] += 1;
    operands[4][0] += beta * difference;
    operands[4][1] += difference > 0 ? 1 : 0;
    for (int64_t t = 0; t < 2 * attrs.sequence; ++t)
      operands[2][first + t] = (t < attrs.sequence ? 1 : -1) * beta * (1 - smoothing - p);
  }
}

// The numbers of the codes of fp8, by code; 0 for the two that are none.
Values Fp8Numbers() {
  Values numbers(256);
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7f) == 0x7f) continue;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    numbers[code] = code < 128 ? magnitude : -magnitude;
  }
  return numbers;
}

// To the nearest, ties to the even code.
double NearestFp8(const Values& numbers, double value) {
  int nearest = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::abs(numbers[code] - std::abs(value));
    const double best = std::abs(numbers[nearest] - std::abs(value));
    if (distance < best || (distance == best && code % 2 == 0)) nearest = code;
  }
  return nearest + (std::signbit(value) ? 128 : 0);
}

// The numbers of all codes, the index being the code.
Values NumbersOf(Format format) {
  if (format == Format::kFP8) return Fp8Numbers();
  if (format == Format::kNF4)
    return Values(std::begin(kNormalMap.number), std::end(kNormalMap.number));
  const int count = format == Format::kInt4Linear ? 16 : 256;
  Values numbers(count);
  for (int code = 0; code < count; ++code) numbers[code] = code < count / 2 ? code : code - count;
  return numbers;
}

// Code `i` of bytes that have one or two of them.
int CodeAt(const BlockAttrs& attrs, const Values& bytes, int64_t i) {
  if (RowOf(attrs.format).packed == 1) return static_cast<int>(bytes[i]);
  return static_cast<int>(bytes[i / 2]) >> (i % 2 * 4) & 15;
}

// Of ascending numbers the nearest, of two as near the lower one.
int NearestOf(const Values& numbers, double value) {
  int code = 0;
  for (size_t next = 1; next < numbers.size(); ++next)
    code += value > (numbers[next - 1] + numbers[next]) / 2;
  return code;
}

double MostOf(Format format) {
  if (format == Format::kFP8) return 448;
  if (format == Format::kNF4) return 1;
  return format == Format::kInt4Linear ? 7 : 127;
}

// Scales and what they multiply are f32 numbers, as they are stored, and so is what is encoded.
void EncodeBlocksRef(const BlockAttrs& attrs, Operands operands) {
  Values x = operands[0];
  Values& residual = operands[3];  // empty without one
  for (size_t i = 0; i < residual.size(); ++i)
    x[i] = static_cast<float>(x[i]) + static_cast<float>(residual[i]);
  const Values numbers = Fp8Numbers(), all = NumbersOf(attrs.format);
  const auto count = static_cast<int64_t>(x.size());
  const bool pairs = RowOf(attrs.format).packed == 2;
  operands[1].assign(pairs ? count / 2 : count, 0);
  operands[2].resize((count + attrs.block - 1) / attrs.block);
  const int64_t of_part = count / (attrs.runs * attrs.parts);
  for (int64_t b = 0; b < static_cast<int64_t>(operands[2].size()); ++b) {
    const int64_t begin = b * attrs.block, end = std::min(count, begin + attrs.block);
    // Of run `run` the part that all runs have beside each other.
    const int64_t run = begin / of_part / attrs.parts, part = begin / of_part % attrs.parts;
    const int64_t moved = (part * attrs.runs + run) * of_part - begin / of_part * of_part;
    float largest = 0;
    for (int64_t i = begin; i < end; ++i)
      largest = std::max(largest, static_cast<float>(std::abs(x[i])));
    const auto most = static_cast<float>(MostOf(attrs.format));
    operands[2][(begin + moved) / attrs.block] = largest / most;
    for (int64_t i = begin; i < end; ++i) {
      const float scaled = static_cast<float>(x[i]) * (most / largest);
      const int64_t at = i + moved;
      if (attrs.format == Format::kFP8) {
        operands[1][at] = NearestFp8(numbers, scaled);
        continue;
      }
      const auto code = static_cast<uint8_t>(attrs.format == Format::kNF4
                                                 ? NearestOf(all, scaled)
                                                 : static_cast<int>(std::nearbyint(scaled)));
      if (pairs) {
        operands[1][at / 2] += (code & 15) << (at % 2 * 4);
      } else {
        operands[1][at] = code;
      }
    }
    for (int64_t i = begin; i < end && !residual.empty(); ++i) {
      const double worth =
          all[CodeAt(attrs, operands[1], i + moved)] * operands[2][(begin + moved) / attrs.block];
      constexpr float kNew = 0.2f;
      const auto lost = static_cast<float>(x[i]) - static_cast<float>(worth);
      residual[i] += kNew * (lost - static_cast<float>(residual[i]));
    }
  }
}

void SumBlocksRef(const BlockAttrs& attrs, Shapes shapes, Operands operands) {
  const Values numbers = NumbersOf(attrs.format);
  const int64_t parts = shapes[0].size[0], blocks = shapes[1].size[1], count = shapes[2].size[0];
  operands[2].assign(count, 0);
  for (int64_t p = 0; p < parts; ++p) {
    for (int64_t i = 0; i < count; ++i) {
      operands[2][i] += numbers[CodeAt(attrs, operands[0], p * count + i)] *
                        operands[1][p * blocks + i / attrs.block];
    }
  }
}

void DecodeBlocksRef(const BlockAttrs& attrs, Shapes shapes, Operands operands) {
  const Values numbers = NumbersOf(attrs.format);
  operands[2].resize(shapes[2].size[0]);
  for (int64_t i = 0; i < shapes[2].size[0]; ++i)
    operands[2][i] = numbers[CodeAt(attrs, operands[0], i)] * operands[1][i / attrs.block];
}

template <typename F>
void MapTo(Operands operands, int from, int to, const F& f) {
  operands[to].resize(operands[from].size());
  for (size_t i = 0; i < operands[from].size(); ++i) operands[to][i] = f(i);
}

// To a number of `digits` binary digits; `lowest` is the exponent of the normal numbers' smallest.
// From double in one step: through f32 a value could be rounded twice.
double RoundToDigits(double value, int digits, int lowest) {
  if (!std::isfinite(value) || value == 0) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent, lowest) - digits);
  return std::nearbyint(value / ulp) * ulp;
}

}  // namespace

double RoundToBF16(double value) { return RoundToDigits(value, 8, -125); }

double RoundToF16(double value) {
  const double rounded = RoundToDigits(value, 11, -13);
  const double infinity = std::copysign(std::numeric_limits<double>::infinity(), value);
  return std::abs(rounded) > 65504 ? infinity : rounded;
}

double RoundTo(DType dtype, double value) {
  if (dtype == DType::kBF16) return RoundToBF16(value);
  if (dtype == DType::kF16) return RoundToF16(value);
  return dtype == DType::kF32 ? static_cast<float>(value) : value;
}

void RunReference(Op op, const OpAttrs& attrs, Shapes shapes, Operands operands) {
  switch (op) {
    case Op::kEmbedding:
      return EmbeddingRef(std::get<EmbeddingAttrs>(attrs), shapes, operands);
    case Op::kEmbeddingGrad:
      return EmbeddingGradRef(std::get<EmbeddingAttrs>(attrs), shapes, operands);
    case Op::kLayerNorm:
      return LayerNormRef(std::get<NormAttrs>(attrs), shapes, operands);
    case Op::kLayerNormGrad:
      return LayerNormGradRef(std::get<NormAttrs>(attrs), shapes, operands);
    case Op::kRmsNorm:
      return RmsNormRef(std::get<NormAttrs>(attrs), shapes, operands);
    case Op::kRmsNormGrad:
      return RmsNormGradRef(std::get<NormAttrs>(attrs), shapes, operands);
    case Op::kMatmul:
      return MatmulRef(std::get<MatmulAttrs>(attrs), shapes, operands);
    case Op::kBiasGrad:
      return BiasGradRef(std::get<AccumulateAttrs>(attrs), shapes, operands);
    case Op::kGelu:
      return MapTo(operands, 0, 1,
                   [&](size_t i) { return ActivationOf(KindOf(attrs), operands[0][i]); });
    case Op::kGeluGrad:
      return MapTo(operands, 1, 2, [&](size_t i) {
        return operands[0][i] * SlopeOf(KindOf(attrs), operands[1][i]);
      });
    case Op::kSwiglu:
      return SwigluRef(KindOf(attrs), operands);
    case Op::kSwigluGrad:
      return SwigluGradRef(KindOf(attrs), operands);
    case Op::kRope:
      return RopeRef(std::get<RopeAttrs>(attrs), shapes, operands);
    case Op::kAttention:
      return AttentionRef(std::get<AttentionAttrs>(attrs), shapes, operands);
    case Op::kAttentionCached:
      return AttentionCachedRef(std::get<AttentionAttrs>(attrs), shapes, operands);
    case Op::kAttentionGrad:
      return AttentionGradRef(std::get<AttentionAttrs>(attrs), shapes, operands);
    case Op::kLmHeadLoss:
      return LossRef(std::get<LossAttrs>(attrs), false, shapes, operands);
    case Op::kLmHeadLossGrad:
      return LossRef(std::get<LossAttrs>(attrs), true, shapes, operands);
    case Op::kAttentionBlock:
      return AttentionBlockRef(std::get<AttentionBlockAttrs>(attrs), shapes, operands);
    case Op::kAttentionBlockGrad:
      return AttentionBlockGradRef(std::get<AttentionBlockAttrs>(attrs), shapes, operands);
    case Op::kCrossEntropyRows:
      return CrossEntropyRowsRef(std::get<CrossEntropyAttrs>(attrs), shapes, operands);
    case Op::kCrossEntropyLoss:
      return CrossEntropyLossRef(std::get<CrossEntropyAttrs>(attrs), shapes, operands);
    case Op::kCrossEntropyGrad:
      return CrossEntropyGradRef(std::get<CrossEntropyAttrs>(attrs), shapes, operands);
    case Op::kAddResidual:
      return AddResidualRef(shapes, operands);
    case Op::kPermute:
      return PermuteRef(std::get<PermuteAttrs>(attrs), shapes, operands);
    case Op::kGatherRows:
      return GatherRowsRef(shapes, operands);
    case Op::kCast:
      operands[1] = operands[0];
      return;
    case Op::kFill:
      operands[0].assign(shapes[0].Elements(), std::get<FillAttrs>(attrs).value);
      return;
    case Op::kAdd:
      return MapTo(operands, 0, 1, [&](size_t i) { return operands[0][i] + operands[1][i]; });
    case Op::kScale:
      return MapTo(operands, 0, 0,
                   [&](size_t i) { return std::get<ScaleAttrs>(attrs).scale * operands[0][i]; });
    case Op::kDropout:
      return DropoutRef(std::get<DropoutAttrs>(attrs), shapes, operands);
    case Op::kSquaredNorm:
      operands[1] = {std::get<ScaleAttrs>(attrs).scale *
                     Dot(operands[0].data(), operands[0].data(), shapes[0].Elements())};
      return;
    case Op::kSum:
      operands[1] = {0.0};
      for (double value : operands[0]) operands[1][0] += value;
      return;
    case Op::kSumStats:
      operands[1] = {0.0, 0.0};
      for (size_t i = 0; i < operands[0].size(); ++i) operands[1][i % 2] += operands[0][i];
      return;
    case Op::kGradScale:
      return GradScaleRef(std::get<ClipAttrs>(attrs), shapes, operands);
    case Op::kUpdate:
    case Op::kUpdateStochastic:  // without the rounding
      return UpdateRef(std::get<UpdateAttrs>(attrs), operands);
    case Op::kUpdateInt8:
      return UpdateInt8Ref(std::get<UpdateAttrs>(attrs), operands);
    case Op::kUpdateMatrix:
      return UpdateMatrixRef(std::get<UpdateAttrs>(attrs), shapes, operands);
    case Op::kUpdateFactored:
      return UpdateFactoredRef(std::get<UpdateAttrs>(attrs), shapes, operands);
    case Op::kEncodeBlocks:
      return EncodeBlocksRef(std::get<BlockAttrs>(attrs), operands);
    case Op::kDecodeBlocks:
      return DecodeBlocksRef(std::get<BlockAttrs>(attrs), shapes, operands);
    case Op::kSumBlocks:
      return SumBlocksRef(std::get<BlockAttrs>(attrs), shapes, operands);
    case Op::kSoftcap:
      return MapTo(operands, 0, 1, [&](size_t i) {
        return CappedRef(std::get<ScaleAttrs>(attrs).scale, operands[0][i]);
      });
    case Op::kPreferenceLoss:
      return PreferenceRef(std::get<PreferenceAttrs>(attrs), shapes, operands);
  }
}

}  // namespace terrace::kernels::conformance
