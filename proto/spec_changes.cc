// SPDX-License-Identifier: Apache-2.0
#include "proto/spec_changes.h"

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"
#include "base/text/json_text.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kValueBytesMax = 120;

struct Watched {
  std::string_view path;  // of a JobSpec field
  bool breaks;
  bool files = false;               // paths: a file of the same name elsewhere breaks nothing
  std::string_view otherwise = "";  // what an empty value or 0 means
  std::string_view key = "";        // of the spec, where it is not the path
};

constexpr Watched kWatched[] = {
    {"data.train", true, true},
    {"data.mixture", true, false, "", "data.train's weights"},
    {"data.validation", true, true},
    {"data.tokenizer", true, true},
    {"data.chat_template", true, true},
    {"data.loss_on", true, false, "answers"},
    {"data.sequence_length", true},
    {"data.validation_fraction", true},
    {"data.samples", true},
    {"data.buckets", true},
    {"train.global_batch", true},
    {"train.seed", true},
    {"model.attention", true},
    {"model.lora.rank", true},
    {"model.lora.alpha", true},
    {"model.lora.rslora", true},
    {"model.lora.targets", true},
    {"model.lora.dropout", false},
    {"model.dropout.embedding", false},
    {"model.dropout.residual", false},
    {"model.dropout.attention", false},
    {"train.steps", false},
    {"train.precision", false},
    {"train.precision_rules", false, false, "", "train.precision.layers"},
    {"train.clip_grad_norm", false},
    {"train.optimizer.name", false},
    {"train.optimizer.lr", false},
    {"train.optimizer.beta1", false},
    {"train.optimizer.beta2", false},
    {"train.optimizer.epsilon", false},
    {"train.optimizer.weight_decay", false},
    {"train.optimizer.stochastic_rounding", false},
    {"train.optimizer.momentum", false},
    {"train.optimizer.nesterov", false},
    {"train.optimizer.ns_steps", false, false, "5"},
    {"train.optimizer.adjust_lr", false, false, "match_rms_adamw"},
    {"train.optimizer.beta2_decay", false},
    {"train.optimizer.beta3", false},
    {"train.optimizer.error_epsilon", false},
    {"train.optimizer.clip_threshold", false},
    {"train.optimizer.scale_parameter", false},
    {"train.optimizer.least_scale", false},
    {"train.optimizer.relative_step", false},
    {"train.optimizer.groups", false},
    {"train.optimizer.layer_decay", false},
    {"train.label_smoothing", false},
    {"train.z_loss", false},
    {"train.preference.loss", true, false, "none"},
    {"train.preference.beta", false},
    {"train.preference.label_smoothing", false},
    {"formats.gradient", false, false, "f32"},
    {"formats.reduce", false, false, "formats.gradient"},
    {"formats.moments", false, false, "f32"},
    {"formats.activation", false},
    {"formats.gather", false},
    {"formats.residual", false},
    {"formats.frozen", false},
    {"formats.allow.gradient", false},
    {"formats.allow.reduce", false},
    {"formats.allow.moments", false},
    {"formats.allow.activation", false},
    {"formats.allow.gather", false},
    {"train.schedule.name", false},
    {"train.schedule.warmup_steps", false},
    {"train.schedule.min_lr", false},
    {"train.schedule.initial_lr", false},
    {"train.schedule.decay_steps", false},
    {"train.schedule.decay", false, false, "linear"},
    {"train.schedule.power", false, false, "1"},
    {"train.schedule.cycles", false, false, "1"},
};

// Keys of a config.json that say where it came from or how it was stored.
constexpr std::string_view kWithoutEffect[] = {
    "_name_or_path", "architectures",       "auto_map", "dtype", "torch_dtype",
    "use_cache",     "transformers_version"};

// "books.txt" of "/data/books.txt" and "/data/books.txt/".
std::string LastPart(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return std::filesystem::path(path).filename().string();
}

enum class As {
  kWritten,
  kCompared,   // weights of a mixture by their shares, which are all that matters
  kLastParts,  // of paths
};

// The sum of the weights of a mixture.
double AllWeights(const v1::DataSpec& data) {
  double all = 0;
  for (const v1::MixtureSource& source : data.mixture()) all += source.weight();
  return all;
}

