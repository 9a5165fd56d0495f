// SPDX-License-Identifier: Apache-2.0
#include "worker/data/special_tokens.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/json_text.h"
#include "worker/data/json_beside.h"
#include "worker/data/tokenizer_json/document.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using tokenizer_json::Json;
using tokenizer_json::Member;

std::vector<int64_t> EndIdsOf(const Json& config) {
  std::vector<int64_t> ids;
  const Json& value = Member(config, "eos_token_id");
  if (value.is_number_integer()) ids.push_back(value.get<int64_t>());
  if (!value.is_array()) return ids;
  for (const Json& id : value) {
    if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  }
  return ids;
}

// Null for what is none: the config of a job has been looked at before.
Json Parsed(std::string_view config_json) {
  if (!CheckJson(config_json).ok()) return Json();
  return Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
}

class Reader {
 public:
  Reader(const std::string& file, std::string_view model_config, const TokenNames& names,
         std::vector<std::string>* remarks)
      : folder_(fs::path(file).parent_path()), names_(names), remarks_(*remarks) {
    model_config_ = Parsed(model_config);
  }

  absl::StatusOr<SpecialTokens> Read() {
    ASSIGN_OR_RETURN(tokenizer_config_,
                     ReadJsonBeside(folder_.string(), "tokenizer_config.json", &remarks_));
    ASSIGN_OR_RETURN(map_, ReadJsonBeside(folder_.string(), "special_tokens_map.json", &remarks_));
    ASSIGN_OR_RETURN(config_, ReadJsonBeside(folder_.string(), "config.json", &remarks_));
    ASSIGN_OR_RETURN(generation_,
                     ReadJsonBeside(folder_.string(), "generation_config.json", &remarks_));
    SpecialTokens tokens = names_.own;
    RETURN_IF_ERROR(ReadNamed("eos_token", /*must_exist=*/true, &tokens.end));
    RETURN_IF_ERROR(ReadNamed("bos_token", /*must_exist=*/false, &tokens.begin));
    RETURN_IF_ERROR(ReadNamed("pad_token", /*must_exist=*/false, &tokens.padding));
    for (const auto& [config, what] : Configs()) {
      if (!tokens.end.has_value()) tokens.end = FirstSpecial(*config, what);
    }
    tokens.stops = Stops(tokens.end);
    return tokens;
  }

 private:
  std::vector<std::pair<const Json*, const char*>> Configs() const {
    return {{&model_config_, "the model's config"},
            {&config_, "config.json"},
            {&generation_, "generation_config.json"}};
  }

  // As transformers reads them: the map counts where tokenizer_config.json does not describe its
  // tokens itself.
  absl::Status ReadNamed(const char* key, bool must_exist, std::optional<SpecialToken>* token) {
    const bool map_counts = !Member(tokenizer_config_, "added_tokens_decoder").is_object();
    ASSIGN_OR_RETURN(std::optional<std::string> text,
                     TextOf(tokenizer_config_, "tokenizer_config.json", key));
    ASSIGN_OR_RETURN(const std::optional<std::string> mapped,
                     TextOf(map_, "special_tokens_map.json", key));
    const char* where = "tokenizer_config.json";
    if (mapped.has_value() && (map_counts || !text.has_value())) {
      text = mapped;
      where = "special_tokens_map.json";
    }
    if (!text.has_value() || text->empty()) return absl::OkStatus();
    const std::optional<int32_t> id = names_.id_of(*text);
    if (id.has_value()) {
      *token = SpecialToken{*id, *text};
      return absl::OkStatus();
    }
    const std::string problem = absl::StrCat((folder_ / where).string(), ": ", key, " is \"", *text,
                                             "\", must be a token of the tokenizer beside it");
    if (must_exist) return absl::InvalidArgumentError(problem);
    remarks_.push_back(problem);
    return absl::OkStatus();
  }

  // "</s>" or {"content": "</s>"}; nullopt when it is missing or null.
  absl::StatusOr<std::optional<std::string>> TextOf(const Json& object, const char* file,
                                                    const char* key) const {
    const Json& value = Member(object, key);
    if (value.is_null()) return std::nullopt;
    const Json& text = value.is_object() ? Member(value, "content") : value;
    if (text.is_string()) return text.get<std::string>();
    return absl::InvalidArgumentError(absl::StrCat(
        (folder_ / file).string(), ": ", key, " is ", value.dump(-1, ' ', true).substr(0, 60),
        ", must be a text or an object with a \"content\""));
  }

  std::optional<SpecialToken> FirstSpecial(const Json& config, const char* what) {
    for (const int64_t id : EndIdsOf(config)) {
      if (const std::optional<std::string> text = names_.special_text(id)) {
        return SpecialToken{static_cast<int32_t>(id), *text};
      }
      remarks_.push_back(absl::StrCat("eos_token_id of ", what, " is ", id,
                                      ", which is no added token here and ends nothing"));
    }
    return std::nullopt;
  }

  // The end token, and what the settings for generation name besides.
  std::vector<int32_t> Stops(const std::optional<SpecialToken>& end) const {
    std::vector<int32_t> stops;
    if (end.has_value()) stops.push_back(end->id);
    std::vector<int64_t> more = EndIdsOf(generation_);
    if (more.empty()) more = EndIdsOf(model_config_);
    if (more.empty()) more = EndIdsOf(config_);
    for (const int64_t id : more) {
      const bool is_new = std::find(stops.begin(), stops.end(), id) == stops.end();
      if (is_new && names_.special_text(id).has_value()) stops.push_back(static_cast<int32_t>(id));
    }
    return stops;
  }

  const fs::path folder_;
  const TokenNames& names_;
  std::vector<std::string>& remarks_;
  Json model_config_, tokenizer_config_, map_, config_, generation_;
};

}  // namespace

absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::string& file,
                                                std::string_view model_config,
                                                const TokenNames& names,
                                                std::vector<std::string>* remarks) {
  return Reader(file, model_config, names, remarks).Read();
}

std::vector<int64_t> EndIdsOf(std::string_view config_json) {
  return EndIdsOf(Parsed(config_json));
}

}  // namespace terrace
