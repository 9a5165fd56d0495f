// The "normalizer" of a tokenizer.json: steps that rewrite the text before it is cut.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/document.h"

namespace terrace::tokenizer_json {

class Normalizer {
 public:
  // INVALID_ARGUMENT names what cannot be done exactly. `json` null: text stays as it is.
  static absl::StatusOr<Normalizer> Read(const Json& json, Remarks* remarks);

  // The normalized text: `text` itself or in `*storage`. `*at_start`, whether it begins where the
  // whole text does, becomes false when the beginning is taken away.
  std::string_view Apply(std::string_view text, std::string* storage, bool* at_start) const;

  // Returns false, and leaves `out` alone, when `text` stays as it is.
  using Step = std::function<bool(std::string_view text, std::string* out, bool* at_start)>;

 private:
  absl::Status Add(const Json& json, Remarks* remarks);

  std::vector<Step> steps_;
};

}  // namespace terrace::tokenizer_json
