// SPDX-License-Identifier: Apache-2.0
#include "worker/data/bpe_tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/bpe_merges.h"
#include "worker/data/nfc.h"
#include "worker/data/pre_tokenizer.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFileLimitBytes = 256 << 20;
constexpr int64_t kVocabularyLimit = 1 << 24;
constexpr int kMaxDepth = 32;  // reading nested steps recurses
constexpr size_t kCachedPieces = 1 << 18;
constexpr size_t kCachedPieceBytes = 48;
// The end-of-text token is the first of these among added_tokens.
constexpr const char* kEndOfText[] = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                      "<eos>",         "<|eos|>",         "[EOS]"};

// ---- the alphabet: every byte as a printable character (GPT-2's bytes_to_unicode)
// --------------------------------------

std::array<uint32_t, 256> CodesOfBytes() {
  std::array<uint32_t, 256> codes;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    codes[byte] = printable ? byte : next++;
  }
  return codes;
}

// The bytes that a token of the vocabulary stands for; nullopt when it is not written in the
// alphabet.
std::optional<std::string> BytesOfToken(std::string_view token) {
  static const absl::flat_hash_map<uint32_t, char> bytes = [] {
    absl::flat_hash_map<uint32_t, char> map;
    const std::array<uint32_t, 256> codes = CodesOfBytes();
    for (int byte = 0; byte < 256; ++byte) map[codes[byte]] = static_cast<char>(byte);
    return map;
  }();
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {  // all codes of the alphabet take one or two bytes
    uint32_t code = static_cast<unsigned char>(token[i]);
    if (code >= 0xc0 && code < 0xe0 && i + 1 < token.size()) {
      code = (code & 0x1f) << 6 | (token[++i] & 0x3f);
    }
    const auto byte = bytes.find(code);
    if (byte == bytes.end()) return std::nullopt;
    out.push_back(byte->second);
  }
  return out;
}

// ---- what a tokenizer.json says
// ---------------------------------------------------------------------------------------

struct Definition {
  std::vector<std::string> texts;  // by id: bytes of the token; "" where there is none
  absl::flat_hash_map<std::string, int32_t>
      whole_pieces;  // filled when merges are ignored for known pieces
  std::unique_ptr<BpeMerges> merges;
  std::vector<Splitter> splitters;
  bool nfc = false;
  std::optional<int32_t> end_of_text;
};

absl::Status Unsupported(std::string_view key, const std::string& value, std::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(key), " is ", value, ", must be ", Absl(rule)));
}

std::string TypeOf(const Json& object) {
  if (object.is_null()) return "null";
  return object.is_object() && object.contains("type") && object["type"].is_string()
             ? object["type"].get<std::string>()
             : std::string("without a type");
}

// The value of an optional key; null when it is missing.
const Json& Member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool IsTrue(const Json& value) { return value.is_boolean() && value.get<bool>(); }

absl::Status CheckModelOptions(const Json& model) {
  if (TypeOf(model) != "BPE") return Unsupported("model.type", TypeOf(model), "BPE");
  if (IsTrue(Member(model, "byte_fallback"))) {
    return Unsupported("model.byte_fallback", "true",
                       "false; use the tokenizer.model (SentencePiece) beside this file");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = Member(model, key);
    if (value.is_string() && !value.get_ref<const std::string&>().empty()) {
      return Unsupported(absl::StrCat("model.", key), value.get<std::string>(),
                         "empty (byte-level BPE)");
    }
  }
  const Json& dropout = Member(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0) {
    return Unsupported("model.dropout", dropout.dump(), "null: ids must not depend on chance");
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> IdOf(const Json& value, std::string_view what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= uint64_t{kVocabularyLimit}) {
    return absl::InvalidArgumentError(
        absl::StrCat("the id of ", Absl(what), " must be a number below ", kVocabularyLimit));
  }
  return value.get<int32_t>();
}

void Place(int32_t id, std::string text, Definition* definition) {
  if (definition->texts.size() <= static_cast<size_t>(id)) definition->texts.resize(id + 1);
  definition->texts[id] = std::move(text);
}

absl::Status ReadVocabulary(const Json& model, Definition* definition) {
  const Json& vocabulary = Member(model, "vocab");
  if (!vocabulary.is_object()) {
    return absl::InvalidArgumentError("model.vocab must be an object of token: id");
  }
  const bool ignore_merges = IsTrue(Member(model, "ignore_merges"));
  std::array<int32_t, 256> byte_ids;
  byte_ids.fill(-1);
  for (const auto& [token, value] : vocabulary.items()) {
    ASSIGN_OR_RETURN(const int32_t id, IdOf(value, token));
    const std::optional<std::string> bytes = BytesOfToken(token);
    if (bytes.has_value() && bytes->size() == 1) {
      byte_ids[static_cast<unsigned char>(bytes->front())] = id;
    }
    if (bytes.has_value() && ignore_merges) definition->whole_pieces[*bytes] = id;
    Place(id, bytes.value_or(token), definition);
  }
  const auto missing = std::find(byte_ids.begin(), byte_ids.end(), -1);
  if (missing != byte_ids.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.vocab has no token for the byte ", missing - byte_ids.begin(),
                     "; a byte-level vocabulary has all 256 (train it with "
                     "initial_alphabet=ByteLevel.alphabet())"));
  }
  definition->merges = std::make_unique<BpeMerges>(byte_ids);
  return absl::OkStatus();
}

