// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/activation_gradients.h"

#include <algorithm>
#include <string>

#include "absl/base/macros.h"

namespace terrace::compiler {

// All slices that are differentiated span the rows of their value, so columns are what tells them
// apart; a whole value may be seen in any shape.
ActivationGradients::Columns ActivationGradients::ColumnsOf(const Slice& slice) const {
  const Value& value = builder_.graph().values[slice.value];
  if (IsWhole(slice)) return {.begin = 0, .count = value.elements() / value.shape[0]};
  return {.begin = slice.offset, .count = slice.shape.RowElements()};
}

int64_t ActivationGradients::WrittenColumns(const Slice& slice) const {
  const auto it = gradients_.find(slice.value);
  if (it == gradients_.end()) return 0;
  const Columns columns = ColumnsOf(slice);
  int64_t written = 0;
  for (const Columns& other : it->second.written) {
    const int64_t begin = std::max(columns.begin, other.begin);
    const int64_t end = std::min(columns.begin + columns.count, other.begin + other.count);
    written += std::max<int64_t>(0, end - begin);
  }
  return written;
}

bool ActivationGradients::Has(const Slice& slice) const { return WrittenColumns(slice) > 0; }

Slice ActivationGradients::Of(const Slice& slice) const {
  ABSL_HARDENING_ASSERT(WrittenColumns(slice) == ColumnsOf(slice).count);
  Slice gradient = slice;
  gradient.value = gradients_.at(slice.value).value;
  return gradient;
}

Slice ActivationGradients::New(const Slice& slice) {
  ABSL_HARDENING_ASSERT(!Has(slice));
  Gradient& gradient = gradients_[slice.value];
  if (gradient.value == kNone) {
    const Value like = builder_.graph().values[slice.value];
    gradient.value = builder_.NewGradientOf(like).value;
  }
  gradient.written.push_back(ColumnsOf(slice));
  return Of(slice);
}

void ActivationGradients::Share(const Slice& slice, const Slice& gradient) {
  ABSL_HARDENING_ASSERT(!Has(slice) && slice.offset == gradient.offset);
  Gradient& entry = gradients_[slice.value];
  ABSL_HARDENING_ASSERT(entry.value == kNone || entry.value == gradient.value);
  entry.value = gradient.value;
  entry.written.push_back(ColumnsOf(slice));
}

void ActivationGradients::Borrow(const Slice& slice, const Slice& gradient) {
  Share(slice, gradient);
  gradients_[slice.value].borrowed = true;
}

bool ActivationGradients::IsBorrowed(const Slice& slice) const {
  const auto it = gradients_.find(slice.value);
  return it != gradients_.end() && it->second.borrowed;
}

void ActivationGradients::Replace(const Slice& slice, const Slice& gradient) {
  ABSL_HARDENING_ASSERT(Has(slice) && IsWhole(slice) && IsWhole(gradient));
  gradients_.at(slice.value).value = gradient.value;
  gradients_.at(slice.value).borrowed = false;
}

bool ActivationGradients::IsWhole(const Slice& slice) const {
  return slice.shape.Elements() == builder_.graph().values[slice.value].elements();
}

}  // namespace terrace::compiler
