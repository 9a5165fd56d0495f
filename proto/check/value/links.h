// Which gradient belongs to which weights, as far as the program itself says: activations were
// multiplied with weights, and gradients of weights are products of activations. Internal to
// proto/check.
//
// A product G = x^T dy is the gradient of the W with y = x W, and dx = dy W^T is made from the same
// dy. So the rows of G come from what was multiplied with the rows of W, its columns from what was
// multiplied with the columns of W. Of both it is asked only where such a product was seen: x may
// have been recomputed, or dx be of no use.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace terrace::check {

// Content of a buffer: what was written to it before a write with this number.
struct Content {
  uint32_t buffer = 0;
  int64_t offset = 0;
  int version = 0;
  auto operator<=>(const Content&) const = default;
};

// From this element of a buffer of the state on, or of the region of its shards.
struct StatePlace {
  int buffer = -1;
  int64_t element = 0;
  auto operator<=>(const StatePlace&) const = default;
};

class Links {
 public:
  // How weights and what they met have one dimension in common.
  enum Side : uint8_t { kRows, kColumns, kLookup, kPositions };

  void AddUse(const Content& content, Side side, const StatePlace& weights);
  // The first element of a state's buffer that was read as a row of positions; -1: none was.
  int64_t FirstPosition(int buffer) const;

  // A gradient: a sum of products, all of the same weights.
  struct Product {
    int instruction = 0;
    std::vector<std::pair<Side, Content>> of;
    StatePlace weights;  // where the instruction itself names them
  };
  int AddGradient(Product product);
  void AddProduct(int gradient, Product product);
  // Both are parts of one sum; returns its number.
  int Merge(int a, int b);

  // The instruction that made a product of `gradient` of which it is known that it does not belong
  // to these weights; -1: none did.
  int FindStranger(int gradient, const StatePlace& weights);

  // How many AddGradient has made: a number from there on is of a later one.
  int gradients() const { return static_cast<int>(parent_.size()); }
  // Whether both are parts of one sum.
  bool AreOne(int a, int b) { return Root(a) == Root(b); }

 private:
  int Root(int gradient);
  bool Fits(const Product& product, const StatePlace& weights) const;

  struct Use {
    Content content;
    Side side = kRows;
    bool operator==(const Use&) const = default;
  };
  struct UseHash {
    size_t operator()(const Use& use) const;
  };
  std::unordered_map<Use, std::vector<StatePlace>, UseHash> uses_;  // mostly one place each
  std::vector<int> parent_;
  std::vector<std::vector<Product>> products_;
  std::map<std::pair<int, StatePlace>, int> known_;  // answers of FindStranger
};

}  // namespace terrace::check
