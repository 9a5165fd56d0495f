// Which memory holds the gradients of parameters: f32, one value a weight and scope.
//
// A scope is what is reduced at once: the whole step, or with ZeRO-2 and 3 one pass of a
// micro-batch over a model chunk, whose gradients are reduced and freed as soon as they are there.
// The first contribution of a scope writes, later ones (micro-batches, a tied embedding) update.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "coordinator/compiler/graph/builder.h"
#include "coordinator/compiler/state/parameters.h"

namespace terrace::compiler {

class ParameterGradients {
 public:
  // With `by_unit` the gradients of a unit lie in one value in the unit's order (ZeRO); otherwise
  // each is a value of its own. `scope` begins their names: "mb0." where a pass has its own.
  // Borrows the parameters.
  ParameterGradients(const Parameters& parameters, bool by_unit, std::string scope)
      : parameters_(parameters), by_unit_(by_unit), scope_(std::move(scope)) {}

  const Parameters& parameters() const { return parameters_; }
  // The gradient of a whole weight that is trained (or of its gathered copy), or of the part of a
  // bias that goes with a tile; *first: this contribution is the first of its scope.
  Slice Of(Slice weight, Builder* builder, bool* first);

  const std::map<int, int>& by_parameter() const { return values_; }  // parameter -> value
  const std::map<int, int>& by_unit() const { return units_; }        // unit -> value

 private:
  int UnitValue(int unit, Builder* builder);

  const Parameters& parameters_;
  const bool by_unit_;
  const std::string scope_;
  std::map<int, int> values_;
  std::map<int, int> units_;
  std::set<std::pair<int, int64_t>> written_;  // parameter, element
};

}  // namespace terrace::compiler
