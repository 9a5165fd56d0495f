// Formats in blocks (block_codes.h): a block's largest magnitude, then its codes, while it is in
// the first-level cache; and back.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_codes.h"

#include "kernels/cpu/block_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/block_codes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/codes-inl.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// BlockCode and BlockNumber of block_codes.h, on vectors: whole numbers of so many bits.
template <int kBits>
struct Linear {
  static constexpr int kUpper = 32 - kBits;
  static constexpr float kMost = (1 << (kBits - 1)) - 1;

  HWY_INLINE VI Codes(V scaled) const {
    const V most = hn::Set(D(), kMost);
    const V inside = hn::Max(hn::Min(scaled, most), hn::Neg(most));
    return hn::And(hn::NearestInt(inside), hn::Set(DI(), (1 << kBits) - 1));
  }
  HWY_INLINE V Numbers(VI codes) const {
    return hn::ConvertTo(D(), hn::ShiftRight<kUpper>(hn::ShiftLeft<kUpper>(codes)));
  }
};
using Int8Linear = Linear<8>;
using Int4Linear = Linear<4>;
static_assert(Int8Linear::kMost == kInt8Most && Int4Linear::kMost == kInt4Most);

struct E4M3 {
  static constexpr int kDropped = 20;              // bits of the fraction of f32
  static constexpr uint32_t kRebias = 120u << 23;  // of the exponent
  static constexpr float kSmallestNormal = 0x1p-6f;
  static constexpr float kQuantum = 0x1p-9f;  // below it
  static constexpr int kLargest = 0x7e;

  HWY_INLINE VI Codes(V scaled) const {
    const VU bits = hn::BitCast(DU(), scaled), magnitude = Magnitude(scaled);
    const V absolute = hn::BitCast(D(), magnitude);
    const VU odd = hn::And(hn::ShiftRight<kDropped>(magnitude), hn::Set(DU(), 1));
    const VU up = hn::Add(hn::Sub(magnitude, hn::Set(DU(), kRebias)),
                          hn::Add(odd, hn::Set(DU(), (1u << (kDropped - 1)) - 1)));
    const VI normal =
        hn::Min(hn::BitCast(DI(), hn::ShiftRight<kDropped>(up)), hn::Set(DI(), kLargest));
    // The sum's last bit is worth one quantum: the addition itself rounds.
    const V quanta = hn::Set(D(), kSmallestNormal * (1 << kDropped));
    const VI small =
        hn::Sub(hn::BitCast(DI(), hn::Add(absolute, quanta)), hn::BitCast(DI(), quanta));
    const auto is_small = hn::RebindMask(DI(), hn::Lt(absolute, hn::Set(D(), kSmallestNormal)));
    const VI sign = hn::BitCast(DI(), hn::And(hn::ShiftRight<24>(bits), hn::Set(DU(), 0x80)));
    const VI codes = hn::Or(hn::IfThenElse(is_small, small, normal), sign);
    return hn::IfThenElse(hn::RebindMask(DI(), hn::IsNaN(scaled)), hn::Set(DI(), kFp8NaN), codes);
  }
  HWY_INLINE V Numbers(VI codes) const {
    const VI magnitude = hn::And(codes, hn::Set(DI(), 0x7f));
    const V small = hn::Mul(hn::ConvertTo(D(), magnitude), hn::Set(D(), kQuantum));
    const V normal = hn::BitCast(D(), hn::Add(hn::ShiftLeft<kDropped>(magnitude),
                                              hn::Set(DI(), static_cast<int32_t>(kRebias))));
    const auto is_small = hn::RebindMask(D(), hn::Lt(magnitude, hn::Set(DI(), 8)));
    const auto is_nan = hn::RebindMask(D(), hn::Eq(magnitude, hn::Set(DI(), kFp8NaN)));
    const V nan = hn::Set(D(), std::numeric_limits<float>::quiet_NaN());
    const V number = hn::IfThenElse(is_nan, nan, hn::IfThenElse(is_small, small, normal));
    const VI sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(DI(), 0x80)));
    return hn::Or(number, hn::BitCast(D(), sign));
  }
};

