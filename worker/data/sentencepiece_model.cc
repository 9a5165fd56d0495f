// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece_model.h"

#include <sentencepiece_processor.h>

namespace terrace {

SentencePieceModel::SentencePieceModel() : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {}
SentencePieceModel::~SentencePieceModel() = default;

bool SentencePieceModel::Parse(std::string_view serialized, std::string* error) {
  const sentencepiece::util::Status status = processor_->LoadFromSerializedProto(serialized);
  if (!status.ok()) *error = status.ToString();
  return status.ok() && processor_->GetPieceSize() > 0;
}

int32_t SentencePieceModel::pieces() const { return processor_->GetPieceSize(); }

int32_t SentencePieceModel::end_of_sentence() const { return processor_->eos_id(); }

void SentencePieceModel::Encode(std::string_view text, std::vector<int32_t>* ids) const {
  std::vector<int> found;
  // Fails on an unparsed model only.
  if (processor_->Encode(text, &found).ok()) ids->insert(ids->end(), found.begin(), found.end());
}

std::string SentencePieceModel::Decode(const std::vector<int32_t>& ids) const {
  std::vector<int> known;
  for (const int32_t id : ids) {
    if (id >= 0 && id < pieces()) known.push_back(id);
  }
  std::string text;
  if (!processor_->Decode(known, &text).ok()) text.clear();
  return text;
}

}  // namespace terrace
