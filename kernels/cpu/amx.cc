// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hwy/highway.h"

namespace terrace::kernels::cpu {
namespace {

constexpr unsigned kAvx512 =
    1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // leaf 7.0 ebx: F, DQ, BW, VL

bool CpuHasBF16() {
  constexpr unsigned kAvx512BF16 = 1u << 5;  // leaf 7.1 eax
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0 || (eax & kAvx512BF16) == 0)
    return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (ebx & kAvx512) == kAvx512;
}

bool CpuHasAmx() {
  constexpr unsigned kAmxBF16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7.0 edx
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!CpuHasBF16() || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxBF16) != 0 && (edx & kAmxTile) != 0;
}

// Linux saves tile data only for processes that asked for it.
bool RequestTileData() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool HasBF16Vectors() {
  // Highway has asked the operating system whether it saves the vectors.
  static const bool has = CpuHasBF16() && (hwy::SupportedTargets() & HWY_AVX3) != 0;
  return has;
}

bool AmxReady() {
  static const bool ready = CpuHasAmx() && RequestTileData();
  return ready;
}

}  // namespace terrace::kernels::cpu
