// SPDX-License-Identifier: Apache-2.0
#include "worker/data/chat/chat_template.h"

#include <xxhash.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "worker/data/json_beside.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kTemplateBytesMax = 4 << 20;
constexpr char kDefault[] = "default";

// Changes when the same template renders another text or other answers.
constexpr int kRules = 1;

absl::StatusOr<std::string> ReadTemplate(const fs::path& path) {
  ASSIGN_OR_RETURN(std::string text, ReadTextFile(path.string(), kTemplateBytesMax));
  if (FindInvalidUtf8(text) == text.size()) return text;
  return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not UTF-8"));
}

absl::Status ReadFiles(const fs::path& folder, ChatTemplate* chat) {
  std::error_code error;
  const fs::path main = folder / "chat_template.jinja";
  if (fs::exists(fs::symlink_status(main, error))) {
    ASSIGN_OR_RETURN(chat->texts[kDefault], ReadTemplate(main));
    chat->where = main.string();
  }
  const fs::path more = folder / "additional_chat_templates";
  for (fs::directory_iterator file(more, error), end; !error && file != end;
       file.increment(error)) {
    if (file->path().extension() != ".jinja") continue;
    ASSIGN_OR_RETURN(chat->texts[file->path().stem().string()], ReadTemplate(file->path()));
    if (chat->where.empty()) chat->where = more.string();
  }
  return absl::OkStatus();
}

absl::Status ReadOfConfig(const Json& config, const fs::path& folder, ChatTemplate* chat) {
  const auto value = config.find("chat_template");
  if (value == config.end() || value->is_null()) return absl::OkStatus();
  chat->where = (folder / "tokenizer_config.json").string();
  if (value->is_string()) {
    chat->texts[kDefault] = value->get<std::string>();
    return absl::OkStatus();
  }
  const auto refuse = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat(chat->where,
                     ": \"chat_template\" must be a text, or a list of objects with \"name\" and "
                     "\"template\""));
  };
  if (value->is_object()) {
    for (const auto& [name, text] : value->items()) {
      if (!text.is_string()) return refuse();
      chat->texts[name] = text.get<std::string>();
    }
    return absl::OkStatus();
  }
  if (!value->is_array()) return refuse();
  for (const Json& one : *value) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string() ||
        !one.contains("template") || !one["template"].is_string()) {
      return refuse();
    }
    chat->texts[one["name"].get<std::string>()] = one["template"].get<std::string>();
  }
  return absl::OkStatus();
}

// "</s>" or {"content": "</s>"}; other values name no token.
void AddToken(const std::string& name, const Json& value, bool replace, ChatTemplate* chat) {
  const Json* text = &value;
  if (value.is_object() && value.contains("content")) text = &value["content"];
  if (!text->is_string() || (!replace && chat->tokens.contains(name))) return;
  chat->tokens[name] = text->get<std::string>();
}

void AddTokens(const Json& config, bool replace, ChatTemplate* chat) {
  for (const auto& [name, value] : config.items()) {
    if (absl::EndsWith(name, "_token")) AddToken(name, value, replace, chat);
  }
  if (const auto extra = config.find("extra_special_tokens");
      extra != config.end() && extra->is_object()) {
    for (const auto& [name, value] : extra->items()) AddToken(name, value, replace, chat);
  }
}

absl::Status ReadBeside(const fs::path& folder, bool with_template, ChatTemplate* chat) {
  std::vector<std::string> ignored;  // said where special tokens are read
  ASSIGN_OR_RETURN(const Json config,
                   ReadJsonBeside(folder.string(), "tokenizer_config.json", &ignored));
  ASSIGN_OR_RETURN(const Json map,
                   ReadJsonBeside(folder.string(), "special_tokens_map.json", &ignored));
  const bool describes = config.is_object() && config.contains("added_tokens_decoder") &&
                         config["added_tokens_decoder"].is_object();
  if (config.is_object()) AddTokens(config, /*replace=*/true, chat);
  if (map.is_object()) AddTokens(map, /*replace=*/!describes, chat);
  if (!with_template) return absl::OkStatus();
  RETURN_IF_ERROR(ReadFiles(folder, chat));
  if (chat->texts.empty() && config.is_object()) return ReadOfConfig(config, folder, chat);
  return absl::OkStatus();
}

}  // namespace

uint64_t ChatTemplate::hash() const {
  Json all = {kRules, texts, tokens};
  const std::string text = all.dump(-1, ' ', true, Json::error_handler_t::replace);
  return XXH3_64bits(text.data(), text.size());
}

absl::StatusOr<ChatTemplate> ReadChatTemplate(std::string_view tokenizer, std::string_view file) {
  ChatTemplate chat;
  if (!file.empty()) {
    const auto text = ReadTemplate(fs::path(file));
    if (!text.ok()) {
      return absl::Status(text.status().code(),
                          absl::StrCat("data.chat_template: ", text.status().message()));
    }
    chat.where = std::string(file);
    chat.texts[kDefault] = *text;
  }
  if (tokenizer == "bytes") return chat;
  std::error_code error;
  const fs::path path(tokenizer);
  RETURN_IF_ERROR(ReadBeside(fs::is_directory(path, error) ? path : path.parent_path(),
                             /*with_template=*/file.empty(), &chat));
  return chat;
}

}  // namespace terrace
