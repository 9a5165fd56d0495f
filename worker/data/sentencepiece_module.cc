// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece_module.h"

#include <sentencepiece_processor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using sentencepiece::SentencePieceProcessor;

const SentencePieceProcessor& Processor(const void* model) { return *static_cast<const SentencePieceProcessor*>(model); }

void* Parse(const char* bytes, size_t size, void (*report)(void*, const char*), void* out) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  const sentencepiece::util::Status status = processor->LoadFromSerializedProto(std::string_view(bytes, size));
  if (status.ok() && processor->GetPieceSize() > 0) return processor.release();
  report(out, status.ok() ? "it has no pieces" : "the library cannot parse it");
  return nullptr;
}

void Destroy(void* model) { delete static_cast<SentencePieceProcessor*>(model); }

int32_t Pieces(const void* model) { return Processor(model).GetPieceSize(); }

int32_t EndOfSentence(const void* model) { return Processor(model).eos_id(); }

void Encode(const void* model, const char* text, size_t size, void (*append)(void*, int32_t), void* out) {
  std::vector<int> ids;
  if (!Processor(model).Encode(std::string_view(text, size), &ids).ok()) return;  // fails on an unparsed model only
  for (const int id : ids) append(out, id);
}

void Decode(const void* model, const int32_t* ids, size_t count, void (*append)(void*, const char*, size_t), void* out) {
  std::string text;
  if (Processor(model).Decode(std::vector<int>(ids, ids + count), &text).ok()) append(out, text.data(), text.size());
}

}  // namespace

extern "C" {
extern const terrace::SentencePieceModule terrace_sentencepiece;
const terrace::SentencePieceModule terrace_sentencepiece = {
    .parse = Parse,
    .destroy = Destroy,
    .pieces = Pieces,
    .end_of_sentence = EndOfSentence,
    .encode = Encode,
    .decode = Decode,
};
}