struct NF4 {
  HWY_INLINE VI Codes(V scaled) const {
    VI codes = hn::Zero(DI());
    for (const float bound : kNormalMap.bound) {
      const auto above = hn::RebindMask(DI(), hn::Gt(scaled, hn::Set(D(), bound)));
      codes = hn::Sub(codes, hn::VecFromMask(DI(), above));
    }
    return codes;
  }
  // In registers where vectors have 16 or 8 lanes.
  HWY_INLINE V Numbers(VI codes) const {
    const float* const numbers = kNormalMap.number;
    constexpr size_t kLanes = HWY_LANES(float);
    if constexpr (!HWY_HAVE_SCALABLE && kLanes == 16) {
      return hn::TableLookupLanes(hn::LoadU(D(), numbers), hn::IndicesFromVec(D(), codes));
    } else if constexpr (!HWY_HAVE_SCALABLE && kLanes == 8) {
      const auto place = hn::IndicesFromVec(D(), hn::And(codes, hn::Set(DI(), 7)));
      const V lower = hn::TableLookupLanes(hn::LoadU(D(), numbers), place);
      const V upper = hn::TableLookupLanes(hn::LoadU(D(), numbers + kLanes), place);
      const auto is_upper = hn::RebindMask(D(), hn::Gt(codes, hn::Set(DI(), 7)));
      return hn::IfThenElse(is_upper, upper, lower);
    } else {
      return hn::GatherIndex(D(), numbers, codes);
    }
  }
};

template <typename Codec, typename T>
HWY_INLINE void EncodeTyped(const BlockOfCodes& block) {
  const auto* x = static_cast<const T*>(block.elements);
  uint8_t* const codes = block.codes;
  VU most = hn::Zero(DU());
  ForVectors(block.count, [x, &most](int64_t i, auto access)
                              HWY_ATTR { most = hn::Max(most, Magnitude(access.Load(x + i))); });
  const BlockScale scale = ScaleOfBlock(LargestBits(most), block.format);
  *block.scale = scale.scale;
  const V inverse = hn::Set(D(), scale.inverse);
  ForVectors(block.count, [x, codes, inverse](int64_t i, auto access) HWY_ATTR {
    StoreCodes(Codec().Codes(hn::Mul(access.Load(x + i), inverse)), codes + i, access);
  });
}

// sums[i] = x[i] + residual[i].
template <typename T>
HWY_INLINE void AddResidual(const BlockOfCodes& block, float* sums) {
  const auto* x = static_cast<const T*>(block.elements);
  ByType(block.residual_dtype, [&block, x, sums](auto* type) HWY_ATTR {
    const auto* residual = static_cast<const decltype(type)>(block.residual);
    ForVectors(block.count, [x, residual, sums](int64_t i, auto access) HWY_ATTR {
      access.Store(hn::Add(access.Load(x + i), access.Load(residual + i)), sums + i);
    });
  });
}

// Of residual[i] and of what the code of sums[i] is not worth (KeptResidual in block_codes.h).
template <typename Codec>
HWY_INLINE void KeepResidual(const BlockOfCodes& block, const float* sums) {
  const bool finite = std::isfinite(*block.scale);
  const uint8_t* const codes = block.codes;
  const V scale = hn::Set(D(), finite ? *block.scale : 0);
  ByType(block.residual_dtype, [&block, finite, sums, codes, scale](auto* type) HWY_ATTR {
    auto* residual = static_cast<decltype(type)>(block.residual);
    ForVectors(
        block.count, [finite, residual, sums, codes, scale](int64_t i, auto access) HWY_ATTR {
          const V worth = hn::Mul(Codec().Numbers(LoadCodes(codes + i, access)), scale);
          const V lost = hn::Sub(access.Load(sums + i), worth), old = access.Load(residual + i);
          const V moved = hn::Mul(hn::Sub(lost, old), hn::Set(D(), kResidualNew));
          access.Store(finite ? hn::Add(old, moved) : hn::Zero(D()), residual + i);
        });
  });
}

template <typename Codec, typename T>
HWY_INLINE void EncodeKeeping(const BlockOfCodes& block) {
  if (block.residual == nullptr) return EncodeTyped<Codec, T>(block);
  HWY_ALIGN float sums[kInt8Block];
  AddResidual<T>(block, sums);
  BlockOfCodes of_sums = block;
  of_sums.elements = sums;
  EncodeTyped<Codec, float>(of_sums);
  KeepResidual<Codec>(block, sums);
}

