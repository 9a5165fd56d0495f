// SPDX-License-Identifier: Apache-2.0
#include "proto/report/plan_json.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/ascii.h"
#include "proto/report/message_json.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

std::string Lower(const std::string& name) { return absl::AsciiStrToLower(name); }

// With the names of job specs.
void AddLayoutNames(const v1::Layout& layout, Json* json) {
  (*json)["dp"] = layout.data_parallel();
  (*json)["tp"] = layout.tensor_parallel();
  (*json)["pp"] = layout.pipeline_parallel();
  (*json)["cp"] = layout.context_parallel();
  (*json)["zero"] = layout.zero_stage();
  (*json)["interleave"] = std::max<uint32_t>(1, layout.interleave());
  (*json)["gradient_accumulation"] = layout.micro_batches();
  const v1::Offload& offload = layout.offload();
  Json& places = (*json)["offload"];
  if (!places.is_object()) places = Json::object();
  for (const auto& [name, shares] :
       {std::pair("parameter", &offload.parameter()), std::pair("gradient", &offload.gradient()),
        std::pair("optimizer", &offload.optimizer()),
        std::pair("activation", &offload.activation())}) {
    const bool nowhere = shares->device() + shares->host() + shares->nvme() == 0;
    places[name] = {{"device", nowhere ? 1.0 : shares->device()},
                    {"host", shares->host()},
                    {"nvme", shares->nvme()}};
  }
}

Json ByClass(const std::map<v1::BufferClass, int64_t>& bytes) {
  Json json = Json::object();
  for (const auto& [cls, amount] : bytes) {
    json[cls == v1::BUFFER_CLASS_UNSPECIFIED ? "gaps" : Lower(v1::BufferClass_Name(cls))] = amount;
  }
  return json;
}

std::map<v1::BufferClass, int64_t> Sum(
    const google::protobuf::RepeatedPtrField<v1::MemoryLine>& lines) {
  std::map<v1::BufferClass, int64_t> bytes;
  for (const v1::MemoryLine& line : lines) bytes[line.class_()] += line.bytes();
  return bytes;
}

}  // namespace

std::string ModelName(const v1::ModelSpec& model, const std::string& family) {
  std::string_view path = model.config();
  if (path.empty() || path == "(inline)") return family;
  const auto take_last = [&path] {
    const size_t slash = path.find_last_of('/');
    const std::string_view last = slash == std::string_view::npos ? path : path.substr(slash + 1);
    path = slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
    return last;
  };
  std::string_view last = take_last();
  if (last == "config.json" && !path.empty()) last = take_last();
  if (last.size() > 5 && last.substr(last.size() - 5) == ".json") last.remove_suffix(5);
  return last.empty() ? family : std::string(last);
}

std::string PlanJson(const v1::Plan& plan, const PlanJsonExtras& extras) {
  Json json = MessageJson(plan);
  json["model"]["name"] = extras.model_name.empty() ? plan.model().family() : extras.model_name;
  AddLayoutNames(plan.layout(), &json["layout"]);
  for (int i = 0; i < plan.memory_size(); ++i) {
    json["memory"][i]["at_peak"] = ByClass(Sum(plan.memory(i).lines()));
    json["memory"][i]["max_by_class"] = ByClass(Sum(plan.memory(i).largest()));
    json["memory"][i].erase("largest");
  }
  for (int i = 0; i < plan.alternatives_size(); ++i) {
    AddLayoutNames(plan.alternatives(i).layout(), &json["alternatives"][i]["layout"]);
  }
  json["time"]["mfu_ratio"] = plan.time().mfu();
  json["search"]["seconds"] = extras.search_seconds;
  if (!extras.layers.empty()) json["layers"] = Json::parse(extras.layers)["layers"];
  if (!plan.has_nvme()) {
    json["nvme"] = {{"write_bytes_per_step", 0}, {"write_bytes_per_day", 0}};
  }
  if (!extras.error.empty()) {
    json["error"] = {{"code", "RESOURCE_EXHAUSTED"}, {"message", extras.error}};
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace terrace
