// SPDX-License-Identifier: Apache-2.0
#include "proto/report/sequence_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/report/program_text.h"
#include "tests/unit/proto/program/loop_program.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(SequenceTextTest, ALoopReadsLikeThis) {
  LoopProgram made({.micro_batches = 512});
  std::string text;
  AppendSequence(made.program(), made.program().sequences(0), &text);
  EXPECT_EQ(text, R"(
sequence train  17 instructions, 2,562 executed
id      stream   phase      layer   mb  op            operands                        waits                                     text
0000    inputs   forward        -    0  load_batch    w:tokens[-1]                                                              load
0001    inputs   forward        -    1  load_batch    w:tokens[0]                                                               load
0002    compute  forward        0    0  fill          w:mb.layer0.x[-1]               after 0000                                forward
0003    compute  forward        -    0  squared_norm  r:tokens[-1] w:norms                                                      squared_norm
0004    compute  backward       -    0  cast          r:weights w:gradients                                                     backward
0005    to_host  forward        -    0  to_host 20 B  r:mb.layer0.x[-1] w:kept[-1]    after 0002                                keep
loop 510 times, micro-batches 1 to 511
0006    inputs   forward        -  i+2  load_batch    w:tokens[i+1]                   after 0008 of the iteration before        load
0007    compute  forward        0  i+1  fill          w:mb.layer0.x[i]                after 0006 of the iteration before, 0010 of 2 iterations before  forward
0008    compute  forward        -  i+1  squared_norm  r:tokens[i] w:norms+4i+4                                                  squared_norm
0009    compute  backward       -  i+1  add           r:weights u:gradients                                                     backward
0010    to_host  forward        -  i+1  to_host 20 B  r:mb.layer0.x[i] w:kept[i]      after 0007                                keep
end of loop
0011    compute  forward        0  511  fill          w:mb.layer0.x[510]              after 0006, 0010 of the iteration before the last  forward
0012    compute  forward        -  511  squared_norm  r:tokens[510] w:norms+2044                                                squared_norm
0013    compute  backward       -  511  add           r:weights u:gradients                                                     backward
0014    to_host  forward        -  511  to_host 20 B  r:mb.layer0.x[510] w:kept[510]  after 0011                                keep
0015    compute  optimizer      -    -  sum           r:norms w:sum                                                             sum
0016    compute  optimizer      -    -  add           r:gradients u:weights                                                     add
)");
}

TEST(SequenceTextTest, TheHeadCountsWhatIsExecuted) {
  LoopProgram made({.micro_batches = 512});
  EXPECT_THAT(ProgramText(made.program()), HasSubstr("17 instructions, 2,562 executed\n"));
  made.program().mutable_sequences(0)->clear_loops();
  EXPECT_THAT(ProgramText(made.program()), HasSubstr("threads 1  17 instructions\n"));
}

TEST(SequenceTextTest, ABufferOfALoopLivesWhereAnyOfItsValuesDoes) {
  LoopProgram made;
  const std::string text = ProgramText(made.program());
  EXPECT_THAT(text, testing::ContainsRegex("tokens.0 .*train 0000..0012"));
  EXPECT_THAT(text, testing::ContainsRegex("tokens.1 .*train 0000..0012"));
}

TEST(SequenceTextTest, NamesOfSlotsMayDifferInTheirMiddle) {
  LoopProgram made;
  made.program().mutable_buffers(LoopProgram::kX)->set_name("mb0.layer0.x");
  made.program().mutable_buffers(LoopProgram::kX + 1)->set_name("mb1.layer0.x");
  EXPECT_THAT(ProgramText(made.program()), HasSubstr("r:mb.layer0.x[i] w:kept[i]"));
}

TEST(SequenceTextTest, LoopsAndSlotsThatLieAreShownNotFollowed) {
  LoopProgram made;
  v1::Sequence* train = made.program().mutable_sequences(0);
  train->mutable_loops(0)->set_count(4'000'000'000u);
  train->mutable_instructions(7)->mutable_operands(0)->set_slots(4'000'000'000u);
  const std::string text = ProgramText(made.program());
  EXPECT_THAT(text, HasSubstr("w:?4[0]"));
  EXPECT_THAT(text, Not(HasSubstr("end of loop")));
}

}  // namespace
}  // namespace terrace
