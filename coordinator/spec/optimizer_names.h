// What other programs call their optimizers (TrainingArguments.optim of transformers, DeepSpeed,
// bitsandbytes, torch), and what to write here.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// What train.optimizer.name may be instead of `name`, which it may not, with the keys that make it
// the same; "" for a name that nobody is known to use.
std::string OptimizerInstead(std::string_view name);

}  // namespace terrace
