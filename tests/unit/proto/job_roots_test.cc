// SPDX-License-Identifier: Apache-2.0
#include "proto/job_roots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class JobRootsTest : public testing::Test {
 protected:
  JobRootsTest() {
    std::string folder = testing::TempDir() + "job_roots_XXXXXX";
    folder_ = mkdtemp(folder.data());
    for (const char* name : {"data", "checkpoints", "cache", "scratch"})
      fs::create_directory(At(name));
    for (const char* name : {"data/a.txt", "data/tokenizer.json"}) std::ofstream(At(name)) << "x";
    roots_ = {{At("data")}, {At("checkpoints")}, {At("cache")}, {At("scratch")}};
    spec_.mutable_data()->add_train(At("data/a.txt"));
    spec_.mutable_data()->set_tokenizer(At("data/tokenizer.json"));
    spec_.mutable_data()->set_cache(At("cache/tokens"));
    spec_.mutable_model()->set_init("random");
    spec_.mutable_checkpoint()->set_directory(At("checkpoints/a"));
    spec_.mutable_resources()->mutable_nvme()->add_paths(At("scratch"));
  }
  ~JobRootsTest() override { fs::remove_all(folder_); }

  std::string At(const std::string& name) const { return folder_ + "/" + name; }
  std::string Refusal() const {
    const absl::Status status = CheckPathsOf(spec_, roots_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  std::string folder_;
  JobRoots roots_;
  v1::JobSpec spec_;
};

TEST_F(JobRootsTest, PathsBelowTheirRootsAreAdmitted) {
  EXPECT_TRUE(CheckRoots(roots_).ok());
  EXPECT_TRUE(CheckPathsOf(spec_, roots_).ok()) << CheckPathsOf(spec_, roots_);
  spec_.mutable_model()->set_init(At("checkpoints/other/step-1"));
  EXPECT_TRUE(CheckPathsOf(spec_, roots_).ok()) << "weights may come from a checkpoint";
}

TEST_F(JobRootsTest, WithoutRootsPathsLeadAnywhere) {
  spec_.mutable_data()->add_train("/etc/passwd");
  EXPECT_TRUE(CheckPathsOf(spec_, {}).ok());
}

// Each field by a path that lies below another's root, or below none.
TEST_F(JobRootsTest, EachFieldIsRefusedByItsName) {
  using Change = std::function<void(v1::JobSpec&, const std::string&)>;
  const std::vector<std::pair<std::string, Change>> fields = {
      {"data.train", [](auto& spec, auto& path) { spec.mutable_data()->add_train(path); }},
      {"data.validation",
       [](auto& spec, auto& path) { spec.mutable_data()->add_validation(path); }},
      {"data.tokenizer", [](auto& spec, auto& path) { spec.mutable_data()->set_tokenizer(path); }},
      {"data.chat_template",
       [](auto& spec, auto& path) { spec.mutable_data()->set_chat_template(path); }},
      {"data.cache", [](auto& spec, auto& path) { spec.mutable_data()->set_cache(path); }},
      {"model.init", [](auto& spec, auto& path) { spec.mutable_model()->set_init(path); }},
      {"model.lora.init",
       [](auto& spec, auto& path) { spec.mutable_model()->mutable_lora()->set_init(path); }},
      {"checkpoint.directory",
       [](auto& spec, auto& path) { spec.mutable_checkpoint()->set_directory(path); }},
      {"resources.nvme.paths",
       [](auto& spec, auto& path) { spec.mutable_resources()->mutable_nvme()->add_paths(path); }}};
  for (const auto& [field, change] : fields) {
    const v1::JobSpec before = spec_;
    change(spec_, "/etc/shadow");
    EXPECT_THAT(Refusal(), HasSubstr(field + ": got /etc/shadow, which lies below none of "));
    EXPECT_THAT(Refusal(), HasSubstr("-root"));
    spec_ = before;
  }
}

TEST_F(JobRootsTest, OneKindOfRootClosesTheOthers) {
  roots_ = {.data = {At("data")}};
  spec_.clear_resources();
  EXPECT_THAT(Refusal(), HasSubstr("there is no --cache-root"));
  spec_.mutable_data()->set_train(0, At("data/a.bin"));  // nothing is tokenised
  EXPECT_THAT(Refusal(), HasSubstr("checkpoint.directory: got " + At("checkpoints/a")));
}

TEST_F(JobRootsTest, ALinkOutOfARootIsRefused) {
  fs::create_symlink("/etc/passwd", At("data/link.txt"));
  spec_.mutable_data()->add_train(At("data/link.txt"));
  EXPECT_THAT(Refusal(), HasSubstr("leads out of " + At("data")));
}

TEST_F(JobRootsTest, RootsAreFoldersWithAbsolutePaths) {
  for (const std::string& root : {std::string("data"), At("absent"), At("data/a.txt")}) {
    roots_.checkpoint = {root};
    EXPECT_THAT(std::string(CheckRoots(roots_).message()),
                HasSubstr("--checkpoint-root: got " + root));
  }
}

}  // namespace
}  // namespace terrace
