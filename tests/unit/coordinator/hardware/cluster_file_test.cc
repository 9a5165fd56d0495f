// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/hardware/cluster_file_keys.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

std::string Refusal(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(ClusterFileTest, WhatIsWrittenReplacesTheDevices) {
  const auto cluster = ParseClusterFile(
      "name: lab\nnodes: 4\ndevices_per_node: 2\n"
      "device: {like: h100, name: H800, memory: 64GiB, bf16_tflops: 800, overhead: 1GiB}\n"
      "links: {node: 160GB, network: ib-hdr200, network_latency_us: 20, host: pcie4}\n"
      "host: {memory: 512GiB, memory_bandwidth: 200GB}\n"
      "nvme: {read_bandwidth: 12GB, write_bandwidth: 6GB}\n");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const v1::HardwareProfile& profile = cluster->profile;
  EXPECT_EQ(cluster->name, "lab");
  EXPECT_EQ(profile.name(), "H800");
  EXPECT_EQ(cluster->device_memory_bytes, 64 * kGiB);
  EXPECT_EQ(cluster->overhead_bytes, kGiB);
  EXPECT_DOUBLE_EQ(profile.bf16_flops_per_second(), 800e12);
  EXPECT_DOUBLE_EQ(profile.links(0).bytes_per_second(), 160e9);
  EXPECT_LT(profile.links(1).bytes_per_second(), 25e9);
  EXPECT_DOUBLE_EQ(profile.links(1).latency_seconds(), 20e-6);
  EXPECT_DOUBLE_EQ(profile.to_host_bytes_per_second(), 28.8e9);
  EXPECT_DOUBLE_EQ(profile.nvme_write_bytes_per_second(), 3e9);
  EXPECT_DOUBLE_EQ(profile.host_memory_bytes_per_second(), 100e9);
}

TEST(ClusterFileTest, AllProblemsAreReportedWithTheirPlaces) {
  const std::string message = Refusal(ParseClusterFile("nodes: 0\n"
                                                       "device: {like: h100, memry: 80GiB}\n"
                                                       "links: {network: ib-ndr40}\n"
                                                       "nodes: 2\n")
                                          .status());
  EXPECT_THAT(message, HasSubstr("line 1, column 1: nodes: got \"0\", must be a whole number"));
  EXPECT_THAT(message, HasSubstr("line 2, column 22: device.memry: got an unknown key"));
  EXPECT_THAT(message, HasSubstr("try device.memory"));
  EXPECT_THAT(message, HasSubstr("did you mean 'ib-ndr400'"));
}

// Whatever is in the file, it is refused in words, at once.
TEST(ClusterFileTest, HostileFilesAreRefused) {
  const auto refusal = [](const std::string& yaml) {
    return Refusal(ParseClusterFile(yaml).status());
  };
  EXPECT_THAT(refusal(std::string(60000, '[')), Not(IsEmpty()));
  EXPECT_THAT(refusal("device: " + std::string(60000, '{')), Not(IsEmpty()));
  EXPECT_THAT(refusal("a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n"), HasSubstr("levels"));
  std::string laughs = "l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 7; ++i) {
    laughs += absl::StrCat("l", i, ": &l", i, " [");
    for (int k = 0; k < 10; ++k) laughs += absl::StrCat(k == 0 ? "" : ", ", "*l", i - 1);
    laughs += "]\n";
  }
  EXPECT_THAT(refusal(laughs), HasSubstr("values"));
  std::string many = "device: h100\n";
  for (int i = 0; i < 2000; ++i) many += absl::StrCat("k", i, ": 1\n");
  EXPECT_THAT(refusal(many), HasSubstr("values"));
  EXPECT_THAT(refusal("device: h100\ndevice: h200\n"), HasSubstr("device: got the key twice"));
  EXPECT_THAT(refusal("device: {like: h100}\ndevice: {memory: 80GiB}\n"),
              HasSubstr("line 2, column 1: device: got the key twice"));
  EXPECT_THAT(refusal("device: {like: h100, like: h200}\n"), HasSubstr("the key twice"));
  EXPECT_THAT(refusal("? [a, b]\n: c\n"), HasSubstr("plain word"));
  EXPECT_THAT(refusal("device: {? {a: b} : c}\n"), HasSubstr("plain keys"));
  EXPECT_THAT(refusal("device: h100\nlinks: [pcie5]\n"),
              HasSubstr("links: got a list, must be a mapping"));
  EXPECT_THAT(refusal("device: [h100]\n"), HasSubstr("a device by name or a mapping"));
  EXPECT_THAT(refusal("device: h100\nhost: 3TiB\n"), HasSubstr("host: got \"3TiB\""));
  EXPECT_THAT(refusal("device:\n"), HasSubstr("device"));
  EXPECT_THAT(refusal("device: h100\nnodes: {a: 1}\n"), HasSubstr("a single value"));
}

