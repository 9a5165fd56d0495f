// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/links.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace terrace::check {

void Links::AddUse(const Content& content, Side side, const StatePlace& weights) {
  std::vector<StatePlace>& places = uses_[{content, side}];
  if (std::find(places.begin(), places.end(), weights) == places.end()) places.push_back(weights);
}

int64_t Links::FirstPosition(int buffer) const {
  int64_t first = -1;
  for (const auto& [use, places] : uses_) {
    for (const StatePlace& place : places) {
      if (use.side != kPositions || place.buffer != buffer) continue;
      first = first < 0 ? place.element : std::min(first, place.element);
    }
  }
  return first;
}

size_t Links::UseHash::operator()(const Use& use) const {
  uint64_t hash = use.side;
  for (int64_t part :
       {int64_t{use.content.buffer}, use.content.offset, int64_t{use.content.version}}) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
    hash ^= hash >> 32;
  }
  return hash;
}

int Links::AddGradient(Product product) {
  parent_.push_back(static_cast<int>(parent_.size()));
  products_.emplace_back();
  products_.back().push_back(std::move(product));
  return parent_.back();
}

void Links::AddProduct(int gradient, Product product) {
  products_[Root(gradient)].push_back(std::move(product));
}

int Links::Root(int gradient) {
  while (parent_[gradient] != gradient) gradient = parent_[gradient] = parent_[parent_[gradient]];
  return gradient;
}

int Links::Merge(int a, int b) {
  a = Root(a);
  b = Root(b);
  if (a == b) return a;
  if (products_[a].size() < products_[b].size()) std::swap(a, b);
  parent_[b] = a;
  std::move(products_[b].begin(), products_[b].end(), std::back_inserter(products_[a]));
  products_[b].clear();
  return a;
}

bool Links::Fits(const Product& product, const StatePlace& weights) const {
  if (product.weights.buffer >= 0 && product.weights != weights) return false;
  return std::all_of(product.of.begin(), product.of.end(), [&](const auto& factor) {
    const auto uses = uses_.find({factor.second, factor.first});
    return uses == uses_.end() ||
           std::find(uses->second.begin(), uses->second.end(), weights) != uses->second.end();
  });
}

int Links::FindStranger(int gradient, const StatePlace& weights) {
  const int root = Root(gradient);
  const auto [known, is_new] = known_.emplace(std::pair(root, weights), -1);
  if (!is_new) return known->second;
  for (const Product& product : products_[root]) {
    if (!Fits(product, weights)) return known->second = product.instruction;
  }
  return -1;
}

}  // namespace terrace::check
