// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/numbers/finite.h"

#include <cstdint>

namespace terrace {
namespace {

// All bits of the exponent are set (IEEE 754). Without a branch, so that the compiler vectorises.
template <typename Bits>
bool NoneHas(std::span<const std::byte> elements, Bits exponent) {
  const auto* bits = reinterpret_cast<const Bits*>(elements.data());
  const size_t count = elements.size() / sizeof(Bits);
  unsigned found = 0;
  for (size_t i = 0; i < count; ++i) found |= (bits[i] & exponent) == exponent ? 1u : 0u;
  return found == 0;
}

}  // namespace

bool AllFinite(std::span<const std::byte> elements, kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return NoneHas<uint32_t>(elements, 0x7f800000);
    case kernels::DType::kBF16:
      return NoneHas<uint16_t>(elements, 0x7f80);
    case kernels::DType::kF16:
      return NoneHas<uint16_t>(elements, 0x7c00);
    default:
      return true;
  }
}

}  // namespace terrace
