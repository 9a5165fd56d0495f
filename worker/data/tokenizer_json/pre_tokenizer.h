// The "pre_tokenizer" of a tokenizer.json: cuts text into the pieces within which the model works.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/document.h"
#include "worker/data/tokenizer_json/splitter.h"

namespace terrace::tokenizer_json {

// A part of the text on its way to the model.
struct Piece {
  std::string_view text;
  size_t start_bytes = 0;  // of its beginning stand for the first character of the whole text
};
using PieceVisitor = std::function<void(Piece)>;

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  // Pieces that are visited live until `visit` returns.
  virtual void Apply(Piece piece, const PieceVisitor& visit) const = 0;
};

class PreTokenizer {
 public:
  // INVALID_ARGUMENT names what cannot be done exactly. `json` null: the text is one piece.
  static absl::StatusOr<PreTokenizer> Read(const Json& json, Remarks* remarks);

  // Whether the model works on bytes.
  bool byte_level() const { return byte_level_; }
  // Visits no empty piece.
  void Split(Piece piece, const PieceVisitor& visit) const { Run(0, piece, visit); }

 private:
  absl::Status Add(const Json& json, Remarks* remarks);
  absl::Status AddStep(const std::string& type, const Json& json, Remarks* remarks);
  absl::Status AddCharacters(bool (*holds)(uint32_t code), std::string_view behavior);
  absl::Status AddByteLevel(const Json& json, Remarks* remarks);
  absl::Status AddSplit(const Json& json, Remarks* remarks);
  absl::Status AddMetaspace(const Json& json, Remarks* remarks);
  absl::Status AddSplitter(Splitter splitter, std::string_view behavior, bool invert = false);
  absl::Status AddPattern(std::string_view pattern, std::string_view behavior, bool invert = false);
  void Run(size_t level, Piece piece, const PieceVisitor& visit) const;

  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
  bool byte_level_ = false;
};

}  // namespace terrace::tokenizer_json
