// SPDX-License-Identifier: Apache-2.0
#include "proto/report/program_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text/number_format.h"
#include "base/text/text_table.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(FormatBytesTest, UnitsAreBinaryWithOneDecimal) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(12 << 10), "12.0 KiB");
  EXPECT_EQ(FormatBytes(int64_t{61} * (1 << 30) + (1 << 28)), "61.2 GiB");
}

TEST(FormatBytesTest, RoundingGoesToTheNextUnit) {
  EXPECT_EQ(FormatBytes((int64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8192.0 PiB");
  EXPECT_EQ(FormatBytes(-2048), "-2.0 KiB");
}

TEST(TextTableTest, ColumnsAreAsWideAsTheirWidestCellAndEmptyOnesVanish) {
  TextTable table({{}, {}, {.align = TextTable::Align::kRight}}, 1);
  table.Add({"a", "", "1"});
  table.Add({"bcd", "", "234"});
  std::string text;
  table.AppendTo(&text);
  EXPECT_EQ(text, " a      1\n bcd  234\n");
}

TEST(TextTableTest, AWideCellPushesOnlyItsOwnLine) {
  TextTable table({{.width_max = 3}, {}}, 0);
  table.Add({"abcdef", "x"});
  table.Add({"ab", "x"});
  std::string text;
  table.AppendTo(&text);
  EXPECT_EQ(text, "abcdef  x\nab   x\n");
}

v1::Program Tiny() {
  v1::Program program;
  program.set_job("tiny");
  program.set_stages(1);
  program.set_ranks(2);
  program.set_threads(1);
  v1::Arena* arena = program.add_arenas();
  arena->set_tier(v1::DEVICE);
  arena->set_bytes(1024);
  arena->set_lower_bound_bytes(1000);
  v1::Buffer* buffer = program.add_buffers();
  buffer->set_name("weights");
  buffer->set_class_(v1::PARAMETER);
  buffer->set_dtype(v1::F32);
  buffer->add_shape(64);
  buffer->set_bytes(256);
  buffer->set_lifetime(v1::PERSISTENT);
  *program.add_buffers() = *buffer;
  program.mutable_buffers(1)->set_id(1);
  program.mutable_buffers(1)->set_name("x");
  program.mutable_buffers(1)->set_class_(v1::ACTIVATION);
  program.mutable_buffers(1)->set_lifetime(v1::STEP);
  program.mutable_buffers(1)->set_sequence("train");
  program.mutable_buffers(1)->set_offset(256);
  program.add_streams()->set_name("compute");
  program.add_streams()->set_name("dp");
  program.mutable_grid()->set_data_shard(2);
  program.add_groups()->set_name("data");
  program.mutable_groups(0)->add_axes(v1::DATA_SHARD);
  v1::Sequence* train = program.add_sequences();
  train->set_name("train");
  v1::Instruction* cast = train->add_instructions();
  cast->mutable_compute()->set_op("cast");
  cast->set_phase(v1::FORWARD);
  cast->set_layer(3);
  cast->set_micro_batch(0);
  cast->set_text("copy");
  v1::Operand* in = cast->add_operands();
  in->set_access(v1::READ);
  in->set_offset(16);
  cast->add_operands();
  v1::Operand* out = cast->add_operands();
  out->set_access(v1::WRITE);
  out->set_buffer(1);
  v1::Instruction* reduce = train->add_instructions();
  reduce->set_id(1);
  reduce->set_stream(1);
  reduce->add_waits(0);
  reduce->set_layer(-1);
  reduce->set_micro_batch(-1);
  reduce->set_phase(v1::OPTIMIZER_STEP);
  reduce->mutable_collective()->set_kind(v1::ALL_REDUCE);
  *reduce->add_operands() = *out;
  reduce->mutable_operands(0)->set_access(v1::UPDATE);
  program.add_sequences()->set_name("eval");
  return program;
}

TEST(ProgramTextTest, PagesOfAnArenaAreListedAfterIt) {
  v1::Program program = Tiny();
  EXPECT_THAT(ProgramText(program), Not(HasSubstr("pages ")));
  v1::Arena* arena = program.mutable_arenas(0);
  arena->set_bytes(8 * 4096);
  arena->set_page_bytes(4096);
  for (const int64_t page : {5, 1}) arena->add_aliases()->set_page(page);
  arena->mutable_aliases(0)->set_pages(2);
  arena->mutable_aliases(1)->set_pages(1);
  EXPECT_THAT(ProgramText(program),
              HasSubstr("pages    of 4096 bytes, again from 0x00008000 on: 5-6, 1\n"));
}

TEST(ProgramTextTest, AProgramReadsLikeThis) {
  EXPECT_EQ(ProgramText(Tiny()),
            R"(program tiny  stage 0 of 1  ranks 2  threads 1  2 instructions
grid      data_shard 2
arena 0   device  1024 bytes (1.0 KiB)  2.40 % over the lower bound
outside   0 B  limit none
streams   compute dp
group     data  over data_shard  2 ranks

buffers  2
id  buffer   class       type  shape  arena  offset      bytes  life
 0  weights  parameter   f32   [64]       0  0x00000000    256  persistent
 1  x        activation  f32   [64]       0  0x00000100    256  train 0000..0001

sequence train  2 instructions
id    stream   phase      layer  mb  op               operands            waits       text
0000  compute  forward        3   0  cast             r:weights+16 - w:x              copy
0001  dp       optimizer      -   -  all_reduce data  u:x                 after 0000

sequence eval  0 instructions
id  stream  phase  layer  mb  op  operands  waits  text
)");
}

TEST(ProgramTextTest, OneSequenceWithoutBuffers) {
  const std::string text = ProgramText(Tiny(), {.sequence = "eval", .buffers = false});
  EXPECT_THAT(text, HasSubstr("sequence eval"));
  EXPECT_THAT(text, Not(HasSubstr("sequence train")));
  EXPECT_THAT(text, Not(HasSubstr("weights")));
}

TEST(ProgramTextTest, ThePartsOfAStageAreListed) {
  v1::Program program = Tiny();
  program.set_stages(4);
  program.mutable_grid()->set_pipeline(4);
  program.mutable_grid()->set_tensor(8);
  v1::Group* tied = program.add_groups();
  tied->set_name("tied");
  tied->add_axes(v1::PIPELINE);
  tied->add_stages(0);
  tied->add_stages(3);
  v1::Group* block = program.add_groups();
  block->set_name("tensor_block");
  block->add_axes(v1::TENSOR);
  block->set_tensor_block(4);
  v1::Group* near = program.add_groups();
  near->set_name("near");
  near->add_axes(v1::DATA_SHARD);
  near->set_shard_block(2);
  v1::Group* far = program.add_groups();
  far->set_name("far");
  far->add_axes(v1::DATA_SHARD);
  far->set_shard_stride(2);
  v1::TransferOp* send = program.mutable_sequences(0)->mutable_instructions(1)->mutable_transfer();
  send->set_kind(v1::SEND);
  send->set_group(1);
  send->set_peer_stage(2);
  v1::StateRange* range = program.add_state();
  range->set_tensor("k.weight");
  range->set_kind(v1::WEIGHT);
  for (int64_t size : {16, 32}) range->add_shape(size);
  range->set_rows(8);
  range->set_columns(32);
  range->set_split(v1::StateRange::BY_ROWS);
  range->set_split_block(4);
  range->set_offset(256);
  range->set_shard_elements(64);
  range->set_copy(true);
  range = program.add_state();
  range->set_tensor("norm.weight");
  range->set_kind(v1::WEIGHT);
  range->add_shape(32);
  range->set_rows(1);
  range->set_columns(32);
  const std::string text = ProgramText(program);
  EXPECT_THAT(text, HasSubstr("grid      tensor 8 data_shard 2 pipeline 4\n"));
  EXPECT_THAT(text, HasSubstr("group     tied          over pipeline, stages 0 3         2 ranks\n"));
  EXPECT_THAT(text, HasSubstr("group     tensor_block  over tensor in blocks of 4        4 ranks\n"));
  EXPECT_THAT(text, HasSubstr("over data_shard in blocks of 2 "));
  EXPECT_THAT(text, HasSubstr("over data_shard that are 2 apart "));
  EXPECT_THAT(text, HasSubstr("send to stage 2 tied"));
  EXPECT_THAT(text, HasSubstr("state  2 ranges of weights, 2 with their moments\n"));
  EXPECT_THAT(
      text, HasSubstr("k.weight     [16,32]  [0+8,0+32] by rows / 4  weights+256     64  copy\n"));
  EXPECT_THAT(text, HasSubstr("norm.weight  [32]     all                     weights\n"));
}

v1::Operand Slice(v1::Access access, uint32_t buffer, int64_t elements) {
  v1::Operand operand;
  operand.set_access(access);
  operand.set_buffer(buffer);
  operand.set_dtype(v1::F32);
  operand.add_shape(elements);
  return operand;
}

TEST(ProgramTextTest, TiersAndWhatMovesBetweenThemAreListed) {
  v1::Program program = Tiny();
  const std::string one_tier = ProgramText(program);
  EXPECT_THAT(one_tier, Not(HasSubstr("limits ")));
  EXPECT_THAT(one_tier, Not(HasSubstr("nvme")));
  for (v1::Tier tier : {v1::HOST, v1::NVME}) {
    v1::Arena* arena = program.add_arenas();
    arena->set_id(program.arenas_size() - 1);
    arena->set_tier(tier);
    arena->set_bytes(1 << 24);
  }
  program.set_host_limit_bytes(1 << 30);
  const struct {
    v1::StreamKind stream;
    const char* name;
    v1::CopyKind kind;
    std::vector<int64_t> elements;
  } copies[] = {{v1::NVME_READ, "nvme_read", v1::NVME_LOAD, {2 << 20, 2 << 20, 2 << 20, 2 << 20}},
                {v1::HOST_TO_DEVICE, "to_device", v1::TO_DEVICE, {1024}},
                {v1::DEVICE_TO_HOST, "to_host", v1::TO_HOST, {256, 512}},
                {v1::NVME_WRITE, "nvme_write", v1::NVME_STORE, {}}};
  for (const auto& copy : copies) {
    v1::Stream* stream = program.add_streams();
    stream->set_kind(copy.stream);
    stream->set_name(copy.name);
    v1::Instruction* instruction = program.mutable_sequences(0)->add_instructions();
    instruction->set_id(program.sequences(0).instructions_size() - 1);
    instruction->set_stream(program.streams_size() - 1);
    instruction->mutable_copy()->set_kind(copy.kind);
    for (int64_t elements : copy.elements) {
      *instruction->add_operands() = Slice(v1::READ, 0, elements);
      *instruction->add_operands() = Slice(v1::WRITE, 1, elements);
    }
  }
  const std::string text = ProgramText(program);
  EXPECT_THAT(text, HasSubstr("arena 1   host  16777216 bytes (16.0 MiB)\n"
                              "arena 2   nvme  16777216 bytes (16.0 MiB)\n"));
  EXPECT_THAT(text, HasSubstr("limits    host 1.0 GiB  nvme none\n"));
  EXPECT_THAT(text, HasSubstr("nvme_load 4 x 8.0 MiB"));
  EXPECT_THAT(text, HasSubstr("to_device 4.0 KiB"));
  EXPECT_THAT(text, HasSubstr("to_host 2 pieces, 3.0 KiB"));
  EXPECT_THAT(text, HasSubstr("nvme_store 0 B"));
}

TEST(ProgramTextTest, BrokenReferencesAreShownNotFollowed) {
  v1::Program program = Tiny();
  v1::Instruction* cast = program.mutable_sequences(0)->mutable_instructions(0);
  cast->mutable_operands(0)->set_buffer(77);
  cast->set_stream(9);
  cast->set_phase(static_cast<v1::Phase>(42));
  program.mutable_sequences(0)->mutable_instructions(1)->mutable_collective()->set_group(5);
  const std::string text = ProgramText(program);
  EXPECT_THAT(text, HasSubstr("r:?77+16"));
  EXPECT_THAT(text, HasSubstr("all_reduce ?5"));
  EXPECT_THAT(text, HasSubstr("42"));
}

}  // namespace
}  // namespace terrace
