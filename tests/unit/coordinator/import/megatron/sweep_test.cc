// Every flag of Megatron-LM in tests/data/megatron_flags.txt, beside those of a small Llama, is
// mapped, automatic here, said not to exist here, or refused by name: none is unknown, and none is
// passed over in silence.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/import/megatron/megatron.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

constexpr char kLlama[] =
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 1024 "
    "--max-position-embeddings 1024 --vocab-size 32000 --micro-batch-size 2 "
    "--global-batch-size 16 --train-iters 100 --lr 1e-4 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear";

TEST(MegatronSweepTest, EveryFlagIsAccountedFor) {
  std::ifstream file(TERRACE_TEST_DATA "/megatron_flags.txt");
  int refused = 0, told = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    const std::string setting = "--" + line.substr(0, line.find(' '));
    const auto draft = ImportMegatron(absl::StrCat(kLlama, " --", line), {.train = "corpus.txt"});
    if (!draft.ok()) {
      EXPECT_THAT(std::string(draft.status().message()), testing::HasSubstr(setting));
      ++refused;
      continue;
    }
    const auto& settings = draft->settings();
    const auto found =
        std::find_if(settings.begin(), settings.end(),
                     [&](const ImportedSetting& one) { return one.setting == setting; });
    ASSERT_NE(found, settings.end()) << setting;
    EXPECT_NE(found->fate, Fate::kUnknown) << setting << ": " << found->note;
    EXPECT_TRUE(ParseJobSpec(draft->Yaml(), "/tmp").ok()) << setting << "\n" << draft->Yaml();
    ++told;
  }
  EXPECT_GT(told, 350);
  EXPECT_GT(refused, 8);
}

}  // namespace
}  // namespace terrace
