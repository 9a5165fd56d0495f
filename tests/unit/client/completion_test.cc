// SPDX-License-Identifier: Apache-2.0
#include "client/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace terrace {
namespace {

const std::vector<CommandWords> kCommands = {{"run", "Train", {"--state-dir"}, {}},
                                             {"ckpt", "Checkpoints", {}, {"ls", "verify"}}};

// What bash itself offers for the words typed so far.
std::string BashOffers(const std::string& words, int index) {
  const std::string path = testing::TempDir() + "/terrace_completion.bash";
  std::ofstream(path) << CompletionScript("bash", kCommands) << "\nCOMP_WORDS=(" << words
                      << ")\nCOMP_CWORD=" << index << "\n_terrace\necho \"${COMPREPLY[@]}\"\n";
  FILE* pipe = popen(("cd / && bash " + path).c_str(), "r");
  char line[4096] = {};
  const bool read = fgets(line, sizeof line, pipe) != nullptr;
  pclose(pipe);
  return read ? line : "";
}

TEST(CompletionTest, BashOffersCommandsThenTheirWords) {
  EXPECT_EQ(BashOffers("terrace r", 1), "run\n");
  EXPECT_EQ(BashOffers("terrace ckpt ver", 2), "verify\n");
  EXPECT_EQ(BashOffers("terrace run --st", 2), "--state-dir\n");
}

TEST(CompletionTest, OtherShells) {
  EXPECT_THAT(CompletionScript("zsh", kCommands), testing::HasSubstr("bashcompinit"));
  EXPECT_THAT(CompletionScript("fish", kCommands),
              testing::HasSubstr("__fish_seen_subcommand_from run' -l state-dir"));
  EXPECT_EQ(CompletionScript("tcsh", kCommands), "");
}

}  // namespace
}  // namespace terrace
