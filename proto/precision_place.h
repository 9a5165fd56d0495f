// What an entry of train.precision.layers is about: layers, modules of layers, or what stands
// beside the layers.
//
//   "0-1, 30"      the products of these layers, counted from 0
//   "first 2"      of the first two; "last 1": of the last
//   "mlp"          the products of every layer's MLP; "attention": of its projections
//   "last 2.mlp"   of these layers' alone
//   "lm_head", "embedding", "norms"
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace terrace {

enum class PrecisionModule : uint8_t { kLayer, kAttention, kMlp, kLmHead, kEmbedding, kNorms };

struct LayerSpan {
  int64_t first = 0;
  int64_t count = 0;
  bool from_end = false;  // the last `count` layers
};

struct PrecisionPlace {
  std::vector<LayerSpan> spans;  // empty: every layer
  PrecisionModule module = PrecisionModule::kLayer;

  bool HasLayer(int64_t layer, int64_t layers) const;
  // The fewest layers that a model has in which every span lies.
  int64_t LeastLayers() const;
  // Of two places that are about the same product the higher one counts.
  int Rank() const;
};

// Nothing when the text is no place.
std::optional<PrecisionPlace> ParsePrecisionPlace(std::string_view text);

}  // namespace terrace