// "8", "[a, b]".
std::string ValueOf(const v1::JobSpec& spec, const Watched& watched, As as = As::kWritten) {
  const google::protobuf::Message* message = &spec;
  const google::protobuf::FieldDescriptor* field = nullptr;
  for (absl::string_view part : absl::StrSplit(Absl(watched.path), '.')) {
    if (field != nullptr) message = &message->GetReflection()->GetMessage(*message, field);
    field = message->GetDescriptor()->FindFieldByName(std::string(part));
  }
  const google::protobuf::Reflection* reflection = message->GetReflection();
  std::vector<std::string> values;
  const int count = field->is_repeated() ? reflection->FieldSize(*message, field) : 1;
  for (int i = 0; i < count; ++i) {
    std::string& value = values.emplace_back();
    const int index = field->is_repeated() ? i : -1;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
      value = field->is_repeated() ? reflection->GetRepeatedString(*message, field, i)
                                   : reflection->GetString(*message, field);
      if (as == As::kLastParts) value = LastPart(value);
      if (value.empty()) value = std::string(watched.otherwise);
    } else if (field->message_type() == v1::PrecisionRule::descriptor()) {
      const auto& rule =
          static_cast<const v1::PrecisionRule&>(reflection->GetRepeatedMessage(*message, field, i));
      value = absl::StrCat(rule.where(), ": ", rule.precision());
    } else if (field->message_type() == v1::MixtureSource::descriptor()) {
      const auto& source =
          static_cast<const v1::MixtureSource&>(reflection->GetRepeatedMessage(*message, field, i));
      // Shares are kept to 2^-24 (worker/data/mixture/source_draw.h).
      value = as == As::kCompared
                  ? absl::StrFormat("%.12g", source.weight() / AllWeights(spec.data()))
                  : absl::StrFormat("%.15g", source.weight());
      if (source.files() > 1) absl::StrAppend(&value, " of ", source.files(), " files");
    } else if (field->message_type() == v1::ParameterGroup::descriptor()) {
      const auto& group = static_cast<const v1::ParameterGroup&>(
          reflection->GetRepeatedMessage(*message, field, i));
      value = absl::StrCat(group.match(), ": ");
      if (group.frozen()) {
        absl::StrAppend(&value, "frozen");
        continue;
      }
      absl::StrAppend(&value, "lr_scale ", group.lr_scale());
      if (group.has_weight_decay())
        absl::StrAppend(&value, ", weight_decay ", group.weight_decay());
      if (!group.rule().empty()) absl::StrAppend(&value, ", rule ", group.rule());
    } else {
      google::protobuf::TextFormat::PrintFieldValueToString(*message, field, index, &value);
      if (value == "0" && !watched.otherwise.empty()) value = std::string(watched.otherwise);
    }
  }
  return field->is_repeated() ? absl::StrCat("[", absl::StrJoin(values, ", "), "]") : values[0];
}

std::string TextOf(const nlohmann::json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) return "nothing";
  return found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void CompareConfigs(const std::string& then_text, const std::string& now_text,
                    std::vector<SpecChange>* changes) {
  if (!CheckJson(then_text).ok() || !CheckJson(now_text).ok()) return;
  const auto then = nlohmann::json::parse(then_text, nullptr, /*allow_exceptions=*/false);
  const auto now = nlohmann::json::parse(now_text, nullptr, /*allow_exceptions=*/false);
  if (!then.is_object() || !now.is_object()) return;
  std::set<std::string> keys;
  for (const auto& [key, value] : then.items()) keys.insert(key);
  for (const auto& [key, value] : now.items()) keys.insert(key);
  for (const std::string& key : keys) {
    const bool counts = std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), key) ==
                        std::end(kWithoutEffect);
    if (counts && TextOf(then, key) != TextOf(now, key)) {
      changes->push_back(
          {absl::StrCat("model.config.", key), TextOf(then, key), TextOf(now, key), true});
    }
  }
}

}  // namespace

void PinFormats(const v1::Layout& layout, v1::JobSpec* spec) {
  v1::FormatSpec& formats = *spec->mutable_formats();
  formats.set_gradient(layout.gradient_format());
  // Where it is named it says more than how gradients are stored.
  const bool sent_alike = layout.reduce_format() == layout.gradient_format();
  formats.set_reduce(sent_alike ? "" : layout.reduce_format());
  formats.set_moments(layout.moments_format());
  formats.set_activation(layout.activation_format());
  formats.set_gather(layout.gather_format());
  formats.set_residual(layout.residual_format());
  formats.set_frozen(layout.frozen_format());
}

std::vector<SpecChange> SpecChanges(const v1::JobSpec& then, const v1::JobSpec& now) {
  std::vector<SpecChange> changes;
  CompareConfigs(then.model().config_json(), now.model().config_json(), &changes);
  for (const Watched& watched : kWatched) {
    if (ValueOf(then, watched, As::kCompared) == ValueOf(now, watched, As::kCompared)) continue;
    const bool moved = watched.files && ValueOf(then, watched, As::kLastParts) ==
                                            ValueOf(now, watched, As::kLastParts);
    changes.push_back({std::string(watched.key.empty() ? watched.path : watched.key),
                       ValueOf(then, watched), ValueOf(now, watched), watched.breaks && !moved});
  }
  return changes;
}

std::string DescribeChanges(const std::vector<SpecChange>& changes, bool breaking_only) {
  std::vector<std::string> parts;
  for (const SpecChange& change : changes) {
    if (breaking_only && !change.breaks) continue;
    const auto shown = [](const std::string& value) {
      return value.empty() ? std::string("nothing") : CleanLine(value, kValueBytesMax);
    };
    parts.push_back(absl::StrCat(CleanLine(change.key, kValueBytesMax), " from ",
                                 shown(change.then), " to ", shown(change.now)));
  }
  return absl::StrJoin(parts, ", ");
}

std::string WhyNoContinuation(const std::string& checkpoint, const std::vector<SpecChange>& changes,
                              const v1::JobSpec& now) {
  const std::string breaking = DescribeChanges(changes, /*breaking_only=*/true);
  if (breaking.empty() || now.checkpoint().resume() == "always") return "";
  const bool other_model = std::any_of(
      changes.begin(), changes.end(),
      [](const SpecChange& change) { return change.breaks && change.key.starts_with("model."); });
  return absl::StrCat("cannot resume from ", checkpoint, ": the job has changed since, ", breaking,
                      ", so that its numbers would be no continuation; name another "
                      "checkpoint.directory, or set checkpoint.resume: always to go on from there "
                      "all the same",
                      other_model ? ", where all tensors keep their shapes" : "");
}

}  // namespace terrace
