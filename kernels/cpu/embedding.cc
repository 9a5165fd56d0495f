// Token and position embeddings. The gradient is split by columns, not by rows: each column of the
// tables is summed by one thread in token order, so the result is the same for any number of
// threads and needs neither atomics nor sorting.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_index.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// x = token_row (+ position_row).
void EmbedRow(const float* token_row, const float* position_row, DType dtype, int64_t columns,
              void* x) {
  ByType(dtype, [&](auto* type) HWY_ATTR {
    auto* out = static_cast<decltype(type)>(x);
    ForVectors(columns, [=](int64_t i, auto access) HWY_ATTR {
      V sum = access.Load(token_row + i);
      if (position_row != nullptr) sum = hn::Add(sum, access.Load(position_row + i));
      access.Store(sum, out + i);
    });
  });
}

void AddRow(const void* x, DType dtype, int64_t columns, float* sum) {
  ByType(dtype, [&](auto* type) HWY_ATTR {
    const auto* in = static_cast<const std::remove_pointer_t<decltype(type)>*>(x);
    ForVectors(columns, [=](int64_t i, auto access) HWY_ATTR {
      access.Store(hn::Add(access.Load(sum + i), access.Load(in + i)), sum + i);
    });
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(EmbedRow);
HWY_EXPORT(AddRow);

Status Embedding(const OpAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context) {
  const TensorView& tokens = operands[0];
  const TensorView& table = operands[1];
  const TensorView& positions = operands[2];
  const TensorView& x = operands[3];
  const int64_t sequence = std::get<EmbeddingAttrs>(attrs).sequence;
  Status status = CheckRowIndex("embedding: token", tokens, table.rows());
  if (!status.ok()) return status;
  const int64_t columns = table.size[1];
  ParallelFor(x.rows(), columns, context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* token_row = table.as<float>() + tokens.as<int32_t>()[row] * columns;
      const float* position_row =
          positions.absent() ? nullptr : positions.as<float>() + row % sequence * columns;
      HWY_DYNAMIC_DISPATCH(EmbedRow)
      (token_row, position_row, x.dtype, columns, Address(x, row, 0));
    }
  });
  return {};
}

Status EmbeddingGrad(const OpAttrs& attrs, std::span<const TensorView> operands,
                     const Context& context) {
  const TensorView& tokens = operands[0];
  const TensorView& dx = operands[1];
  const TensorView& dtable = operands[2];
  const TensorView& dpositions = operands[3];
  const int64_t sequence = std::get<EmbeddingAttrs>(attrs).sequence;
  Status status = CheckRowIndex("embedding_grad: token", tokens, dtable.rows());
  if (!status.ok()) return status;
  const int64_t columns = dtable.size[1];
  constexpr int64_t kColumns = 32;  // a piece: two cache lines of f32, so that threads share none
  const auto add_columns = [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumns;
    const int64_t count = std::min(end * kColumns, columns) - first;
    for (int64_t row = 0; row < dx.rows(); ++row) {
      const void* dx_row = Address(dx, row, first);
      float* table_row = dtable.as<float>() + tokens.as<int32_t>()[row] * columns + first;
      HWY_DYNAMIC_DISPATCH(AddRow)(dx_row, dx.dtype, count, table_row);
      if (dpositions.absent()) continue;
      float* position_row = dpositions.as<float>() + row % sequence * columns + first;
      HWY_DYNAMIC_DISPATCH(AddRow)(dx_row, dx.dtype, count, position_row);
    }
  };
  ParallelFor((columns + kColumns - 1) / kColumns, kColumns * dx.rows(), context.threads,
              add_columns);
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
