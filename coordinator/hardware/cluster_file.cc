// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/cluster_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/text/number_format.h"
#include "coordinator/hardware/cluster_file_keys.h"
#include "coordinator/spec/values.h"

namespace terrace {
namespace {

using Kind = ClusterKeyKind;

// Deeper than any cluster; yaml-cpp's own limit is far above.
constexpr int kDepthMax = 8;
constexpr int kValuesMax = 1000;

struct Written {
  std::string text;
  double number = 0;
  std::optional<CatalogueLink> link;
};

// Thread-compatible.
class ClusterReader {
 public:
  void Read(const YAML::Node& root) {
    std::set<std::string> seen;
    for (const auto& item : root) {
      const std::string name = item.first.IsScalar() ? item.first.Scalar() : "a key";
      if (!item.first.IsScalar()) {
        Problem(item.first.Mark(), name, "no word", "a plain word");
      } else if (!seen.insert(name).second) {
        Problem(item.first.Mark(), name, "the key twice", "given once");
      } else if (name == "device" && item.second.IsScalar()) {  // device: h100
        Value("device.like", item.first, item.second);
      } else if (IsSection(name)) {
        ReadSection(name, item.first, item.second);
      } else {
        Value(name, item.first, item.second);
      }
    }
  }

  const Written* Find(std::string_view path) const {
    const auto found = values_.find(std::string(path));
    return found == values_.end() ? nullptr : &found->second;
  }
  void Problem(const YAML::Mark& mark, std::string_view path, std::string_view got,
               std::string_view must, std::string_view way_out = {}) {
    std::string text = absl::StrCat("line ", mark.line + 1, ", column ", mark.column + 1, ": ",
                                    Absl(path), ": got ", Absl(got), ", must be ", Absl(must));
    if (!way_out.empty()) absl::StrAppend(&text, "; try ", Absl(way_out));
    problems_.push_back(std::move(text));
  }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void ReadSection(const std::string& name, const YAML::Node& key, const YAML::Node& section) {
    if (!section.IsMap()) {
      return Problem(key.Mark(), name, Quoted(section),
                     name == "device" ? "a device by name or a mapping" : "a mapping");
    }
    for (const auto& item : section) {
      if (!item.first.IsScalar()) {
        Problem(item.first.Mark(), name, "a key that is no word", "a mapping with plain keys");
        continue;
      }
      Value(absl::StrCat(name, ".", item.first.Scalar()), item.first, item.second);
    }
  }

  static bool IsSection(const std::string& name) {
    for (const ClusterKey& key : ClusterKeys()) {
      if (absl::StartsWith(Absl(key.path), name + ".")) return true;
    }
    return false;
  }

  void Value(const std::string& path, const YAML::Node& key_node, const YAML::Node& value) {
    const auto key = std::find_if(ClusterKeys().begin(), ClusterKeys().end(),
                                  [&](const ClusterKey& one) { return one.path == path; });
    if (key == ClusterKeys().end()) return Unknown(path, key_node);
    if (values_.contains(path)) {
      return Problem(key_node.Mark(), path, "the key twice", "given once");
    }
    if (!value.IsScalar()) return Problem(key_node.Mark(), path, Quoted(value), "a single value");
    Written written = {.text = value.Scalar()};
    if (Convert(*key, key_node, value, &written)) values_[path] = written;
  }

  void Unknown(const std::string& path, const YAML::Node& key_node) {
    std::vector<std::string_view> paths;
    std::vector<absl::string_view> names;
    for (const ClusterKey& key : ClusterKeys()) {
      paths.push_back(key.path);
      names.push_back(Absl(key.path));
    }
    Problem(key_node.Mark(), path, "an unknown key", "one of " + absl::StrJoin(names, ", "),
            Nearest(path, paths));
  }

