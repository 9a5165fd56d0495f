// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/config_keys.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// More keys than any configuration class has; a longer list would bury what it says.
constexpr size_t kRemarksMax = 40;
constexpr size_t kKeyBytesMax = 80;

// All of RoPE's keys that some type reads.
constexpr std::string_view kRopeKeys[] = {"rope_type",
                                          "type",
                                          "rope_theta",
                                          "factor",
                                          "partial_rotary_factor",
                                          "original_max_position_embeddings",
                                          "low_freq_factor",
                                          "high_freq_factor",
                                          "beta_fast",
                                          "beta_slow",
                                          "truncate",
                                          "attention_factor",
                                          "mscale",
                                          "mscale_all_dim",
                                          "short_factor",
                                          "long_factor"};

bool IsFor(std::string_view families, std::string_view family) {
  if (families.empty()) return true;
  const std::vector<std::string> names = absl::StrSplit(Absl(families), ' ');
  return std::find(names.begin(), names.end(), family) != names.end();
}

// Asks for nothing: what the classes have where the key is left out, in nearly all cases.
bool IsEmpty(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

std::string Sentence(const std::string& path, const std::string& key, const Json& value,
                     std::string_view note) {
  return absl::StrCat("model.config: ", path, CleanLine(key, kKeyBytesMax), ": got ",
                      ShownJson(value), ", ", Absl(note));
}

std::string Unread(std::string_view key, const std::vector<std::string_view>& known) {
  const std::string_view nearest = Nearest(key, known);
  return nearest.empty() ? "which nothing reads"
                         : absl::StrCat("which nothing reads; is ", Absl(nearest), " meant?");
}

const ConfigKey* FindKey(std::string_view key, std::string_view family) {
  for (const ConfigKey& known : ConfigKeys()) {
    if (known.key == key && IsFor(known.families, family)) return &known;
  }
  return nullptr;
}

// Class names as in "LlamaForCausalLM".
void JudgeArchitectures(const JsonReader& read, std::string_view family,
                        std::vector<std::string>* remarks) {
  const auto it = read.object().find("architectures");
  if (it == read.object().end() || it->is_null() || it->empty()) return;
  // GPTNeoXForCausalLM is gpt_neox's, Gemma3ForCausalLM gemma3_text's.
  std::string of_class(family.ends_with("_text") ? family.substr(0, family.rfind('_')) : family);
  of_class.erase(std::remove(of_class.begin(), of_class.end(), '_'), of_class.end());
  for (const Json& name : it->is_array() ? *it : Json::array({*it})) {
    if (!name.is_string()) continue;
    const std::string lower = absl::AsciiStrToLower(name.get<std::string>());
    const bool head = lower.ends_with("forcausallm") || lower.ends_with("lmheadmodel");
    if (head && lower.starts_with(of_class)) return;
  }
  remarks->push_back(Sentence(
      "", "architectures", *it,
      absl::StrCat("but what is trained is ", Absl(family), " with a language model's head")));
}

}  // namespace

void JudgeConfigKeys(JsonReader& read, std::string_view family, std::vector<std::string>* remarks) {
  JudgeArchitectures(read, family, remarks);
  // One that has no effect is never what somebody meant who wanted one: num_heads is not num_beams.
  const std::vector<std::string_view> known(read.asked().begin(), read.asked().end());
  size_t left_out = 0;
  for (const std::string& key : read.NotAsked()) {
    const Json& value = read.object().at(key);
    const ConfigKey* judged = FindKey(key, family);
    if (judged != nullptr && judged->fate == KeyFate::kNoEffect) continue;
    // What nobody knows is said even when it asks for nothing, for it may be a misspelt "false".
    const bool said =
        judged == nullptr || (!value.is_null() && (judged->even_if_empty || !IsEmpty(value)));
    if (!said) continue;
    if (judged != nullptr && judged->fate == KeyFate::kRefuse) {
      read.Problem(key, ShownJson(value), judged->note);
    } else if (remarks->size() >= kRemarksMax) {
      ++left_out;
    } else {
      remarks->push_back(
          Sentence(read.path(), key, value, judged != nullptr ? judged->note : Unread(key, known)));
    }
  }
  if (left_out > 0) {
    remarks->push_back(absl::StrCat("model.config: ", left_out, " more keys are not read"));
  }
}

void JudgeRopeKeys(const JsonReader& scaling, std::string_view type,
                   std::vector<std::string>* remarks) {
  const std::vector<std::string_view> known(std::begin(kRopeKeys), std::end(kRopeKeys));
  for (const std::string& key : scaling.NotAsked()) {
    const Json& value = scaling.object().at(key);
    if (value.is_null() || key == "finetuned") continue;  // tells what was done, for nobody
    if (remarks->size() >= kRemarksMax) return;
    const bool of_another_type = std::find(known.begin(), known.end(), key) != known.end();
    remarks->push_back(Sentence(scaling.path(), key, value,
                                of_another_type
                                    ? absl::StrCat("which rope type ", Absl(type), " does not read")
                                    : Unread(key, known)));
  }
}

}  // namespace terrace
