// What turns a piece of text into ids: the "model" of a tokenizer.json.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/document.h"

namespace terrace::tokenizer_json {

// Thread-compatible.
class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of `piece`, which is not empty. In a byte-level tokenizer it holds raw bytes.
  virtual void Encode(std::string_view piece, std::vector<int32_t>* ids) = 0;
  virtual std::optional<int32_t> IdOfToken(const std::string& token) const = 0;
  // By id, as they stand in the document; "" where there is none.
  virtual const std::vector<std::string>& tokens() const = 0;
  virtual int64_t token_count() const = 0;
  // The token for what the vocabulary lacks.
  virtual std::optional<int32_t> unknown() const = 0;
};

// `byte_level`: pieces are bytes, and the vocabulary is written in the alphabet of bytes.
absl::StatusOr<std::unique_ptr<Model>> ReadBpeModel(const Json& model, bool byte_level,
                                                    Remarks* remarks);

absl::StatusOr<std::unique_ptr<Model>> ReadUnigramModel(const Json& model, Remarks* remarks);

}  // namespace terrace::tokenizer_json