template <typename Codec, typename T>
HWY_INLINE void DecodeTyped(const BlockOfCodes& block) {
  auto* y = static_cast<T*>(block.elements);
  const uint8_t* const codes = block.codes;
  const V scale = hn::Set(D(), *block.scale);
  ForVectors(block.count, [y, codes, scale](int64_t i, auto access) HWY_ATTR {
    access.Store(hn::Mul(Codec().Numbers(LoadCodes(codes + i, access)), scale), y + i);
  });
}

template <typename Codec, typename T>
HWY_INLINE void SumTyped(const PartsOfBlock& sum) {
  auto* y = static_cast<T*>(sum.first.elements);
  ForVectors(sum.first.count, [y, &sum](int64_t i, auto access) HWY_ATTR {
    V total = hn::Zero(D());
    for (int64_t p = 0; p < sum.parts; ++p) {
      const V numbers =
          Codec().Numbers(LoadCodes(sum.first.codes + p * sum.code_stride + i, access));
      total = hn::Add(total, hn::Mul(numbers, hn::Set(D(), sum.first.scale[p * sum.scale_stride])));
    }
    access.Store(total, y + i);
  });
}

// Two codes of 4 bits in a byte, the first in its lower bits: an even number of them.
using DB = hn::CappedTag<uint8_t, 16>;

