// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/memory_chart.h"
#include "client/memory_html.h"
#include "client/memory_picture.h"
#include "client/memory_snapshot.h"
#include "client/pickle.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;

v1::GetMemoryResponse TwoTiers(int64_t read_bytes, int64_t unix_ms) {
  v1::GetMemoryResponse response;
  v1::RankMemory* rank = response.add_ranks();
  rank->set_rank(2);
  rank->set_step(7);
  rank->set_unix_ms(unix_ms);
  rank->set_sequence("train");
  rank->set_instruction("812 adamw layer 3");
  for (const v1::Tier tier : {v1::DEVICE, v1::HOST}) {
    v1::TierMemory* line = rank->add_tiers();
    line->set_tier(tier);
    line->set_reserved_bytes(100 * kMiB);
    line->set_predicted_bytes(100 * kMiB);
    v1::LiveClass* live = line->add_live();
    live->set_class_(tier == v1::DEVICE ? v1::ACTIVATION : v1::OPTIMIZER);
    live->set_bytes(tier == v1::DEVICE ? 50 * kMiB : 25 * kMiB);
  }
  rank->mutable_tiers(0)->set_limit_bytes(200 * kMiB);
  rank->set_external_bytes(30 * kMiB);
  rank->set_graph_bytes(12 * kMiB);
  v1::AllocatorStats* stats = rank->mutable_allocator();
  stats->set_mode("planned");
  stats->set_allocated_bytes(50 * kMiB);
  stats->set_reserved_bytes(100 * kMiB);
  stats->set_largest_free_block_bytes(40 * kMiB);
  v1::OffloadTraffic* traffic = rank->add_traffic();
  traffic->set_tier(v1::NVME);
  traffic->set_bytes(read_bytes);
  return response;
}

TEST(MemoryPictureTest, ABarIsAsLongAsItsShareOfTheLimit) {
  const std::string picture = MemoryPicture(TwoTiers(0, 0), {}, 80, false);
  EXPECT_THAT(picture, HasSubstr("rank 2  step 7  train 812 adamw layer 3\n"));
  size_t bars = 0, lines = 0;
  for (size_t at = 0; at < picture.size(); at = picture.find('\n', at) + 1, ++lines) {
    const std::string line = picture.substr(at, picture.find('\n', at) - at);
    EXPECT_LT(line.size(), 81u) << line;
    const size_t open = line.find('['), close = line.find(']');
    if (open == std::string::npos) continue;
    const std::string bar = line.substr(open + 1, close - open - 1);
    const auto filled = static_cast<double>(bar.size() - std::count(bar.begin(), bar.end(), '.'));
    EXPECT_NEAR(filled / static_cast<double>(bar.size()), 0.25, 0.03) << line;
    EXPECT_EQ(bar[0], bars == 0 ? 'A' : 'O');
    ++bars;
  }
  EXPECT_EQ(bars, 2u);
}

TEST(MemoryPictureTest, TrafficHasARateOnceThereAreTwoReports) {
  EXPECT_THAT(MemoryPicture(TwoTiers(kMiB, 1000), {}, 80, false), HasSubstr("read 1.0 MiB (-)"));
  EXPECT_THAT(MemoryPicture(TwoTiers(5 * kMiB, 3000), TwoTiers(kMiB, 1000), 80, false),
              HasSubstr("read 5.0 MiB (2.0 MiB/s)"));
}

TEST(MemoryTablesTest, HaveALineATierAndTheFragmentation) {
  const std::string tables = MemoryTables(TwoTiers(kMiB, 1000), {});
  EXPECT_THAT(tables, AllOf(HasSubstr("PREDICTED"), HasSubstr("OPTIMIZER"), HasSubstr("device"),
                            HasSubstr("25.0 MiB"), HasSubstr("0.500"), HasSubstr("0.200"),
                            HasSubstr("GRAPHS"), HasSubstr("12.0 MiB")));
  EXPECT_THAT(MemoryPicture(TwoTiers(0, 0), {}, 80, false), HasSubstr("(graphs 12.0 MiB)"));
}

