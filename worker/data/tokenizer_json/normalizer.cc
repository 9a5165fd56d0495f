// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/normalizer.h"

#include <utility>

#include "base/status_macros.h"
#include "worker/data/nfc.h"

namespace terrace::tokenizer_json {
namespace {

bool ApplyNfc(std::string_view text, std::string* out, bool*) {
  if (IsSurelyNfc(text)) return false;
  *out = NormalizeNfc(text);
  return true;
}

}  // namespace

absl::Status Normalizer::Add(const Json& json, Remarks* remarks) {
  const std::string type = TypeOf(json);
  if (type == "null") return absl::OkStatus();
  if (type == "NFC") {
    steps_.push_back(&ApplyNfc);
    return absl::OkStatus();
  }
  if (type != "Sequence") return Unsupported("normalizer", type, "null or NFC");
  RemarkUnknownKeys(json, "normalizer Sequence", {"type", "normalizers"}, remarks);
  ASSIGN_OR_RETURN(const Json* steps, ListMember(json, "normalizers", "normalizer Sequence"));
  for (const Json& step : *steps) RETURN_IF_ERROR(Add(step, remarks));
  return absl::OkStatus();
}

absl::StatusOr<Normalizer> Normalizer::Read(const Json& json, Remarks* remarks) {
  Normalizer normalizer;
  RETURN_IF_ERROR(normalizer.Add(json, remarks));
  return normalizer;
}

std::string_view Normalizer::Apply(std::string_view text, std::string* storage,
                                   bool* at_start) const {
  std::string next;
  for (const Step& step : steps_) {
    next.clear();
    if (!step(text, &next, at_start)) continue;
    storage->swap(next);
    text = *storage;
  }
  return text;
}

}  // namespace terrace::tokenizer_json
