// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/script_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Those that hold words.
std::vector<std::vector<std::string>> Commands(std::string_view text) {
  auto commands = ScriptWords(text).value();
  std::erase_if(commands, [](const auto& command) { return command.empty(); });
  return commands;
}

TEST(ScriptWordsTest, AnArrayOfFlagsIsACommandOfItsOwn) {
  EXPECT_THAT(
      Commands("MODEL_ARGS=(\n  --swiglu\n  --kv-channels 128 # no\n)\nDATA=(--lr 1e-4)\n"
               "torchrun --nnodes 2 train.py ${MODEL_ARGS[@]} \"${DATA[@]}\" $@ --bf16"),
      ElementsAre(ElementsAre("--swiglu", "--kv-channels", "128"), ElementsAre("--lr", "1e-4"),
                  ElementsAre("torchrun", "--nnodes", "2", "train.py", "--bf16")));
}

TEST(ScriptWordsTest, ATextOfFlagsIsToo) {
  EXPECT_THAT(
      Commands("GPT_ARGS=\"\n  --num-layers 24 \\\n  --fp16\n\"\n"
               "python train.py $GPT_ARGS --seed 1 | tee log 2>&1"),
      ElementsAre(ElementsAre("--num-layers", "24", "--fp16"),
                  ElementsAre("python", "train.py", "--seed", "1"), ElementsAre("tee", "log")));
}

TEST(ScriptWordsTest, VariablesThatWereSetArePutIn) {
  EXPECT_THAT(Commands("TP=4\nPATH_=/data/${TP}x\n--tp $TP --save=${PATH_}/c --lr ${LR:-1e-4} "
                       "--seed $SEED --pp ${TP:-1} --cost $5 '$' ${"),
              ElementsAre(ElementsAre("--tp", "4", "--save=/data/4x/c", "--lr", "1e-4", "--seed",
                                      "$SEED", "--pp", "4", "--cost", "$5", "$", "${")));
  EXPECT_THAT(Commands("A=1\n"), IsEmpty());
  EXPECT_THAT(Commands("--window a=b"), ElementsAre(ElementsAre("--window", "a=b")));
}

TEST(ScriptWordsTest, AVariableThatGrowsStaysBounded) {
  std::string text = "A=xxxxxxxx\n";
  for (int i = 0; i < 40; ++i) text += "A=$A$A$A\n";
  const auto commands = Commands(text + "--lr $A");
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_LT(commands[0][1].size(), 20'000u);
}

}  // namespace
}  // namespace terrace
