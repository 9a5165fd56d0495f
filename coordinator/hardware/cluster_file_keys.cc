// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/cluster_file_keys.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "base/strings.h"
#include "coordinator/hardware/cluster.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ClusterKeyKind;

Json Size(const ClusterKey& key) {
  return {{"anyOf",
           {{{"type", "integer"},
             {"minimum", static_cast<int64_t>(key.low)},
             {"maximum", static_cast<int64_t>(key.high)}},
            {{"type", "string"}, {"pattern", "^[0-9._eE+]+ ?([KMGTP]i?)?B?$"}}}}};
}

// In the case of the catalogue, and in lower case as people write them.
Json Devices() {
  Json names = Json::array();
  for (const CatalogueDevice& device : Catalogue()) {
    names.push_back(std::string(device.name));
    names.push_back(absl::AsciiStrToLower(Absl(device.name)));
    for (const std::string_view alias : device.aliases) names.push_back(std::string(alias));
  }
  return {{"enum", names}};
}

Json Links(const ClusterKey& key) {
  Json names = Json::array();
  for (const CatalogueLink& link : LinkCatalogue()) {
    if (link.kind == LinkKindOf(key)) names.push_back(std::string(link.name));
  }
  Json schema = Size(key);
  schema["anyOf"].insert(schema["anyOf"].begin(), Json{{"enum", names}});
  return schema;
}

Json KeySchema(const ClusterKey& key) {
  switch (key.kind) {
    case Kind::kName:
      return {{"type", "string"}, {"minLength", 1}};
    case Kind::kDevice:
      return Devices();
    case Kind::kCount:
      return {{"type", "integer"},
              {"minimum", static_cast<int64_t>(key.low)},
              {"maximum", static_cast<int64_t>(key.high)}};
    case Kind::kReal:
      return {{"type", "number"}, {"minimum", key.low}, {"maximum", key.high}};
    case Kind::kBytes:
      return Size(key);
    case Kind::kLink:
      return Links(key);
  }
  return Json::object();
}

}  // namespace

const std::vector<ClusterKey>& ClusterKeys() {
  static const auto* keys = new std::vector<ClusterKey>{
      {"name", Kind::kName, 0, 0, "what messages call the cluster"},
      {"nodes", Kind::kCount, 1, kClusterNodesMax, "nodes, all alike"},
      {"devices_per_node", Kind::kCount, 1, kNodeDevicesMax, "devices of a node"},
      {"device.like", Kind::kDevice, 0, 0,
       "the device of the catalogue whose kernels and numbers count where nothing is written"},
      {"device.name", Kind::kName, 0, 0, "what plans call the device"},
      {"device.memory", Kind::kBytes, 1 << 30, 1e15, "bytes of one device"},
      {"device.memory_bandwidth", Kind::kBytes, 1e9, 1e15, "bytes a second, of the datasheet"},
      {"device.fp32_tflops", Kind::kReal, 0.1, 1e6, "dense peak"},
      {"device.bf16_tflops", Kind::kReal, 0.1, 1e6, "dense peak"},
      {"device.fp8_tflops", Kind::kReal, 0.1, 1e6, "dense peak"},
      {"device.overhead", Kind::kBytes, 0, 1e12, "bytes outside the arena: driver, communicators"},
      {"links.node", Kind::kLink, 1e6, 1e14,
       "between the devices of a node: a link by name, or bytes a second of one device and "
       "direction as collectives reach them"},
      {"links.network", Kind::kLink, 1e5, 1e14, "between nodes, in the same way"},
      {"links.host", Kind::kLink, 1e6, 1e14, "between a device and its host, in the same way"},
      {"links.node_latency_us", Kind::kReal, 0, 1e6, "microseconds of one hop in a node"},
      {"links.network_latency_us", Kind::kReal, 0, 1e6, "microseconds of one hop between nodes"},
      {"host.memory", Kind::kBytes, 1 << 30, 1e15, "bytes of a node"},
      {"host.memory_bandwidth", Kind::kBytes, 1e9, 1e15, "bytes a second of a node"},
      {"nvme.read_bandwidth", Kind::kBytes, 1e6, 1e13, "bytes a second of a node"},
      {"nvme.write_bandwidth", Kind::kBytes, 1e6, 1e13, "bytes a second of a node"},
  };
  return *keys;
}

CatalogueLink::Kind LinkKindOf(const ClusterKey& key) {
  if (key.path == "links.node") return CatalogueLink::Kind::kNode;
  return key.path == "links.host" ? CatalogueLink::Kind::kHost : CatalogueLink::Kind::kNetwork;
}

std::string ClusterJsonSchema() {
  const Json section = {
      {"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Terrace cluster"}};
  root.update(section);
  root["required"] = {"device"};
  for (const ClusterKey& key : ClusterKeys()) {
    const size_t dot = key.path.find('.');
    Json* properties = &root["properties"];
    if (dot != std::string_view::npos) {
      Json& inner = (*properties)[std::string(key.path.substr(0, dot))];
      if (inner.is_null()) inner = section;
      properties = &inner["properties"];
    }
    Json schema = KeySchema(key);
    schema["description"] = std::string(key.meaning);
    (*properties)[std::string(
        dot == std::string_view::npos ? key.path : key.path.substr(dot + 1))] = std::move(schema);
  }
  Json& device = root["properties"]["device"];
  device["required"] = {"like"};
  device = {{"anyOf", {Devices(), device}}};  // device: h100
  return root.dump(2) + "\n";
}

}  // namespace terrace