// Stage 0: a persistent weight, and `a`, which instruction 1 makes and 2 reads.
v1::Program SmallProgram() {
  v1::Program program;
  program.set_stages(1);
  program.add_arenas()->set_tier(v1::DEVICE);
  program.mutable_arenas(0)->set_bytes(4096);
  program.add_streams()->set_kind(v1::COMPUTE);
  for (const char* name : {"weights.<x>", "a"}) {
    v1::Buffer* buffer = program.add_buffers();
    buffer->set_id(program.buffers_size() - 1);
    buffer->set_name(name);
    buffer->set_bytes(1024);
    buffer->set_offset(2048 * buffer->id());
    buffer->set_class_(buffer->id() == 0 ? v1::PARAMETER : v1::ACTIVATION);
    buffer->set_lifetime(buffer->id() == 0 ? v1::PERSISTENT : v1::STEP);
  }
  program.add_sequences()->set_name("train");
  for (const char* text : {"load", "make a & b", "use a", "end"}) {
    v1::Instruction* instruction = program.mutable_sequences(0)->add_instructions();
    instruction->set_id(program.sequences(0).instructions_size() - 1);
    instruction->set_text(text);
    instruction->set_layer(instruction->id() == 1 ? 5 : -1);
    instruction->set_micro_batch(-1);
    instruction->set_phase(instruction->id() < 2 ? v1::FORWARD : v1::BACKWARD);
  }
  for (const int id : {1, 2}) {
    v1::Operand* operand = program.mutable_sequences(0)->mutable_instructions(id)->add_operands();
    operand->set_buffer(1);
    operand->set_access(id == 1 ? v1::WRITE : v1::READ);
  }
  return program;
}

TEST(MemoryHtmlTest, ShowsThePeakWhatMadeItAndNothingUnescaped) {
  v1::Job job;
  job.set_id("books-1");
  const std::vector<v1::Program> programs = {SmallProgram()};
  const auto page = MemoryHtml(job, programs, TwoTiers(0, 0));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, AllOf(HasSubstr("<b>2.0 KiB</b> live at the peak"),
                           HasSubstr("<code>1 make a &amp; b, layer 5</code>"),
                           HasSubstr("weights.&lt;x&gt;"), HasSubstr("there all the time"),
                           HasSubstr("812 adamw layer 3")));
  EXPECT_THAT(*page, AllOf(Not(HasSubstr("<x>")), Not(HasSubstr("<script")), Not(HasSubstr("http")),
                           Not(HasSubstr("nan"))));
}

TEST(MemoryHtmlTest, AProgramThatContradictsItselfIsRefused) {
  std::vector<v1::Program> programs = {SmallProgram()};
  programs[0].mutable_buffers(0)->set_arena(3);
  EXPECT_EQ(MemoryHtml({}, programs, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MemorySnapshot(programs).status().code(), absl::StatusCode::kInvalidArgument);
}

// Hands the bytes to Python and returns what it prints.
std::string Python(const std::string& pickle, const std::string& expression) {
  const std::string path = testing::TempDir() + "memory_test.pickle";
  std::ofstream(path, std::ios::binary) << pickle;
  const std::string command = absl::StrCat("python3 -c \"import pickle; d = pickle.load(open('",
                                           path, "', 'rb')); print(", expression, ")\"");
  FILE* pipe = popen(command.c_str(), "r");
  char text[4096];
  const size_t length = fread(text, 1, sizeof text, pipe);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return std::string(text, length);
}

TEST(PickleTest, PythonReadsWhatWasWritten) {
  Pickle pickle;
  pickle.BeginDict();
  pickle.String("text");
  pickle.String("gr\u00fc\u00df");
  pickle.String("numbers");
  pickle.BeginList();
  for (const int64_t number : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, -(int64_t{1} << 40)})
    pickle.Int(number);
  pickle.EndList();
  pickle.String("rest");
  pickle.BeginList();
  pickle.Pair(3, 4);
  pickle.Bool(true);
  pickle.Bool(false);
  pickle.BeginList();
  pickle.EndList();
  pickle.EndList();
  pickle.EndDict();
  EXPECT_EQ(Python(std::move(pickle).Finish(),
                   "d == {'text': 'gr\\u00fc\\u00df', 'numbers': [0, -1, 2**31, -2**40], "
                   "'rest': [(3, 4), True, False, []]}"),
            "True\n");
}

TEST(MemorySnapshotTest, HoldsSegmentsThatAreFullAndATraceThatBalances) {
  const std::vector<v1::Program> programs = {SmallProgram()};
  const auto snapshot = MemorySnapshot(programs);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(Python(*snapshot, "[(b['size'], b['state']) for b in d['segments'][0]['blocks']]"),
            "[(1024, 'active_allocated'), (3072, 'inactive')]\n");
  EXPECT_EQ(Python(*snapshot, "[e['action'] for e in d['device_traces'][0]]"),
            "['alloc', 'free_requested', 'free_completed']\n");
  EXPECT_EQ(Python(*snapshot, "[f['name'] for f in d['device_traces'][0][0]['frames']]"),
            "['a (activation)', '1 make a & b, layer 5']\n");
}

}  // namespace
}  // namespace terrace
