// Dropout (kernels/dropout.h): a row at a time, whose random bits are made in pieces that stay in
// the first-level cache.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void TypedRow(const T* x, T* y, int64_t columns, const DropoutRow& row) {
  constexpr int64_t kPiece = 1024;
  // A vector more: the last one may reach beyond the piece.
  HWY_ALIGN uint16_t bits[kPiece + HWY_MAX_BYTES / sizeof(float)];
  std::memset(bits + kPiece, 0, HWY_MAX_BYTES / sizeof(float) * sizeof(uint16_t));
  const D d;
  const hn::RebindToSigned<D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto most_dropped = hn::Set(d32, static_cast<int32_t>(row.rule.dropped_below) - 1);
  const V scale = hn::Set(d, row.rule.scale);
  const uint64_t base = uint64_t{row.position} << 32;  // the upper word of a block's number
  for (int64_t first = 0; first < columns; first += kPiece) {
    const int64_t count = std::min(kPiece, columns - first);
    FillRandomBits(row.rule.key, row.sequence, base, row.column + first, count, bits);
    ForVectors(count, [=, &bits](int64_t i, auto access) HWY_ATTR {
      const auto random = hn::PromoteTo(d32, hn::LoadU(d16, bits + i));
      const auto stays = hn::RebindMask(d, hn::Gt(random, most_dropped));
      const V kept = hn::IfThenElseZero(stays, hn::Mul(access.Load(x + first + i), scale));
      access.Store(row.accumulate ? hn::Add(access.Load(y + first + i), kept) : kept,
                   y + first + i);
    });
  }
}

void DropoutOfRow(DType dtype, const void* x, void* y, int64_t columns, const DropoutRow& row) {
  ByType(dtype, [&](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    TypedRow(static_cast<const T*>(x), static_cast<T*>(y), columns, row);
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(DropoutOfRow);

Status Dropout(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const auto& dropout = std::get<DropoutAttrs>(attrs);
  const TensorView &x = operands[0], &places = operands[1], &y = operands[2];
  const int64_t columns = x.size[1];
  const int64_t first_row = dropout.row_shards > 1 ? dropout.shard * x.rows() : 0;
  const int64_t first_column = dropout.column_shards > 1 ? dropout.shard * columns : 0;
  const DropoutRule rule = RuleOf(dropout);
  const auto drop_row = HWY_DYNAMIC_DISPATCH(DropoutOfRow);
  ParallelFor(x.rows(), columns, context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto* place = places.as<const uint32_t>() + 2 * (first_row + i);
      drop_row(x.dtype, Address(x, i, 0), Address(y, i, 0), columns,
               {.rule = rule,
                .sequence = place[1],
                .position = place[0],
                .column = first_column,
                .accumulate = dropout.accumulate});
    }
  });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
