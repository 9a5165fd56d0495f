// The "decoder" of a tokenizer.json: from tokens back to text.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/document.h"

namespace terrace::tokenizer_json {

class Decoder {
 public:
  // INVALID_ARGUMENT names what cannot be done. `byte_level`: what the model works on; without a
  // decoder its tokens are bytes all the same.
  static absl::StatusOr<Decoder> Read(const Json& json, bool byte_level, Remarks* remarks);

  std::string Decode(std::vector<std::string> tokens) const;

  using Step = std::function<void(std::vector<std::string>* tokens)>;

 private:
  absl::Status Add(const Json& json, Remarks* remarks);
  absl::Status AddReplace(const Json& json, Remarks* remarks);
  absl::Status AddStrip(const Json& json, Remarks* remarks);
  absl::Status AddMetaspace(const Json& json, Remarks* remarks);

  std::vector<Step> steps_;
  std::string separator_;
};

}  // namespace terrace::tokenizer_json
