// SPDX-License-Identifier: Apache-2.0
#include "worker/data/document_rows.h"

#include <numeric>

namespace terrace {

void DocumentRows::Close() {
  if (!packs_) return;
  std::vector<int64_t> tokens(samples_.size());
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = samples_.At(0, static_cast<int64_t>(i)).count;
  packed_ = PackBestFit(tokens, lengths().back());
}

std::vector<int64_t> DocumentRows::sizes() const {
  return packs_ ? std::vector<int64_t>{packed_.rows()} : samples_.sizes();
}

int64_t DocumentRows::size() const {
  const std::vector<int64_t> rows = sizes();
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

}  // namespace terrace
