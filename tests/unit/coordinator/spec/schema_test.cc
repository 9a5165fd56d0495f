// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_split.h"
#include "base/strings.h"
#include "coordinator/spec/job_spec.h"
#include "coordinator/spec/keys.h"

namespace terrace {
namespace {

TEST(SchemaTest, EveryKeyOfTheTableIsThereWithItsMeaning) {
  const nlohmann::json schema = nlohmann::json::parse(JobSpecJsonSchema());
  for (const SpecKey& key : SpecKeys()) {
    nlohmann::json node = schema;
    for (absl::string_view part : absl::StrSplit(Absl(key.path), '.')) {
      if (node.contains("anyOf")) node = nlohmann::json(node["anyOf"][1]);
      node = nlohmann::json(node["properties"][std::string(part)]);
      ASSERT_FALSE(node.is_null()) << key.path;
    }
    EXPECT_EQ(node["description"], std::string(key.meaning)) << key.path;
  }
}

TEST(SchemaTest, RequiredKeysAreRequired) {
  const nlohmann::json schema = nlohmann::json::parse(JobSpecJsonSchema());
  EXPECT_EQ(schema["required"], nlohmann::json({"name", "model", "data", "train"}));
  EXPECT_EQ(schema["properties"]["train"]["required"], nlohmann::json({"global_batch"}));
  EXPECT_FALSE(schema["properties"]["train"]["additionalProperties"].get<bool>());
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(SchemaTest, TheShippedSchemaIsTheGeneratedOne) {
  EXPECT_EQ(ReadFile(TERRACE_DOCS_FOLDER "/job.schema.json"), JobSpecJsonSchema())
      << "regenerate it: terrace-coordinator schema > docs/job.schema.json";
}

TEST(SchemaTest, TheReferencePageNamesEveryKeyAndItsMeaning) {
  const std::string page = ReadFile(TERRACE_DOCS_FOLDER "/spec.md");
  for (const SpecKey& key : SpecKeys()) {
    EXPECT_NE(page.find("| `" + std::string(key.path) + "` |"), std::string::npos) << key.path;
    EXPECT_NE(page.find(std::string(key.meaning)), std::string::npos) << key.path;
  }
}

}  // namespace
}  // namespace terrace
