// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/attention/attention_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>

#include "kernels/attention_workspace.h"

namespace terrace::kernels {
namespace {

constexpr uint8_t kGuard = 0x5a;
constexpr int64_t kGuardBytes = 256;

float ReadElement(const std::byte* at, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void WriteElement(std::byte* at, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const uint32_t wide = std::bit_cast<uint32_t>(value);
  const uint16_t bits = static_cast<uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  std::memcpy(at, &bits, sizeof bits);
}

// Memory with guard bytes around it; the content starts 64-byte aligned.
class Guarded {
 public:
  explicit Guarded(int64_t bytes)
      : bytes_(bytes),
        memory_(static_cast<std::byte*>(
                    std::aligned_alloc(64, (bytes + 2 * kGuardBytes + 63) / 64 * 64)),
                std::free) {
    std::memset(memory_.get(), kGuard, bytes + 2 * kGuardBytes);
  }
  std::byte* data() const { return memory_.get() + kGuardBytes; }
  bool Intact() const {
    const auto is_guard = [](std::byte b) { return b == std::byte{kGuard}; };
    return std::all_of(memory_.get(), data(), is_guard) &&
           std::all_of(data() + bytes_, data() + bytes_ + kGuardBytes, is_guard);
  }

 private:
  int64_t bytes_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
};

// [tokens, columns] with `used` columns from `first` on seen as [tokens, heads, head_dim].
struct Buffer {
  Buffer(int64_t rows, int64_t columns, DType type)
      : tokens(rows), width(columns), dtype(type), memory(rows * columns * SizeOf(type)) {}

  TensorView View(int64_t first, int64_t heads, int64_t head_dim) const {
    TensorView view;
    view.dtype = dtype;
    view.dims = 3;
    view.size = {tokens, heads, head_dim};
    view.row_stride = width;
    view.data = memory.data() + first * SizeOf(dtype);
    return view;
  }
  void Put(int64_t first, int64_t columns, const std::vector<double>& values) const {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < columns; ++c) {
        WriteElement(memory.data() + (t * width + first + c) * SizeOf(dtype), dtype,
                     static_cast<float>(values[t * columns + c]));
      }
    }
  }
  std::vector<double> Get(int64_t first, int64_t columns) const {
    std::vector<double> values(tokens * columns);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < columns; ++c) {
        values[t * columns + c] =
            ReadElement(memory.data() + (t * width + first + c) * SizeOf(dtype), dtype);
      }
    }
    return values;
  }
  // The columns after the first `used` ones still hold what the buffer was made with.
  bool RestUntouched(int64_t used) const {
    for (int64_t t = 0; t < tokens; ++t) {
      const std::byte* row = memory.data() + t * width * SizeOf(dtype);
      for (int64_t i = used * SizeOf(dtype); i < width * SizeOf(dtype); ++i) {
        if (row[i] != std::byte{kGuard}) return false;
      }
    }
    return true;
  }

  int64_t tokens, width;
  DType dtype;
  Guarded memory;
};

std::vector<double> Random(std::mt19937* random, int64_t count, double amplitude, DType dtype) {
  std::normal_distribution<double> normal(0, amplitude);
  std::vector<double> values(count);
  for (double& value : values) {
    std::byte element[4];
    WriteElement(element, dtype, static_cast<float>(normal(*random)));
    value = ReadElement(element, dtype);
  }
  return values;
}

template <typename Kernel>
void Run(Op op, const Kernel& kernel, const AttentionAttrs& attrs,
         std::span<const TensorView> operands, int threads) {
  const std::vector<TensorShape> shapes(operands.begin(), operands.end());
  const int64_t bytes = AttentionWorkspaceBytes(op, attrs, shapes, threads);
  const Guarded workspace(bytes);
  std::memset(workspace.data(), 0xff, bytes);  // NaN wherever a kernel reads what it did not write
  const Context context{
      .threads = threads, .workspace = workspace.data(), .workspace_bytes = bytes};
  EXPECT_EQ(kernel(operands, context).message, "");
  EXPECT_TRUE(workspace.Intact());
}

}  // namespace

AttentionCase::AttentionCase(const AttentionShape& s, uint32_t seed) : shape(s) {
  attrs.sequence = s.sequence;
  attrs.window = s.window;
  attrs.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  attrs.precision = s.precision;
  std::mt19937 random(seed);
  const int64_t query_elements = tokens() * s.heads * s.head_dim;
  const int64_t key_elements = tokens() * s.kv_heads * s.head_dim;
  q = Random(&random, query_elements, s.amplitude, s.dtype);
  k = Random(&random, key_elements, s.amplitude, s.dtype);
  v = Random(&random, key_elements, 1, s.dtype);
  d_o = Random(&random, query_elements, 1, s.dtype);
}

AttentionValues AttentionCase::RunKernels(int threads) const {
  return RunEngine(cpu::FindAttentionEngine(shape.precision, shape.dtype), threads);
}