TEST(ClusterFileTest, NumbersThatCannotBeAreRefusedByKey) {
  const auto refusal = [](const std::string& line) {
    return Refusal(ParseClusterFile("device: {like: h100}\n" + line + "\n").status());
  };
  for (const char* value : {"-1", "0", "1.5", ".nan", "nan", "inf", "1e999", "16385", "''", "~",
                            "x", "99999999999999999999", "[2]"}) {
    EXPECT_THAT(refusal(absl::StrCat("nodes: ", value)), HasSubstr("nodes: got")) << value;
  }
  for (const char* value : {"-1GiB", "0", "nan", "1e999", "1KiB", "999999PiB", "80 apples"}) {
    EXPECT_THAT(refusal(absl::StrCat("host: {memory: ", value, "}")), HasSubstr("host.memory: got"))
        << value;
  }
  EXPECT_THAT(refusal("host: {memory: 1KiB}"), HasSubstr("from 1.0 GiB to"));
  for (const char* value : {"-45GB", "0", ".nan", "nvlink"}) {
    EXPECT_THAT(refusal(absl::StrCat("links: {node: ", value, "}")), HasSubstr("links.node: got"))
        << value;
  }
  for (const char* value : {"-3", ".nan", ".inf", "1e7"}) {
    EXPECT_THAT(refusal(absl::StrCat("links: {node_latency_us: ", value, "}")),
                HasSubstr("links.node_latency_us: got"))
        << value;
  }
}

TEST(ClusterFileTest, WhatIsNoClusterIsRefused) {
  EXPECT_THAT(Refusal(ParseClusterFile("[1, 2]").status()), HasSubstr("must be a mapping"));
  EXPECT_THAT(Refusal(ParseClusterFile("a: [").status()), HasSubstr("is not YAML"));
  EXPECT_THAT(Refusal(ParseClusterFile("nodes: 2\n").status()), HasSubstr("device.like"));
  EXPECT_THAT(Refusal(ParseClusterFile("device: h10\n").status()), HasSubstr("did you mean"));
  EXPECT_THAT(Refusal(ParseClusterFile("device: {like: h100, overhead: 900GiB}\n").status()),
              HasSubstr("device.overhead"));
  EXPECT_THAT(Refusal(ParseClusterFile(std::string(70000, '#')).status()), HasSubstr("at most"));
}

TEST(ClusterFileTest, WhatASpecWritesOfItsResourcesIsKnown) {
  EXPECT_TRUE(WrittenIn("resources: {nodes: 1}").nodes);
  EXPECT_FALSE(WrittenIn("resources: {nodes: 1}").devices_per_node);
  EXPECT_TRUE(WrittenIn("resources:\n  devices_per_node: 1\n").devices_per_node);
  for (const char* spec : {"", "[", "resources: 3", "resources: {nodes: }", "name: a", "- 1"}) {
    EXPECT_FALSE(WrittenIn(spec).nodes) << spec;
  }
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(ClusterSchemaTest, TheShippedSchemaIsTheGeneratedOne) {
  EXPECT_EQ(ReadFile(TERRACE_DOCS_FOLDER "/cluster.schema.json"), ClusterJsonSchema())
      << "regenerate it: terrace-coordinator schema --cluster > docs/cluster.schema.json";
}

// The smallest and the largest that the schema allows are what the reader takes.
TEST(ClusterSchemaTest, SaysOfEveryKeyWhatTheReaderAccepts) {
  const nlohmann::json schema = nlohmann::json::parse(ClusterJsonSchema());
  const std::string page = ReadFile(TERRACE_DOCS_FOLDER "/cluster.md");
  for (const ClusterKey& key : ClusterKeys()) {
    const std::string path(key.path);
    EXPECT_NE(page.find("`" + path + "`"), std::string::npos) << path;
    const size_t dot = path.find('.');
    nlohmann::json node = schema;
    if (dot != std::string::npos) {
      node = nlohmann::json(node["properties"][path.substr(0, dot)]);
      if (node.contains("anyOf")) node = nlohmann::json(node["anyOf"][1]);
    }
    node =
        nlohmann::json(node["properties"][dot == std::string::npos ? path : path.substr(dot + 1)]);
    ASSERT_EQ(node["description"], std::string(key.meaning)) << path;
    if (node.contains("anyOf"))
      node = nlohmann::json(node["anyOf"].back()["pattern"].is_null()
                                ? node["anyOf"].back()
                                : node["anyOf"][node["anyOf"].size() - 2]);
    if (!node.contains("minimum")) continue;
    const auto accepted = [&](const std::string& value) {
      const std::string written =
          dot == std::string::npos ? absl::StrCat("device: h100\n", path, ": ", value, "\n")
          : path.starts_with("device")
              ? absl::StrCat("device: {like: h100, ", path.substr(dot + 1), ": ", value, "}\n")
              : absl::StrCat("device: h100\n", path.substr(0, dot), ": {", path.substr(dot + 1),
                             ": ", value, "}\n");
      const absl::Status status = ParseClusterFile(written).status();
      return status.ok() || !absl::StrContains(status.message(), path + ": got \"");
    };
    EXPECT_TRUE(accepted(node["minimum"].dump())) << path;
    EXPECT_TRUE(accepted(node["maximum"].dump())) << path;
    const double most = node["maximum"].get<double>();
    EXPECT_FALSE(accepted(absl::StrCat(static_cast<int64_t>(most * 2)))) << path;
    EXPECT_FALSE(accepted("-1")) << path;
  }
}

TEST(ClusterSchemaTest, NamesAreThoseOfTheCatalogue) {
  const nlohmann::json schema = nlohmann::json::parse(ClusterJsonSchema());
  const nlohmann::json& names = schema["properties"]["device"]["anyOf"][0]["enum"];
  for (const nlohmann::json& name : names) {
    EXPECT_TRUE(FindDevice(name.get<std::string>()).ok()) << name;
  }
  EXPECT_GE(names.size(), 2 * Catalogue().size());
}

}  // namespace
}  // namespace terrace
