// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/reader.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "coordinator/spec/validate.h"

namespace terrace {
namespace {

constexpr int kMaxDepth = 16;
constexpr int kMaxNodes = 10'000;
constexpr size_t kMaxShownValue = 60;

std::string Quoted(const YAML::Node& value) {
  if (value.IsNull()) return "nothing";
  if (value.IsMap()) return "a mapping";
  if (value.IsSequence()) return "a list";
  std::string text = value.Scalar();
  if (text.size() > kMaxShownValue) text = text.substr(0, kMaxShownValue - 3) + "...";
  return absl::StrCat("\"", text, "\"");
}

// Whole numbers also in the forms 1e6 and 1_000_000 that people write.
std::optional<double> ParseNumber(std::string text) {
  std::erase(text, '_');
  double value = 0;
  if (text.empty() || !absl::SimpleAtod(text, &value) || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<double> ParseBytes(const std::string& text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
      {"KB", 1e3},     {"MB", 1e6},        {"GB", 1e9},           {"TB", 1e12},
      {"B", 1.0}};
  for (const auto& [unit, factor] : kUnits) {
    if (!absl::EndsWith(text, Absl(unit))) continue;
    std::string number(absl::StripAsciiWhitespace(text.substr(0, text.size() - unit.size())));
    const auto value = ParseNumber(number);
    if (!value) return std::nullopt;
    return std::floor(*value * factor);
  }
  return ParseNumber(text);
}

// The JobSpec field at a dotted path, its sub-message created on the way.
struct Field {
  google::protobuf::Message* message;
  const google::protobuf::FieldDescriptor* descriptor;
};
Field FindField(const SpecKey& key, v1::JobSpec* spec) {
  const std::string_view path = key.field.empty() ? key.path : key.field;
  google::protobuf::Message* message = spec;
  const google::protobuf::FieldDescriptor* descriptor = nullptr;
  for (absl::string_view part : absl::StrSplit(Absl(path), '.')) {
    if (descriptor != nullptr)
      message = message->GetReflection()->MutableMessage(message, descriptor);
    descriptor = message->GetDescriptor()->FindFieldByName(std::string(part));
  }
  return {message, descriptor};
}

void SetNumber(const Field& field, double value) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection* reflection = field.message->GetReflection();
  switch (field.descriptor->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(field.message, field.descriptor, value);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(field.message, field.descriptor, value);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(field.message, field.descriptor, value);
    default:
      return reflection->SetDouble(field.message, field.descriptor, value);
  }
}

void SetString(const Field& field, std::string value) {
  field.message->GetReflection()->SetString(field.message, field.descriptor, std::move(value));
}

std::string RangeText(const SpecKey& key) {
  const char* what = key.kind == KeyKind::kReal ? "a number" : "a whole number";
  if (key.low == key.high) return absl::StrCat(key.low);
  return absl::StrCat(what, " from ", key.low, " to ", key.high);
}

std::vector<absl::string_view> ChoicesOf(const SpecKey& key) {
  std::vector<absl::string_view> choices;
  for (std::string_view choice : key.choices) choices.push_back(Absl(choice));
  return choices;
}

bool IsChoice(const SpecKey& key, std::string_view text) {
  return std::find(key.choices.begin(), key.choices.end(), text) != key.choices.end();
}

bool IsInteger(const SpecKey& key, std::optional<double> number) {
  return number && std::floor(*number) == *number && *number >= key.low && *number <= key.high;
}

const YAML::Node Lookup(const YAML::Node& root, std::string_view path) {
  YAML::Node node = YAML::Clone(YAML::Node());
  node.reset(root);
  for (absl::string_view part : absl::StrSplit(Absl(path), '.')) {
    if (!node.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
    const YAML::Node child = node[std::string(part)];
    if (!child.IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
    node.reset(child);
  }
  return node;
}

bool IsSection(const std::string& path) {
  for (const SpecKey& key : SpecKeys()) {
    if (absl::StartsWith(Absl(key.path), path + ".")) return true;
  }
  return false;
}

const SpecKey* FindKey(const std::string& path) {
  for (const SpecKey& key : SpecKeys()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

// YAML scalars carry no type: numbers and booleans are what looks like them, unless quoted.
nlohmann::json ToJson(const YAML::Node& node) {
  if (node.IsMap()) {
    nlohmann::json out = nlohmann::json::object();
    for (const auto& item : node) out[item.first.Scalar()] = ToJson(item.second);
    return out;
  }
  if (node.IsSequence()) {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& item : node) out.push_back(ToJson(item));
    return out;
  }
  if (node.IsNull()) return nullptr;
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
  if (text == "true" || text == "false") return text == "true";
  int64_t whole = 0;
  if (absl::SimpleAtoi(text, &whole)) return whole;
  if (const auto number = ParseNumber(text)) return *number;
  return text;
}

}  // namespace

void SpecReader::Problem(std::string_view path, std::string_view got, std::string_view must,
                         std::string_view way_out) {
  std::string text;
  auto place = places_.find(std::string(path));
  if (place != places_.end()) {
    text = absl::StrCat("line ", place->second.line, ", column ", place->second.column, ": ");
  }
  absl::StrAppend(&text, Absl(path), ": got ", Absl(got), ", must be ", Absl(must));
  if (!way_out.empty()) absl::StrAppend(&text, "; try ", Absl(way_out));
  problems_.push_back(std::move(text));
}

std::string SpecReader::Absolute(const std::string& path) const {
  std::filesystem::path p(path);
  if (p.is_relative()) p = std::filesystem::path(base_directory_) / p;
  return p.lexically_normal().string();
}

void SpecReader::Unknown(const std::string& path, const std::string& key) {
  std::vector<std::string_view> siblings;
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const SpecKey& known : SpecKeys()) {
    if (!absl::StartsWith(Absl(known.path), prefix)) continue;
    const std::string_view rest = known.path.substr(prefix.size());
    const std::string_view name = rest.substr(0, rest.find('.'));
    if (siblings.empty() || siblings.back() != name) siblings.push_back(name);
  }
  std::string_view near = Nearest(key, siblings);
  std::string elsewhere;
  for (const SpecKey& known : SpecKeys()) {  // the right key in the wrong section
    if (near.empty() && known.path.substr(known.path.rfind('.') + 1) == key)
      elsewhere = std::string(known.path);
  }
  std::vector<absl::string_view> names;
  for (std::string_view name : siblings) names.push_back(Absl(name));
  const std::string must = absl::StrCat("one of ", absl::StrJoin(names, ", "));
  const std::string try_this = !near.empty() ? prefix + std::string(near) : elsewhere;
  Problem(prefix + key, "an unknown key", must, try_this);
}

void SpecReader::CheckKey(const YAML::Node& key, const std::string& path,
                          const std::string& child) {
  const bool seen = places_.contains(child);
  places_[child] = {key.Mark().line + 1, key.Mark().column + 1};
  if (seen) Problem(child, "the key twice", "given once");
  if (FindKey(child) == nullptr && !IsSection(child)) Unknown(path, key.Scalar());
}

void SpecReader::Walk(const YAML::Node& node, const std::string& path, int depth) {
  if (++nodes_ > kMaxNodes || depth > kMaxDepth) too_large_ = true;
  if (too_large_) return;
  const SpecKey* leaf = FindKey(path);
  if (node.IsMap()) {
    for (const auto& item : node) {
      if (!item.first.IsScalar()) {
        Problem(path, "a key that is not a word", "a mapping with plain keys");
        continue;
      }
      const std::string child =
          path.empty() ? item.first.Scalar() : absl::StrCat(path, ".", item.first.Scalar());
      const bool ours = leaf == nullptr && (path.empty() || IsSection(path));
      if (ours) CheckKey(item.first, path, child);
      Walk(item.second, child, depth + 1);
    }
  } else if (node.IsSequence()) {
    for (const auto& item : node) Walk(item, path, depth + 1);
  } else if (leaf == nullptr && IsSection(path) && !node.IsNull() &&
             !(path == "layout" && node.Scalar() == "auto")) {
    Problem(path, Quoted(node), path == "layout" ? "auto or a mapping" : "a mapping");
  }
}

void SpecReader::ReadBetas(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  std::vector<double> betas;
  if (value.IsSequence()) {
    for (const auto& item : value) {
      const auto number = item.IsScalar() ? ParseNumber(item.Scalar()) : std::nullopt;
      if (number && *number >= 0 && *number < 1) betas.push_back(*number);
    }
  }
  if (betas.size() != 2 || value.size() != 2) {
    return Problem(key.path, Quoted(value), "a list of two numbers, each at least 0 and below 1",
                   "[0.9, 0.95]");
  }
  spec->mutable_train()->mutable_optimizer()->set_beta1(betas[0]);
  spec->mutable_train()->mutable_optimizer()->set_beta2(betas[1]);
}

void SpecReader::ReadNodes(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  const std::vector<std::string> parts =
      value.IsScalar() ? std::vector<std::string>(absl::StrSplit(value.Scalar(), ':'))
                       : std::vector<std::string>();
  int64_t low = 0, high = 0;
  const bool ok = !parts.empty() && parts.size() <= 2 && absl::SimpleAtoi(parts.front(), &low) &&
                  absl::SimpleAtoi(parts.back(), &high) && low >= key.low && high <= key.high &&
                  low <= high;
  if (!ok) {
    return Problem(key.path, Quoted(value),
                   absl::StrCat("N or MIN:MAX, from ", key.low, " to ", key.high), "1:4");
  }
  spec->mutable_resources()->set_nodes_min(low);
  spec->mutable_resources()->set_nodes_max(high);
}

void SpecReader::ReadModelConfig(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  v1::ModelSpec* model = spec->mutable_model();
  if (value.IsMap()) {
    model->set_config("(inline)");
    model->set_config_json(ToJson(value).dump(2));
  } else if (value.IsScalar() && !value.Scalar().empty()) {
    // A preset has no slash and no .json; what else it is shows when it is looked up.
    const std::string& text = value.Scalar();
    const bool is_path = absl::StrContains(text, "/") || absl::EndsWith(text, ".json");
    model->set_config(is_path ? Absolute(text) : text);
  } else {
    Problem(key.path, Quoted(value), "a preset name, a path or a mapping", "gpt2");
  }
}

void SpecReader::ReadPaths(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  const Field field = FindField(key, spec);
  std::vector<std::string> paths;
  if (value.IsScalar()) paths.push_back(value.Scalar());
  if (value.IsSequence()) {
    for (const auto& item : value) paths.push_back(item.IsScalar() ? item.Scalar() : "");
  }
  for (const std::string& path : paths) {
    if (path.empty()) return Problem(key.path, Quoted(value), "a path or a list of paths");
    field.message->GetReflection()->AddString(field.message, field.descriptor, Absolute(path));
  }
  if (paths.empty() && key.required) Problem(key.path, Quoted(value), "a path or a list of paths");
}

// All entries, or one problem with the first that is wrong.
void SpecReader::ReadList(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  const Field field = FindField(key, spec);
  const google::protobuf::Reflection* reflection = field.message->GetReflection();
  const bool numbers = key.kind == KeyKind::kIntegers;
  const std::string must =
      numbers ? absl::StrCat("a list, each ", RangeText(key))
              : absl::StrCat("a list, each one of ", absl::StrJoin(ChoicesOf(key), ", "));
  if (!value.IsSequence()) return Problem(key.path, Quoted(value), must);
  for (const auto& item : value) {
    if (!item.IsScalar()) return Problem(key.path, Quoted(item), must);
    const auto number = numbers ? ParseNumber(item.Scalar()) : std::nullopt;
    if (IsInteger(key, number)) {
      reflection->AddUInt32(field.message, field.descriptor, static_cast<uint32_t>(*number));
    } else if (!numbers && IsChoice(key, item.Scalar())) {
      reflection->AddString(field.message, field.descriptor, item.Scalar());
    } else {
      return Problem(key.path, Quoted(item), must, Nearest(item.Scalar(), key.choices));
    }
  }
}

void SpecReader::ReadKey(const SpecKey& key, const YAML::Node& value, v1::JobSpec* spec) {
  switch (key.kind) {
    case KeyKind::kBetas:
      return ReadBetas(key, value, spec);
    case KeyKind::kNodes:
      return ReadNodes(key, value, spec);
    case KeyKind::kModelConfig:
      return ReadModelConfig(key, value, spec);
    case KeyKind::kPaths:
      return ReadPaths(key, value, spec);
    case KeyKind::kIntegers:
    case KeyKind::kChoices:
      return ReadList(key, value, spec);
    default:
      break;
  }
  const Field field = FindField(key, spec);
  if (!value.IsScalar()) return Problem(key.path, Quoted(value), "a single value");
  const std::string& text = value.Scalar();
  const bool chosen = IsChoice(key, text);
  switch (key.kind) {
    case KeyKind::kString:
      return SetString(field, text);
    case KeyKind::kPath:
      return text.empty() ? Problem(key.path, "nothing", "a path")
                          : SetString(field, Absolute(text));
    case KeyKind::kPathOrWord:
      return text.empty() ? Problem(key.path, "nothing",
                                    "a path or one of " + absl::StrJoin(ChoicesOf(key), ", "))
                          : SetString(field, chosen ? text : Absolute(text));
    case KeyKind::kChoice:
      if (chosen) return SetString(field, text);
      return Problem(key.path, Quoted(value), "one of " + absl::StrJoin(ChoicesOf(key), ", "),
                     Nearest(text, key.choices));
    case KeyKind::kBytes: {
      const auto bytes = ParseBytes(text);
      if (bytes && *bytes >= key.low && *bytes <= key.high) return SetNumber(field, *bytes);
      return Problem(key.path, Quoted(value),
                     absl::StrCat("a size of at least ", key.low, " bytes"),
                     "a number with a unit, such as 512MiB or 80GiB");
    }
    case KeyKind::kBoolean:
      if (text == "true" || text == "false") return SetNumber(field, text == "true" ? 1 : 0);
      return Problem(key.path, Quoted(value), "true or false");
    default: {
      const auto number = ParseNumber(text);
      const bool real = key.kind == KeyKind::kReal;
      if (real ? number && *number >= key.low && *number <= key.high : IsInteger(key, number)) {
        return SetNumber(field, *number);
      }
      return Problem(key.path, Quoted(value), RangeText(key));
    }
  }
}

void SpecReader::Read(const YAML::Node& root, v1::JobSpec* spec) {
  Walk(root, "", 0);
  if (too_large_) {
    problems_ = {absl::StrCat("the spec: got more than ", kMaxNodes, " values or ", kMaxDepth,
                              " levels, must be smaller; try fewer aliases")};
    return;
  }
  for (const SpecKey& key : SpecKeys()) {
    const YAML::Node value = Lookup(root, key.path);
    if (value.IsDefined() && !value.IsNull()) {
      ReadKey(key, value, spec);
    } else if (key.required) {
      Problem(key.path, "nothing", std::string(key.meaning));
    } else if (!key.fallback.empty()) {
      if (MeansChosen(key)) {
        SetNumber(FindField(key, spec), *ParseNumber(std::string(key.fallback)));
      } else {
        ReadKey(key, YAML::Load(std::string(key.fallback)), spec);
      }
    }
  }
  if (problems_.empty()) ValidateSpec(*this, spec);
}

}  // namespace terrace