AttentionValues AttentionCase::RunEngine(const cpu::AttentionEngine& engine, int threads) const {
  const int64_t h = shape.heads * shape.head_dim, g = shape.kv_heads * shape.head_dim;
  constexpr int64_t kSpare = 3;  // columns of each row that belong to nobody
  const Buffer fused(tokens(), h + 2 * g, shape.dtype),
      d_fused(tokens(), h + 2 * g + kSpare, shape.dtype);
  const Buffer out(tokens(), h + kSpare, shape.dtype), d_out(tokens(), h, shape.dtype);
  const Buffer lse(shape.batch, shape.heads * shape.sequence, DType::kF32);
  fused.Put(0, h, q);
  fused.Put(h, g, k);
  fused.Put(h + g, g, v);
  d_out.Put(0, h, d_o);
  const auto queries = [&](const Buffer& b) { return b.View(0, shape.heads, shape.head_dim); };
  const auto keys = [&](const Buffer& b) { return b.View(h, shape.kv_heads, shape.head_dim); };
  const auto values = [&](const Buffer& b) {
    return b.View(h + g, shape.kv_heads, shape.head_dim);
  };
  const TensorView lse_view = lse.View(0, shape.heads, shape.sequence);
  const TensorView forward[] = {queries(fused), keys(fused), values(fused), queries(out), lse_view};
  const auto run = [&](std::span<const TensorView> operands, const Context& context) {
    return cpu::RunAttention(engine, attrs, operands, context);
  };
  Run(Op::kAttention, run, attrs, forward, threads);
  const TensorView backward[] = {queries(fused),   keys(fused),   values(fused),
                                 queries(out),     lse_view,      queries(d_out),
                                 queries(d_fused), keys(d_fused), values(d_fused)};
  const auto run_grad = [&](std::span<const TensorView> operands, const Context& context) {
    return cpu::RunAttentionGrad(engine, attrs, operands, context);
  };
  Run(Op::kAttentionGrad, run_grad, attrs, backward, threads);
  EXPECT_TRUE(out.memory.Intact() && d_fused.memory.Intact() && lse.memory.Intact());
  EXPECT_TRUE(out.RestUntouched(h) && d_fused.RestUntouched(h + 2 * g));
  return {.o = out.Get(0, h),
          .lse = lse.Get(0, shape.heads * shape.sequence),
          .dq = d_fused.Get(0, h),
          .dk = d_fused.Get(h, g),
          .dv = d_fused.Get(h + g, g)};
}

bool AttentionCase::Visible(int64_t query, int64_t key) const {
  return key <= query && (shape.window == 0 || key > query - shape.window);
}

std::vector<double> AttentionCase::Weights(int64_t b, int64_t head, int64_t query,
                                           double* lse) const {
  const int64_t d = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
  const double* q_row = &q[((b * shape.sequence + query) * shape.heads + head) * d];
  std::vector<double> weights(shape.sequence, 0.0);
  double top = -HUGE_VAL, sum = 0;
  for (int64_t j = 0; j < shape.sequence; ++j) {
    if (!Visible(query, j)) continue;
    const double* k_row = &k[((b * shape.sequence + j) * shape.kv_heads + kv_head) * d];
    for (int64_t i = 0; i < d; ++i) weights[j] += q_row[i] * k_row[i] * attrs.scale;
    top = std::max(top, weights[j]);
  }
  for (int64_t j = 0; j < shape.sequence; ++j) {
    weights[j] = Visible(query, j) ? std::exp(weights[j] - top) : 0;
    sum += weights[j];
  }
  for (double& weight : weights) weight /= sum;
  *lse = top + std::log(sum);
  return weights;
}

void AttentionCase::ReferenceForward(AttentionValues* values) const {
  const int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
  values->o.assign(q.size(), 0.0);
  values->lse.assign(shape.batch * shape.heads * shape.sequence, 0.0);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      for (int64_t i = 0; i < shape.sequence; ++i) {
        const auto weights =
            Weights(b, head, i, &values->lse[(b * shape.heads + head) * shape.sequence + i]);
        double* o = &values->o[((b * shape.sequence + i) * shape.heads + head) * d];
        for (int64_t j = 0; j <= i; ++j) {
          const double* v_row = &v[((b * shape.sequence + j) * shape.kv_heads + head / group) * d];
          for (int64_t e = 0; e < d; ++e) o[e] += weights[j] * v_row[e];
        }
      }
    }
  }
}

AttentionValues AttentionCase::Reference() const {
  AttentionValues values;
  ReferenceForward(&values);
  const int64_t d = shape.head_dim, group = shape.heads / shape.kv_heads;
  values.dq.assign(q.size(), 0.0);
  values.dk.assign(k.size(), 0.0);
  values.dv.assign(v.size(), 0.0);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      for (int64_t i = 0; i < shape.sequence; ++i) {
        double lse;
        const auto weights = Weights(b, head, i, &lse);
        const int64_t at = ((b * shape.sequence + i) * shape.heads + head) * d;
        double delta = 0;
        for (int64_t e = 0; e < d; ++e) delta += d_o[at + e] * values.o[at + e];
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t kv_at = ((b * shape.sequence + j) * shape.kv_heads + head / group) * d;
          double dp = 0;
          for (int64_t e = 0; e < d; ++e) dp += d_o[at + e] * v[kv_at + e];
          const double ds = weights[j] * (dp - delta) * attrs.scale;
          for (int64_t e = 0; e < d; ++e) {
            values.dv[kv_at + e] += weights[j] * d_o[at + e];
            values.dk[kv_at + e] += ds * q[at + e];
            values.dq[at + e] += ds * k[kv_at + e];
          }
        }
      }
    }
  }
  return values;
}

double RelativeError(const std::vector<double>& actual, const std::vector<double>& expected) {
  double error = 0, top = 1e-30;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    if (std::isnan(difference)) return HUGE_VAL;
    error = std::max(error, difference);
    top = std::max(top, std::abs(expected[i]));
  }
  return actual.size() == expected.size() ? error / top : HUGE_VAL;
}

}  // namespace terrace::kernels
