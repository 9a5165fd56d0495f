// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/decoder.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "worker/data/characters.h"
#include "worker/data/tokenizer_json/byte_alphabet.h"
#include "worker/data/tokenizer_json/metaspace_keys.h"
#include "worker/data/tokenizer_json/pattern.h"

namespace terrace::tokenizer_json {
namespace {

constexpr char kReplacementCharacter[] = "\ufffd";

void Fuse(std::vector<std::string>* tokens) { *tokens = {absl::StrJoin(*tokens, "")}; }

void DecodeBytes(std::vector<std::string>* tokens) {
  for (std::string& token : *tokens) token = BytesOfToken(token).value_or(token);
  Fuse(tokens);
}

// "<0x41>"
std::optional<char> ByteOf(const std::string& token) {
  const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
                       absl::ascii_isxdigit(static_cast<unsigned char>(token[3])) &&
                       absl::ascii_isxdigit(static_cast<unsigned char>(token[4]));
  if (!is_byte) return std::nullopt;
  return static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16));
}

// A run of bytes becomes the text that it is, or one U+FFFD each when it is none.
void JoinBytes(std::vector<std::string>* tokens) {
  std::vector<std::string> out;
  std::string run;
  const auto end_run = [&] {
    if (FindInvalidUtf8(run) == run.size()) {
      if (!run.empty()) out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), kReplacementCharacter);
    }
    run.clear();
  };
  for (std::string& token : *tokens) {
    if (const std::optional<char> byte = ByteOf(token)) {
      run.push_back(*byte);
      continue;
    }
    end_run();
    out.push_back(std::move(token));
  }
  end_run();
  *tokens = std::move(out);
}

std::string Replaced(std::string_view text, const Splitter& pattern, std::string_view content) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const Splitter::Part part = pattern.Next(text, begin);
    out += part.is_match ? content : text.substr(begin, part.end - begin);
    begin = part.end;
  }
  return out;
}

}  // namespace

absl::Status Decoder::AddReplace(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "decoder Replace";
  RemarkUnknownKeys(json, kWhere, {"type", "pattern", "content"}, remarks);
  ASSIGN_OR_RETURN(Splitter read, ReadPattern(json, kWhere));
  ASSIGN_OR_RETURN(const std::optional<std::string> content, StringMember(json, "content", kWhere));
  const auto pattern = std::make_shared<const Splitter>(std::move(read));
  steps_.push_back([pattern, content = content.value_or("")](std::vector<std::string>* tokens) {
    for (std::string& token : *tokens) token = Replaced(token, *pattern, content);
  });
  return absl::OkStatus();
}

absl::Status Decoder::AddStrip(const Json& json, Remarks* remarks) {
  constexpr char kWhere[] = "decoder Strip";
  RemarkUnknownKeys(json, kWhere, {"type", "content", "start", "stop"}, remarks);
  ASSIGN_OR_RETURN(const std::optional<std::string> content, StringMember(json, "content", kWhere));
  ASSIGN_OR_RETURN(const int64_t start, IntMember(json, "start", kWhere));
  ASSIGN_OR_RETURN(const int64_t stop, IntMember(json, "stop", kWhere));
  if (!content.has_value() || content->empty()) {
    return Unsupported("decoder Strip.content", "missing", "a character");
  }
  steps_.push_back([content = *content, start, stop](std::vector<std::string>* tokens) {
    for (std::string& token : *tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start && rest.starts_with(content); ++i) {
        rest.remove_prefix(content.size());
      }
      for (int64_t i = 0; i < stop && rest.ends_with(content); ++i) {
        rest.remove_suffix(content.size());
      }
      token = std::string(rest);
    }
  });
  return absl::OkStatus();
}

absl::Status Decoder::AddMetaspace(const Json& json, Remarks* remarks) {
  ASSIGN_OR_RETURN(const MetaspaceKeys keys, ReadMetaspaceKeys(json, "decoder Metaspace", remarks));
  const bool has_prefix = keys.scheme != "never";
  const auto space = std::make_shared<const Splitter>(Splitter::Literal(keys.replacement));
  steps_.push_back([space, has_prefix](std::vector<std::string>* tokens) {
    for (size_t i = 0; i < tokens->size(); ++i) {
      (*tokens)[i] = Replaced((*tokens)[i], *space, i == 0 && has_prefix ? "" : " ");
    }
  });
  return absl::OkStatus();
}

absl::Status Decoder::Add(const Json& json, Remarks* remarks) {
  const std::string type = TypeOf(json);
  if (type == "Replace") return AddReplace(json, remarks);
  if (type == "Strip") return AddStrip(json, remarks);
  if (type == "Metaspace") return AddMetaspace(json, remarks);
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* steps, ListMember(json, "decoders", "decoder Sequence"));
    for (const Json& step : *steps) RETURN_IF_ERROR(Add(step, remarks));
    return absl::OkStatus();
  }
  for (const auto& [name, step] : {std::pair<const char*, Step>("ByteLevel", &DecodeBytes),
                                   {"ByteFallback", &JoinBytes},
                                   {"Fuse", &Fuse}}) {
    if (type != name) continue;
    steps_.push_back(step);
    return absl::OkStatus();
  }
  return Unsupported(
      "decoder", type,
      "null, ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or a Sequence of them");
}

absl::StatusOr<Decoder> Decoder::Read(const Json& json, bool byte_level, Remarks* remarks) {
  Decoder decoder;
  if (!json.is_null()) {
    RETURN_IF_ERROR(decoder.Add(json, remarks));
  } else if (byte_level) {
    decoder.steps_.push_back(&DecodeBytes);
  } else {
    decoder.separator_ = " ";
  }
  return decoder;
}

std::string Decoder::Decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) step(&tokens);
  return absl::StrJoin(tokens, separator_);
}

}  // namespace terrace::tokenizer_json
