// Cast, add, add with residual and bias, scale, soft cap, fill and row gathering.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_index.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/softcap-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

void CastTile(const Tile& tile) {
  ByType(tile.dtype[0], [&](auto* x_type) HWY_ATTR {
    ByType(tile.dtype[1], [&](auto* y_type) HWY_ATTR {
      const auto* x = tile.as<std::remove_pointer_t<decltype(x_type)>>(0);
      auto* y = tile.as<std::remove_pointer_t<decltype(y_type)>>(1);
      ForVectors(tile.count,
                 [=](int64_t i, auto access) HWY_ATTR { access.Store(access.Load(x + i), y + i); });
    });
  });
}

void AddTile(const Tile& tile) {
  ByType(tile.dtype[0], [&](auto* x_type) HWY_ATTR {
    ByType(tile.dtype[1], [&](auto* y_type) HWY_ATTR {
      const auto* x = tile.as<std::remove_pointer_t<decltype(x_type)>>(0);
      auto* y = tile.as<std::remove_pointer_t<decltype(y_type)>>(1);
      ForVectors(tile.count, [=](int64_t i, auto access) HWY_ATTR {
        access.Store(hn::Add(access.Load(y + i), access.Load(x + i)), y + i);
      });
    });
  });
}

// y = x (+ residual) (+ bias) for one row; an absent operand's pointer is null.
template <typename X, typename R, typename Y>
void AddTypedRow(const Tile& row) {
  const X* x = row.as<X>(0);
  const R* residual = row.as<R>(1);
  const float* bias = row.as<float>(2);
  Y* y = row.as<Y>(3);
  ForVectors(row.count, [=](int64_t i, auto access) HWY_ATTR {
    V v = access.Load(x + i);
    if (residual != nullptr) v = hn::Add(v, access.Load(residual + i));
    if (bias != nullptr) v = hn::Add(v, access.Load(bias + i));
    access.Store(v, y + i);
  });
}

void AddResidualRow(const Tile& row) {
  ByType(row.dtype[0], [&](auto* x) HWY_ATTR {
    ByType(row.dtype[1], [&](auto* residual) HWY_ATTR {
      ByType(row.dtype[3], [&](auto* y) HWY_ATTR {
        AddTypedRow<std::remove_pointer_t<decltype(x)>, std::remove_pointer_t<decltype(residual)>,
                    std::remove_pointer_t<decltype(y)>>(row);
      });
    });
  });
}

void FillTile(const Tile& tile, float value) {
  ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
    auto* x = tile.as<std::remove_pointer_t<decltype(type)>>(0);
    const V v = hn::Set(D(), value);
    ForVectors(tile.count, [=](int64_t i, auto access) HWY_ATTR { access.Store(v, x + i); });
  });
}

void ScaleTile(const Tile& tile, float scale) {
  ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
    auto* x = tile.as<std::remove_pointer_t<decltype(type)>>(0);
    const V v = hn::Set(D(), scale);
    ForVectors(tile.count, [=](int64_t i, auto access)
                               HWY_ATTR { access.Store(hn::Mul(access.Load(x + i), v), x + i); });
  });
}

void SoftcapTile(const Tile& tile, float softcap) {
  ByType(tile.dtype[0], [&](auto* x_type) HWY_ATTR {
    ByType(tile.dtype[1], [&](auto* y_type) HWY_ATTR {
      const auto* x = tile.as<std::remove_pointer_t<decltype(x_type)>>(0);
      auto* y = tile.as<std::remove_pointer_t<decltype(y_type)>>(1);
      const Capped cap(softcap);
      ForVectors(tile.count, [&](int64_t i, auto access)
                                 HWY_ATTR { access.Store(cap(access.Load(x + i)), y + i); });
    });
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(CastTile);
HWY_EXPORT(AddTile);
HWY_EXPORT(AddResidualRow);
HWY_EXPORT(FillTile);
HWY_EXPORT(ScaleTile);
HWY_EXPORT(SoftcapTile);

Status Cast(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  ForEachTile(operands, context.threads, [](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(CastTile)(tile);
  });
  return {};
}

Status Add(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  ForEachTile(operands, context.threads, [](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(AddTile)(tile);
  });
  return {};
}

Status AddResidual(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  const TensorView& x = operands[0];
  const auto add_row = HWY_DYNAMIC_DISPATCH(AddResidualRow);
  ParallelFor(x.rows(), x.size[1], context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Tile row = {.count = x.size[1]};
      for (int k = 0; k < 4; ++k) {
        const bool bias = k == 2;
        row.data[k] = operands[k].absent() ? nullptr : Address(operands[k], bias ? 0 : i, 0);
        row.dtype[k] = operands[k].dtype;
      }
      add_row(row);
    }
  });
  return {};
}

Status Fill(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const float value = std::get<FillAttrs>(attrs).value;
  ForEachTile(operands, context.threads, [value](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(FillTile)(tile, value);
  });
  return {};
}

Status Scale(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const float scale = std::get<ScaleAttrs>(attrs).scale;
  ForEachTile(operands, context.threads, [scale](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(ScaleTile)(tile, scale);
  });
  return {};
}

Status Softcap(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const float softcap = std::get<ScaleAttrs>(attrs).scale;
  ForEachTile(operands, context.threads, [softcap](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(SoftcapTile)(tile, softcap);
  });
  return {};
}

Status GatherRows(const OpAttrs&, std::span<const TensorView> operands, const Context& context) {
  const TensorView& x = operands[0];
  const TensorView& index = operands[1];
  const TensorView& y = operands[2];
  Status status = CheckRowIndex("gather_rows: index", index, x.rows());
  if (!status.ok()) return status;
  const int64_t bytes = x.RowElements() * SizeOf(x.dtype);
  ParallelFor(y.rows(), x.RowElements(), context.threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(Address(y, row, 0), Address(x, index.as<const int32_t>()[row], 0), bytes);
    }
  });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