// Both forms: "left right" and ["left", "right"].
absl::StatusOr<std::pair<std::string, std::string>> ReadPair(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const std::string& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos) return std::pair(text.substr(0, space), text.substr(space + 1));
  }
  return absl::InvalidArgumentError(
      "each of model.merges must be \"left right\" or [\"left\", \"right\"]");
}

absl::Status ReadMerges(const Json& model, Definition* definition) {
  const Json& merges = Member(model, "merges");
  if (!merges.is_array()) return absl::InvalidArgumentError("model.merges must be a list");
  const Json& vocabulary = model["vocab"];
  for (const Json& merge : merges) {
    ASSIGN_OR_RETURN(const auto pair, ReadPair(merge));
    int32_t ids[3];
    const std::string tokens[3] = {pair.first, pair.second, pair.first + pair.second};
    for (int i = 0; i < 3; ++i) {
      const auto found = vocabulary.find(tokens[i]);
      if (found == vocabulary.end()) {
        return absl::InvalidArgumentError(absl::StrCat("model.merges uses the token ", tokens[i],
                                                       ", which is not in model.vocab"));
      }
      ids[i] = found->get<int32_t>();
    }
    definition->merges->Add(ids[0], ids[1], ids[2]);
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& file, Definition* definition) {
  absl::flat_hash_map<std::string, int32_t> added;
  for (const Json& token : Member(file, "added_tokens")) {
    const Json& content = Member(token, "content");
    if (!content.is_string()) {
      return absl::InvalidArgumentError("each of added_tokens must have a \"content\"");
    }
    ASSIGN_OR_RETURN(const int32_t id, IdOf(Member(token, "id"), content.get<std::string>()));
    Place(id, content.get<std::string>(), definition);
    added[content.get<std::string>()] = id;
  }
  for (const char* name : kEndOfText) {
    const auto found = added.find(name);
    if (found == added.end()) continue;
    definition->end_of_text = found->second;
    break;
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizer(const Json& normalizer, Definition* definition) {
  const std::string type = TypeOf(normalizer);
  if (type == "NFC") definition->nfc = true;
  if (type == "null" || type == "NFC") return absl::OkStatus();
  if (type != "Sequence") return Unsupported("normalizer", type, "null or NFC");
  for (const Json& step : Member(normalizer, "normalizers")) {
    RETURN_IF_ERROR(ReadNormalizer(step, definition));
  }
  return absl::OkStatus();
}

absl::Status AddSplitter(std::string_view pattern, Definition* definition) {
  ASSIGN_OR_RETURN(Splitter splitter, Splitter::Create(pattern));
  definition->splitters.push_back(std::move(splitter));
  return absl::OkStatus();
}

absl::Status ReadSplit(const Json& step, Definition* definition) {
  const Json& pattern = Member(Member(step, "pattern"), "Regex");
  const Json& behavior = Member(step, "behavior");
  if (!pattern.is_string()) {
    return Unsupported("pre_tokenizer Split.pattern", "no Regex", "a Regex");
  }
  if (behavior != "Isolated" || IsTrue(Member(step, "invert"))) {
    return Unsupported("pre_tokenizer Split.behavior", "other than Isolated, or inverted",
                       "Isolated");
  }
  return AddSplitter(pattern.get<std::string>(), definition);
}

absl::Status ReadPreTokenizer(const Json& step, bool* byte_level, Definition* definition) {
  const std::string type = TypeOf(step);
  if (type == "Sequence") {
    for (const Json& inner : Member(step, "pretokenizers")) {
      RETURN_IF_ERROR(ReadPreTokenizer(inner, byte_level, definition));
    }
    return absl::OkStatus();
  }
  if (*byte_level) {
    return Unsupported("pre_tokenizer", absl::StrCat(type, " after ByteLevel"), "in front of it");
  }
  if (type == "Split") return ReadSplit(step, definition);
  if (type == "Digits") {
    return AddSplitter(IsTrue(Member(step, "individual_digits")) ? R"(\p{N})" : R"(\p{N}+)",
                       definition);
  }
  if (type != "ByteLevel") {
    return Unsupported("pre_tokenizer", type, "ByteLevel, or Split and Digits before ByteLevel");
  }
  *byte_level = true;
  if (IsTrue(Member(step, "add_prefix_space"))) {
    return Unsupported("pre_tokenizer ByteLevel.add_prefix_space", "true", "false");
  }
  const Json& use_regex = Member(step, "use_regex");
  return use_regex.is_null() || IsTrue(use_regex) ? AddSplitter(kGpt2Pattern, definition)
                                                  : absl::OkStatus();
}

absl::StatusOr<Definition> ReadDefinition(const Json& file) {
  Definition definition;
  if (!file.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  const Json& model = Member(file, "model");
  RETURN_IF_ERROR(CheckModelOptions(model));
  RETURN_IF_ERROR(ReadVocabulary(model, &definition));
  RETURN_IF_ERROR(ReadMerges(model, &definition));
  RETURN_IF_ERROR(ReadAddedTokens(file, &definition));
  RETURN_IF_ERROR(ReadNormalizer(Member(file, "normalizer"), &definition));
  bool byte_level = false;
  RETURN_IF_ERROR(ReadPreTokenizer(Member(file, "pre_tokenizer"), &byte_level, &definition));
  if (!byte_level) return Unsupported("pre_tokenizer", "without ByteLevel", "byte-level");
  return definition;
}

// ---- the tokenizer
// -------------------------------------------------------------------------------------------------

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Definition definition, std::string fingerprint)
      : texts_(std::move(definition.texts)),
        whole_pieces_(std::move(definition.whole_pieces)),
        merges_(std::move(definition.merges)),
        pre_tokenizer_(std::move(definition.splitters)),
        nfc_(definition.nfc),
        end_of_text_(definition.end_of_text),
        fingerprint_(std::move(fingerprint)) {}

  int64_t vocabulary() const override { return texts_.size(); }
  std::optional<int32_t> end_of_text() const override { return end_of_text_; }
  std::string fingerprint() const override { return fingerprint_; }

  void Encode(std::string_view text, std::vector<int32_t>* ids) const override {
    std::string normalized;
    if (nfc_ && !IsSurelyNfc(text)) text = normalized = NormalizeNfc(text);
    absl::MutexLock lock(&mutex_);
    pre_tokenizer_.Split(text, [&](std::string_view piece)
                                   ABSL_NO_THREAD_SAFETY_ANALYSIS { EncodePiece(piece, ids); });
  }

  std::string Decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocabulary()) text += texts_[id];
    }
    return text;
  }

 private:
  struct CachedIds {
    uint32_t begin;
    uint32_t count;
  };

  void EncodePiece(std::string_view piece, std::vector<int32_t>* ids) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (const auto cached = cache_.find(Absl(piece)); cached != cache_.end()) {
      const auto begin = cached_ids_.begin() + cached->second.begin;
      ids->insert(ids->end(), begin, begin + cached->second.count);
      return;
    }
    const size_t before = ids->size();
    const auto whole = whole_pieces_.find(Absl(piece));
    if (whole != whole_pieces_.end()) {
      ids->push_back(whole->second);
    } else {
      merges_->Encode(piece, &scratch_, ids);
    }
    if (piece.size() > kCachedPieceBytes || cache_.size() >= kCachedPieces) return;
    cache_[std::string(piece)] = {static_cast<uint32_t>(cached_ids_.size()),
                                  static_cast<uint32_t>(ids->size() - before)};
    cached_ids_.insert(cached_ids_.end(), ids->begin() + before, ids->end());
  }

  const std::vector<std::string> texts_;  // by id
  const absl::flat_hash_map<std::string, int32_t> whole_pieces_;
  const std::unique_ptr<BpeMerges> merges_;
  const PreTokenizer pre_tokenizer_;
  const bool nfc_;
  const std::optional<int32_t> end_of_text_;
  const std::string fingerprint_;

  // The pieces of real text repeat; their ids are remembered up to a limit.
  mutable absl::Mutex mutex_;
  mutable absl::flat_hash_map<std::string, CachedIds> cache_ ABSL_GUARDED_BY(mutex_);
  mutable std::vector<int32_t> cached_ids_ ABSL_GUARDED_BY(mutex_);
  mutable BpeMerges::Scratch scratch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadBpeTokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kFileLimitBytes));
  Json file;
  try {
    file = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) throw std::invalid_argument("it is nested too deeply");
      return true;
    });
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not valid JSON: ", error.what()));
  }
  absl::StatusOr<Definition> definition = ReadDefinition(file);
  if (!definition.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is not a tokenizer that can be used: ", definition.status().message()));
  }
  std::string fingerprint = absl::StrFormat("bpe-%016x", XXH3_64bits(text.data(), text.size()));
  return std::make_unique<BpeTokenizer>(*std::move(definition), std::move(fingerprint));
}

}  // namespace terrace