  bool Convert(const ClusterKey& key, const YAML::Node& key_node, const YAML::Node& value,
               Written* written) {
    const YAML::Mark mark = key_node.Mark();
    if (key.kind == Kind::kName || key.kind == Kind::kDevice) {
      if (!written->text.empty()) return true;
      Problem(mark, key.path, "nothing", "a name");
      return false;
    }
    const bool bytes = key.kind == Kind::kBytes || key.kind == Kind::kLink;
    const auto number = bytes ? ParseBytes(written->text) : ParseNumber(written->text);
    const bool whole = key.kind != Kind::kCount || (number && *number == std::floor(*number));
    if (number && whole && *number >= key.low && *number <= key.high) {
      written->number = *number;
      return true;
    }
    if (key.kind == Kind::kLink && !number) return ConvertLink(key, mark, written);
    Problem(mark, key.path, Quoted(value),
            key.kind == Kind::kCount
                ? absl::StrCat("a whole number from ", key.low, " to ", key.high)
            : bytes ? absl::StrCat("a size (such as 80GiB) from ",
                                   FormatBytes(static_cast<int64_t>(key.low)), " to ",
                                   FormatBytes(static_cast<int64_t>(key.high)))
                    : absl::StrCat("a number from ", key.low, " to ", key.high));
    return false;
  }

  bool ConvertLink(const ClusterKey& key, const YAML::Mark& mark, Written* written) {
    const absl::StatusOr<CatalogueLink> link = FindLink(written->text, LinkKindOf(key));
    if (link.ok()) {
      written->link = *link;
      return true;
    }
    Problem(
        mark, key.path, absl::StrCat("\"", written->text, "\""),
        "bytes a second (such as 50GB) or a link by name: " + std::string(link.status().message()));
    return false;
  }

