// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/tokenize.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "worker/data/token_segment.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

class TokenizeToolTest : public ::testing::Test {
 protected:
  TokenizeToolTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    Put("a.txt", "hello");
    Put("b.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    args_ = {.tokenizer = std::string(TERRACE_TESTDATA) + "/gpt2.json",
             .output_path = folder_ + "/out.bin",
             .files = {folder_ + "/a.txt", folder_ + "/b.jsonl"}};
  }
  ~TokenizeToolTest() override { std::filesystem::remove_all(folder_); }

  void Put(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  int Run(ToolFormat format = ToolFormat::kJson, bool terminal = false) {
    out_.str("");
    err_.str("");
    return RunTokenizeTool(
        args_, {.format = format, .out = out_, .err = err_, .err_is_terminal = terminal});
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  std::string folder_;
  TokenizeArgs args_;
  std::ostringstream out_, err_;
};

TEST_F(TokenizeToolTest, TheFileReadsBackAndTheAnswerCountsIt) {
  ASSERT_EQ(Run(), 0) << out_.str();
  const nlohmann::json answer = nlohmann::json::parse(out_.str());
  EXPECT_EQ(answer["documents"], "3");
  EXPECT_EQ(answer["dtype"], "uint16");
  EXPECT_EQ(answer["max_id"], "560") << "end of text";
  EXPECT_EQ(answer["files"].size(), 2u);
  const TokenSegment segment = OpenTokenFile(args_.output_path, 561).value();
  EXPECT_EQ(std::to_string(segment.count), answer["tokens"].get<std::string>());
  EXPECT_EQ(segment.At(segment.count - 1), 560u);
  EXPECT_EQ(std::filesystem::file_size(args_.output_path), 1024u + 2 * segment.count);
  EXPECT_THAT(Names(), ::testing::UnorderedElementsAre("a.txt", "b.jsonl", "out.bin"))
      << "nothing else stays";
}

TEST_F(TokenizeToolTest, WhatIsReadIsNotReplaced) {
  std::filesystem::create_hard_link(folder_ + "/b.jsonl", folder_ + "/same");
  args_.tokenizer = folder_ + "/tokenizer.json";
  std::filesystem::copy_file(std::string(TERRACE_TESTDATA) + "/gpt2.json", args_.tokenizer);
  for (const std::string& input : {folder_ + "/a.txt", folder_ + "/same", args_.tokenizer}) {
    const auto bytes = std::filesystem::file_size(input);
    args_.output_path = input;
    EXPECT_EQ(Run(ToolFormat::kTable), 4);
    EXPECT_THAT(err_.str(), HasSubstr("--output: got " + input + ", must not be"));
    EXPECT_EQ(std::filesystem::file_size(input), bytes);
  }
}

TEST_F(TokenizeToolTest, WhatLiesBesideTheOutputStays) {
  std::filesystem::create_directory(args_.output_path + ".cache");
  Put("out.bin.cache/precious", "precious");
  ASSERT_EQ(Run(), 0) << out_.str();
  EXPECT_TRUE(std::filesystem::exists(args_.output_path + ".cache/precious"));
}

TEST_F(TokenizeToolTest, WhatIsNoFileIsNotReplaced) {
  args_.output_path = folder_ + "/fifo";
  ASSERT_EQ(::mkfifo(args_.output_path.c_str(), 0600), 0);
  EXPECT_EQ(Run(ToolFormat::kTable), 4);
  EXPECT_THAT(err_.str(), HasSubstr("fifo: it is a FIFO, must be a file or not there"));
  EXPECT_TRUE(std::filesystem::is_fifo(args_.output_path));
}

TEST_F(TokenizeToolTest, RawIsNothingButTokens) {
  args_.format = "raw";
  args_.tokenizer = "bytes";
  ASSERT_EQ(Run(ToolFormat::kTable), 0) << err_.str();
  EXPECT_EQ(std::filesystem::file_size(args_.output_path), 2u * 11);
  EXPECT_THAT(out_.str(), HasSubstr("11 tokens (uint16, raw)"));
}

TEST_F(TokenizeToolTest, AKeptCacheIsUsedAgain) {
  args_.cache = folder_ + "/cache";
  ASSERT_EQ(Run(), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\"cached\":false"));
  ASSERT_EQ(Run(), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\"cached\":true"));
}

TEST_F(TokenizeToolTest, ABarIsForTerminalsOnly) {
  ASSERT_EQ(Run(ToolFormat::kTable, true), 0);
  EXPECT_THAT(err_.str(), HasSubstr("tokenising a.txt [####"));
  ASSERT_EQ(Run(ToolFormat::kTable, false), 0);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(TokenizeToolTest, ExitCodesTellWhatWentWrong) {
  args_.format = "csv";
  EXPECT_EQ(Run(), 2);
  args_.format = "llmc";
  args_.files = {folder_ + "/none.txt"};
  EXPECT_EQ(Run(), 3);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["error"]["code"], "NOT_FOUND");
  Put("bad.jsonl", "{}");
  args_.files = {folder_ + "/bad.jsonl"};
  EXPECT_EQ(Run(ToolFormat::kTable), 4);
  EXPECT_THAT(err_.str(), HasSubstr("bad.jsonl:1: no field \"text\""));
  args_.files = {folder_ + "/a.csv"};
  EXPECT_EQ(Run(), 4);
  args_.files.clear();
  EXPECT_EQ(Run(), 2);
  EXPECT_FALSE(std::filesystem::exists(args_.output_path));
}

}  // namespace
}  // namespace terrace
