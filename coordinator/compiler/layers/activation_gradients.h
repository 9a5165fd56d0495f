// Which memory holds the gradient of which activation during one backward pass.
//
// The gradient of a value is a value of the same shape, kept for the whole value: the gradient of a
// column slice (q inside qkv) is the same columns of it. Slices are written one after the other, in
// any order, each once.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "coordinator/compiler/graph/builder.h"

namespace terrace::compiler {

// Thread-compatible.
class ActivationGradients {
 public:
  explicit ActivationGradients(Builder* builder) : builder_(*builder) {}

  // True when some of the slice's gradient has been written.
  bool Has(const Slice& slice) const;
  // REQUIRES: all of the slice's gradient has been written.
  Slice Of(const Slice& slice) const;
  // Where to write the gradient of `slice`; it counts as written from now on. REQUIRES:
  // !Has(slice).
  Slice New(const Slice& slice);
  // The gradient of `slice` lies in `gradient`, memory that holds it already or is about to be
  // overwritten with it. REQUIRES: !Has(slice), and both are the same columns of values of one
  // shape.
  void Share(const Slice& slice, const Slice& gradient);

  // The same of memory that holds the gradient of another activation as well and stays that one's:
  // rules may read the gradient of `slice` there, but write to memory of their own.
  void Borrow(const Slice& slice, const Slice& gradient);
  bool IsBorrowed(const Slice& slice) const;

  // From now on the gradient of `slice` is in `gradient`, a value that holds it. REQUIRES: both are
  // whole, and Has(slice).
  void Replace(const Slice& slice, const Slice& gradient);

  bool IsWhole(const Slice& slice) const;

 private:
  struct Columns {
    int64_t begin = 0;
    int64_t count = 0;
  };
  struct Gradient {
    int value = kNone;
    bool borrowed = false;
    std::vector<Columns> written;  // disjoint
  };
  Columns ColumnsOf(const Slice& slice) const;
  int64_t WrittenColumns(const Slice& slice) const;

  Builder& builder_;
  std::map<int, Gradient> gradients_;  // by differentiated value
};

}  // namespace terrace::compiler
