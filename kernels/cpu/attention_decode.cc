// One query of each head of a group over the kept keys and values of one sequence: what
// kAttentionCached computes where new tokens come one by one. Reads keys and values once, as they
// lie.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_decode.cc"
#include <algorithm>
#include <cmath>

#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_f32_rows-inl.h"
#include "kernels/cpu/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

// 2^t for t <= 0; 0 where that is below any normal number.
HWY_INLINE V Weight(V t) {
  const V least = hn::Set(D(), -126.0f);
  return hn::IfThenElseZero(hn::Ge(t, least), PowerOfTwo(hn::Max(t, least)));
}

// Scores of `count` keys times the query, in the unit of powers of two.
template <typename T>
void Scores(const T* keys, int64_t stride, int64_t count, const float* query, int64_t head_dim,
            float* scores) {
  for (int64_t r = 0; r < count; ++r) {
    const T* key = keys + r * stride;
    scores[r] = SumVectors(head_dim, [&](int64_t i, auto access) HWY_ATTR {
      return hn::Mul(access.Load(key + i), access.Load(query + i));
    });
  }
}

// Turns scores into weights relative to `maximum`; returns their sum.
float Weights(float maximum, int64_t count, float* scores) {
  const V top = hn::Set(D(), maximum);
  V sum = hn::Zero(D());
  ForVectors(count, [&](int64_t i, auto access) HWY_ATTR {
    const V weight = Weight(hn::Sub(access.Load(scores + i), top));
    access.Store(weight, scores + i);
    sum = hn::Add(sum, access.Keep(weight));
  });
  return hn::GetLane(hn::SumOfLanes(D(), sum));
}

// output = decay * output + the sum of the values by their weights.
template <typename T>
void AddValues(const T* values, int64_t stride, int64_t count, const float* weights, float decay,
               int64_t head_dim, float* output) {
  ForVectors(head_dim, [&](int64_t i, auto access) HWY_ATTR {
    V even = hn::Mul(access.Load(output + i), hn::Set(D(), decay)), odd = hn::Zero(D());
    int64_t r = 0;
    for (; r + 2 <= count; r += 2) {
      even = hn::MulAdd(hn::Set(D(), weights[r]), access.Load(values + r * stride + i), even);
      odd =
          hn::MulAdd(hn::Set(D(), weights[r + 1]), access.Load(values + (r + 1) * stride + i), odd);
    }
    if (r < count)
      even = hn::MulAdd(hn::Set(D(), weights[r]), access.Load(values + r * stride + i), even);
    access.Store(hn::Add(even, odd), output + i);
  });
}

template <typename T>
void DecodeRows(const DecodeTask& task, Scratch scratch) {
  const int64_t d = task.head_dim;
  const auto group = static_cast<int64_t>(task.q.size());
  float* queries = scratch.Take<float>(group * d);
  float* outputs = scratch.Take<float>(group * d);
  float* maximum = scratch.Take<float>(group);
  float* sum = scratch.Take<float>(group);
  float* scores = scratch.Take<float>(kDecodeKeys);
  for (int64_t g = 0; g < group; ++g) {
    attention_f32::LoadRow(task.q[g], 0, d, d, queries + g * d);
    for (int64_t i = 0; i < d; ++i) queries[g * d + i] *= task.scale * kLog2E;
    std::fill_n(outputs + g * d, d, 0.0f);
    maximum[g] = -INFINITY;
    sum[g] = 0;
  }
  const T* keys = static_cast<const T*>(task.keys.data);
  const T* values = static_cast<const T*>(task.values.data);
  for (int64_t key = task.first_key; key < task.end_key; key += kDecodeKeys) {
    const int64_t count = std::min(kDecodeKeys, task.end_key - key);
    for (int64_t g = 0; g < group; ++g) {
      Scores(keys + key * task.keys.row_stride, task.keys.row_stride, count, queries + g * d, d,
             scores);
      // The queries have been multiplied by the scale and log2(e).
      if (!task.terms.empty())
        ChangeRow(task.terms[g], kLn2, task.end_key - 1 - key, count, scores);
      const float top = std::max(maximum[g], *std::max_element(scores, scores + count));
      const float decay = sum[g] == 0 ? 0.0f : std::exp2(maximum[g] - top);
      sum[g] = sum[g] * decay + Weights(top, count, scores);
      maximum[g] = top;
      AddValues(values + key * task.values.row_stride, task.values.row_stride, count, scores, decay,
                d, outputs + g * d);
    }
  }
  for (int64_t g = 0; g < group; ++g)
    attention_f32::StoreRow(task.o[g], 0, d, 1.0f / sum[g], outputs + g * d);
}

void Decode(const DecodeTask& task, Scratch scratch) {
  ByType(task.keys.dtype, [&](auto* type) HWY_ATTR {
    DecodeRows<std::remove_pointer_t<decltype(type)>>(task, scratch);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace terrace::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(Decode);

void DecodeAttention(const DecodeTask& task, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(Decode)(task, scratch);
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
