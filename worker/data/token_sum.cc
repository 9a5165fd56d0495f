// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_sum.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "worker/data/token_segment.h"

namespace terrace {
namespace {

constexpr int64_t kPartTokens = 1 << 16;
constexpr int64_t kParts = 256;

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

TokenSum SumOf(const TokenSequence& tokens) {
  const int64_t size = tokens.size();
  const std::unique_ptr<XXH3_state_t, FreeHash> state(XXH3_createState());
  XXH3_64bits_reset(state.get());
  std::vector<int32_t> ids(std::min(size, kPartTokens));
  const auto add = [&](int64_t begin, int64_t count) {
    const std::span<int32_t> part(ids.data(), count);
    tokens.Read(begin, part);
    XXH3_64bits_update(state.get(), part.data(), part.size_bytes());
  };
  if (size <= kParts * kPartTokens) {
    for (int64_t begin = 0; begin < size; begin += kPartTokens) {
      add(begin, std::min(kPartTokens, size - begin));
    }
  } else {
    // The last part ends where the tokens do. In double: the product may pass 64 bits.
    const double stride = static_cast<double>(size - kPartTokens) / (kParts - 1);
    for (int64_t i = 0; i < kParts; ++i) {
      add(std::min<int64_t>(static_cast<int64_t>(stride * i), size - kPartTokens), kPartTokens);
    }
  }
  return {size, size == 0 ? 0 : XXH3_64bits_digest(state.get())};
}

}  // namespace terrace