  std::map<std::string, Written> values_;
  std::vector<std::string> problems_;
};

// What the file writes over the device that it names.
CatalogueDevice DeviceOf(const ClusterReader& reader, CatalogueDevice device) {
  const auto over = [&](std::string_view path, double factor, double* target) {
    if (const Written* written = reader.Find(path)) *target = written->number * factor;
  };
  over("device.memory_bandwidth", 1, &device.memory_bytes_per_second);
  over("device.fp32_tflops", 1e12, &device.f32_flops_per_second);
  over("device.bf16_tflops", 1e12, &device.bf16_flops_per_second);
  over("device.fp8_tflops", 1e12, &device.fp8_flops_per_second);
  if (const Written* memory = reader.Find("device.memory")) {
    device.memory_bytes = static_cast<int64_t>(memory->number);
  }
  if (const Written* memory = reader.Find("host.memory")) {
    device.host_memory_bytes = static_cast<int64_t>(memory->number);
  }
  return device;
}

void SetLink(const ClusterReader& reader, std::string_view path, v1::LinkRate* rate) {
  const bool node = path == "links.node";
  if (const Written* link = reader.Find(path)) {
    if (link->link) *rate = node ? NodeRate(*link->link) : NetworkRate(*link->link);
    if (!link->link) rate->set_bytes_per_second(link->number);
  }
  if (const Written* latency = reader.Find(std::string(path) + "_latency_us")) {
    rate->set_latency_seconds(latency->number * 1e-6);
  }
}

void SetRates(const ClusterReader& reader, Cluster* cluster) {
  v1::HardwareProfile& profile = cluster->profile;
  SetLink(reader, "links.node", profile.mutable_links(0));
  SetLink(reader, "links.network", profile.mutable_links(1));
  profile.set_link_bytes_per_second(profile.links(0).bytes_per_second());
  profile.set_link_latency_seconds(profile.links(0).latency_seconds());
  if (const Written* host = reader.Find("links.host")) {
    const double rate = host->link ? host->link->bytes_per_second : host->number;
    profile.set_to_device_bytes_per_second(rate);
    profile.set_to_host_bytes_per_second(rate);
  }
  // The devices of a node share its memory and its drives.
  const double devices = cluster->devices_per_node;
  if (const Written* memory = reader.Find("host.memory_bandwidth")) {
    profile.set_host_memory_bytes_per_second(memory->number / devices);
  }
  if (const Written* read = reader.Find("nvme.read_bandwidth")) {
    profile.set_nvme_read_bytes_per_second(read->number / devices);
  }
  if (const Written* write = reader.Find("nvme.write_bandwidth")) {
    profile.set_nvme_write_bytes_per_second(write->number / devices);
  }
}

absl::StatusOr<Cluster> Build(const ClusterReader& reader) {
  const Written* like = reader.Find("device.like");
  if (like == nullptr) {
    return absl::InvalidArgumentError(
        "device.like: got nothing, must be a device of the catalogue that this one is like; try "
        "device: h100");
  }
  const absl::StatusOr<CatalogueDevice> known = FindDevice(like->text);
  if (!known.ok())
    return absl::InvalidArgumentError(absl::StrCat("device.like: ", known.status().message()));
  const CatalogueDevice device = DeviceOf(reader, *known);
  const auto count = [&](std::string_view path, uint32_t otherwise) {
    const Written* written = reader.Find(path);
    return written == nullptr ? otherwise : static_cast<uint32_t>(written->number);
  };
  Cluster cluster = ClusterOf(device, count("devices_per_node", 0), count("nodes", 1));
  if (const Written* name = reader.Find("device.name")) cluster.profile.set_name(name->text);
  if (const Written* name = reader.Find("name")) cluster.name = name->text;
  if (const Written* overhead = reader.Find("device.overhead")) {
    cluster.overhead_bytes = static_cast<int64_t>(overhead->number);
  }
  if (cluster.overhead_bytes >= cluster.device_memory_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("device.overhead: got ", cluster.overhead_bytes,
                                                   " bytes, must be less than the device's ",
                                                   cluster.device_memory_bytes));
  }
  SetRates(reader, &cluster);
  return cluster;
}

// What a few lines may unfold to: aliases count as often as they are used.
bool TooLarge(const YAML::Node& node, int depth, int* values) {
  if (depth > kDepthMax || ++*values > kValuesMax) return true;
  for (const auto& item : node) {
    const bool inner = node.IsMap() ? TooLarge(item.first, depth + 1, values) ||
                                          TooLarge(item.second, depth + 1, values)
                                    : TooLarge(item, depth + 1, values);
    if (inner) return true;
  }
  return false;
}

}  // namespace

// yaml-cpp throws; this is the edge where its exceptions become a status.
absl::StatusOr<Cluster> ParseClusterFile(std::string_view yaml) {
  if (static_cast<int64_t>(yaml.size()) > kClusterBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the cluster: got ", yaml.size(),
                                                   " bytes, must be at most ", kClusterBytesMax));
  }
  ClusterReader reader;
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(
          "line 1, column 1: the cluster: got no mapping, must be a mapping of keys (nodes, "
          "devices_per_node, device, links, ...)");
    }
    if (int values = 0; TooLarge(root, 0, &values)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the cluster: got more than ", kValuesMax, " values or ", kDepthMax,
                       " levels, must be smaller; try fewer aliases"));
    }
    reader.Read(root);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("line ", error.mark.line + 1, ", column ",
                                                   error.mark.column + 1,
                                                   ": the cluster: is not YAML: ", error.msg));
  }
  if (!reader.problems().empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(reader.problems(), "\n"));
  }
  return Build(reader);
}

WrittenCounts WrittenIn(std::string_view spec_yaml) {
  try {
    const YAML::Node root = YAML::Load(std::string(spec_yaml));
    if (!root.IsMap() || !root["resources"].IsMap()) return {};
    const YAML::Node resources = root["resources"];
    const auto written = [&resources](const char* key) {
      return resources[key].IsDefined() && !resources[key].IsNull();
    };
    return {.nodes = written("nodes"), .devices_per_node = written("devices_per_node")};
  } catch (const YAML::Exception&) {
    return {};
  }
}

}  // namespace terrace
