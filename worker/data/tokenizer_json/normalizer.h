// The "normalizer" of a tokenizer.json: steps that rewrite the text before it is cut.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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

  // The normalized text: `text` itself or in `*storage`. `*start_bytes` is kept up: how much of its
  // beginning stands for the first character of the whole text; 0 when that is elsewhere or gone.
  std::string_view Apply(std::string_view text, std::string* storage, size_t* start_bytes) const;

  std::string Applied(std::string_view text) const;

  // Returns false, and leaves `out` alone, when `text` stays as it is. `out` is empty.
  using Step = std::function<bool(std::string_view text, std::string* out, size_t* start_bytes)>;

 private:
  absl::Status Add(const Json& json, Remarks* remarks);
  absl::Status AddReplace(const Json& json, Remarks* remarks);
  absl::Status AddStrip(const Json& json, Remarks* remarks);

  std::vector<Step> steps_;
};

}  // namespace terrace::tokenizer_json