HWY_INLINE void Pack(const uint8_t* codes, int64_t count, uint8_t* bytes) {
  const auto step = static_cast<int64_t>(hn::Lanes(DB()));
  const int64_t end = count / 2;
  int64_t i = 0;
  for (; i + step <= end; i += step) {
    hn::Vec<DB> first, second;
    hn::LoadInterleaved2(DB(), codes + 2 * i, first, second);
    hn::StoreU(hn::Or(first, hn::ShiftLeft<4>(second)), DB(), bytes + i);
  }
  for (; i < end; ++i) {
    bytes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

HWY_INLINE void Unpack(const uint8_t* bytes, int64_t count, uint8_t* codes) {
  const auto step = static_cast<int64_t>(hn::Lanes(DB()));
  const int64_t end = count / 2;
  const auto lower = hn::Set(DB(), 0xf);
  int64_t i = 0;
  for (; i + step <= end; i += step) {
    const auto both = hn::LoadU(DB(), bytes + i);
    hn::StoreInterleaved2(hn::And(both, lower), hn::ShiftRight<4>(both), DB(), codes + 2 * i);
  }
  for (; i < end; ++i) {
    codes[2 * i] = bytes[i] & 0xf;
    codes[2 * i + 1] = bytes[i] >> 4;
  }
}

// The block with codes of a byte each, in memory of the caller's.
HWY_INLINE BlockOfCodes Wide(const BlockOfCodes& block, uint8_t* codes) {
  BlockOfCodes wide = block;
  wide.codes = codes;
  return wide;
}

template <typename Codec, typename T>
HWY_INLINE void EncodePacked(const BlockOfCodes& block) {
  uint8_t codes[kInt8Block];
  EncodeKeeping<Codec, T>(Wide(block, codes));
  Pack(codes, block.count, block.codes);
}

template <typename Codec, typename T>
HWY_INLINE void DecodePacked(const BlockOfCodes& block) {
  uint8_t codes[kInt8Block];
  Unpack(block.codes, block.count, codes);
  DecodeTyped<Codec, T>(Wide(block, codes));
}

// Part after part, so that each is unpacked once.
template <typename Codec, typename T>
HWY_INLINE void SumPacked(const PartsOfBlock& sum) {
  uint8_t codes[kInt8Block];
  HWY_ALIGN float totals[kInt8Block] = {};
  for (int64_t p = 0; p < sum.parts; ++p) {
    Unpack(sum.first.codes + p * sum.code_stride, sum.first.count, codes);
    const V scale = hn::Set(D(), sum.first.scale[p * sum.scale_stride]);
    ForVectors(sum.first.count, [&totals, &codes, scale](int64_t i, auto access) HWY_ATTR {
      const V numbers = Codec().Numbers(LoadCodes(codes + i, access));
      access.Store(hn::Add(access.Load(totals + i), hn::Mul(numbers, scale)), totals + i);
    });
  }
  auto* y = static_cast<T*>(sum.first.elements);
  ForVectors(sum.first.count, [y, &totals](int64_t i, auto access)
                                  HWY_ATTR { access.Store(access.Load(totals + i), y + i); });
}

void EncodeBlock(const BlockOfCodes& block) {
  ByType(block.dtype, [&block](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    if (block.format == Format::kInt4Linear) return EncodePacked<Int4Linear, T>(block);
    if (block.format == Format::kNF4) return EncodePacked<NF4, T>(block);
    block.format == Format::kFP8 ? EncodeKeeping<E4M3, T>(block)
                                 : EncodeKeeping<Int8Linear, T>(block);
  });
}

void DecodeBlock(const BlockOfCodes& block) {
  ByType(block.dtype, [&block](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    if (block.format == Format::kInt4Linear) return DecodePacked<Int4Linear, T>(block);
    if (block.format == Format::kNF4) return DecodePacked<NF4, T>(block);
    block.format == Format::kFP8 ? DecodeTyped<E4M3, T>(block) : DecodeTyped<Int8Linear, T>(block);
  });
}

void SumBlock(const PartsOfBlock& sum) {
  ByType(sum.first.dtype, [&sum](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    if (sum.first.format == Format::kInt4Linear) return SumPacked<Int4Linear, T>(sum);
    if (sum.first.format == Format::kNF4) return SumPacked<NF4, T>(sum);
    sum.first.format == Format::kFP8 ? SumTyped<E4M3, T>(sum) : SumTyped<Int8Linear, T>(sum);
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {

HWY_EXPORT(EncodeBlock);
HWY_EXPORT(DecodeBlock);
HWY_EXPORT(SumBlock);

namespace {

// Calls run(block) for each block of the elements, without a residual. Where these are in runs of
// parts, codes come part by part.
template <typename Run>
void ForEachBlock(const BlockAttrs& attrs, const TensorView& elements, const TensorView& codes,
                  const TensorView& scales, int threads, const Run& run) {
  const int64_t count = elements.Elements();
  const int64_t blocks = (count + attrs.block - 1) / attrs.block;
  const int64_t packed = RowOf(attrs.format).packed;
  const auto range = [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * attrs.block;
      const int64_t at = PlaceInParts(b, blocks, attrs.runs, attrs.parts);
      run(BlockOfCodes{.elements = Address(elements, 0, first),
                       .dtype = elements.dtype,
                       .codes = codes.as<uint8_t>() + at * attrs.block / packed,
                       .scale = scales.as<float>() + at,
                       .count = std::min(attrs.block, count - first),
                       .format = attrs.format});
    }
  };
  ParallelFor(blocks, attrs.block, threads, range);
}

}  // namespace

Status EncodeBlocks(const OpAttrs& attrs, std::span<const TensorView> operands,
                    const Context& context) {
  const auto& blocks = std::get<BlockAttrs>(attrs);
  const TensorView residual = operands[3];
  const auto* const first = static_cast<const std::byte*>(operands[0].data);
  const int64_t size = SizeOf(operands[0].dtype);
  ForEachBlock(blocks, operands[0], operands[1], operands[2], context.threads,
               [&](BlockOfCodes block) {
                 if (!residual.absent()) {
                   const auto* const own = static_cast<const std::byte*>(block.elements);
                   block.residual = Address(residual, 0, (own - first) / size);
                   block.residual_dtype = residual.dtype;
                 }
                 HWY_DYNAMIC_DISPATCH(EncodeBlock)
                 (block);
               });
  return {};
}

Status DecodeBlocks(const OpAttrs& attrs, std::span<const TensorView> operands,
                    const Context& context) {
  ForEachBlock(std::get<BlockAttrs>(attrs), operands[2], operands[0], operands[1], context.threads,
               [](const BlockOfCodes& block) {
                 HWY_DYNAMIC_DISPATCH(DecodeBlock)
                 (block);
               });
  return {};
}

Status SumCodes(const OpAttrs& attrs, std::span<const TensorView> operands,
                const Context& context) {
  const TensorView &codes = operands[0], &scales = operands[1];
  ForEachBlock(std::get<BlockAttrs>(attrs), operands[2], codes, scales, context.threads,
               [&](const BlockOfCodes& first) {
                 HWY_DYNAMIC_DISPATCH(SumBlock)
                 ({.first = first,
                   .parts = codes.size[0],
                   .code_stride = codes.size[1],
                   .scale_stride = scales.size[1]});
               });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
