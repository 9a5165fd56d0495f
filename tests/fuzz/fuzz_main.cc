// The entry of libFuzzer: TERRACE_FUZZ_TARGET names the target (tests/fuzz/run.sh sets it).
//
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/target.h"

namespace {

const terrace::FuzzTarget* target = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("TERRACE_FUZZ_TARGET");
  target = terrace::FindFuzzTarget(name == nullptr ? "" : name);
  if (target != nullptr) return 0;
  std::fprintf(stderr, "TERRACE_FUZZ_TARGET must be one of");
  for (const terrace::FuzzTarget& known : terrace::kFuzzTargets)
    std::fprintf(stderr, " %s", known.name.data());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  target->run({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
