// Programs of which buffers lie in pages at second addresses: the map from addresses to memory,
// what the checker passes, and every rule about pages refuses a program that was broken in one
// place.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "proto/check/program_check.h"
#include "proto/program/arena_pages.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/order_oracle.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kPage = 4096;

using Range = std::pair<int64_t, int64_t>;

std::vector<Range> Ranges(const v1::Arena& arena, int64_t begin, int64_t end) {
  std::vector<Range> ranges;
  ArenaPages(arena).ForEachRange(begin, end,
                                 [&](int64_t from, int64_t to) { ranges.emplace_back(from, to); });
  return ranges;
}

void AddRun(int64_t page, int64_t pages, v1::Arena* arena) {
  v1::PageRun* run = arena->add_aliases();
  run->set_page(page);
  run->set_pages(pages);
}

TEST(ArenaPagesTest, WithoutSecondAddressesTheyAreTheMemory) {
  v1::Arena arena;
  arena.set_bytes(1000);
  EXPECT_EQ(AddressBytes(arena), 1000);
  EXPECT_THAT(Ranges(arena, 0, 1000), ElementsAre(Range{0, 1000}));
  EXPECT_THAT(Ranges(arena, 256, 300), ElementsAre(Range{256, 300}));
  EXPECT_THAT(Ranges(arena, 256, 256), ElementsAre());
}

TEST(ArenaPagesTest, SecondAddressesAreThePagesThatTheRunsName) {
  v1::Arena arena;
  arena.set_bytes(8 * kPage);
  arena.set_page_bytes(kPage);
  AddRun(5, 2, &arena);
  AddRun(1, 1, &arena);
  AddRun(2, 3, &arena);  // goes on where the last one ended
  EXPECT_EQ(AliasBytes(arena), 6 * kPage);
  EXPECT_EQ(AddressBytes(arena), 14 * kPage);
  EXPECT_THAT(Ranges(arena, 8 * kPage, 14 * kPage),
              ElementsAre(Range{5 * kPage, 7 * kPage}, Range{kPage, 5 * kPage}));
  EXPECT_THAT(Ranges(arena, 9 * kPage - 1, 10 * kPage + 1),
              ElementsAre(Range{6 * kPage - 1, 7 * kPage}, Range{kPage, kPage + 1}));
  EXPECT_THAT(Ranges(arena, 7 * kPage, 9 * kPage),
              ElementsAre(Range{7 * kPage, 8 * kPage}, Range{5 * kPage, 6 * kPage}));
}

// Of a ZeRO-3 step the largest activation of the first sequence, in pages behind all others, the
// last of them first.
struct Paged {
  v1::Program program;
  int buffer = 0;
  int64_t pages = 0;

  v1::Arena* arena() { return program.mutable_arenas(0); }
  v1::Buffer* moved() { return program.mutable_buffers(buffer); }
};

int LargestActivation(const v1::Program& program) {
  int largest = -1;
  for (int id = 0; id < program.buffers_size(); ++id) {
    const v1::Buffer& buffer = program.buffers(id);
    if (buffer.lifetime() != v1::STEP || buffer.sequence() != program.sequences(0).name() ||
        buffer.class_() != v1::ACTIVATION) {
      continue;
    }
    if (largest < 0 || buffer.bytes() > program.buffers(largest).bytes()) largest = id;
  }
  return largest;
}

Paged Make() {
  TinyJob job = {.family = "gpt2", .data_parallel = 2};
  job.sizes.layers = 1;
  job.zero_stage = 3;
  Paged made = {.program = CompileTiny(job)};
  made.program.set_device_limit_bytes(0);
  made.buffer = LargestActivation(made.program);
  made.pages = (made.moved()->bytes() + kPage - 1) / kPage;
  v1::Arena* arena = made.arena();
  const int64_t first = (arena->bytes() + kPage - 1) / kPage;
  arena->set_page_bytes(kPage);
  arena->set_bytes((first + made.pages) * kPage);
  for (int64_t page = made.pages - 1; page >= 0; --page) AddRun(first + page, 1, arena);
  made.moved()->set_offset(arena->bytes());
  return made;
}

TEST(PagesCheckTest, ABufferMayLieInPagesInAnyOrder) {
  const Paged made = Make();
  ASSERT_GT(made.pages, 1);
  EXPECT_EQ(CheckProgram(made.program), absl::OkStatus());
}

// Where one address range serves buffers one after another, or pages serve several ranges.
TEST(PagesCheckTest, PagesThatAreFreeMeanwhileMayBeShared) {
  Paged made = Make();
  v1::Program& program = made.program;
  // Its own pages, free of itself: the same memory at third addresses, for the same buffer.
  for (int i = 0; i < made.pages; ++i) *made.arena()->add_aliases() = made.arena()->aliases(i);
  made.moved()->set_offset(made.arena()->bytes() + made.pages * kPage);
  EXPECT_EQ(CheckProgram(program), absl::OkStatus());
}

struct Breakage {
  const char* name;
  void (*apply)(Paged*);
  const char* says;
};

class BrokenPagesTest : public testing::TestWithParam<Breakage> {};

TEST_P(BrokenPagesTest, IsRefusedWithTheRule) {
  Paged made = Make();
  GetParam().apply(&made);
  EXPECT_THAT(std::string(CheckProgram(made.program).message()), HasSubstr(GetParam().says));
}

void MoveRun(int64_t page, Paged* made) { made->arena()->mutable_aliases(0)->set_page(page); }

const Breakage kBreakages[] = {
    {"APageOfSomethingElse", [](Paged* made) { MoveRun(0, made); }, "overlaps"},
    {"APageTwice", [](Paged* made) { MoveRun(made->arena()->aliases(1).page(), made); },
     "lies twice in one page"},
    {"APageBehindTheMemory", [](Paged* made) { MoveRun(made->arena()->bytes() / kPage, made); },
     "must lie inside its"},
    {"APageBeforeTheMemory", [](Paged* made) { MoveRun(-1, made); }, "must lie inside its"},
    {"AnEmptyRun", [](Paged* made) { made->arena()->mutable_aliases(0)->set_pages(0); },
     "must lie inside its"},
    {"TooFewPages", [](Paged* made) { made->arena()->mutable_aliases()->RemoveLast(); },
     "of addresses"},
    {"NoPowerOfTwo", [](Paged* made) { made->arena()->set_page_bytes(kPage + 256); },
     "must be a power of two"},
    {"RunsWithoutPages", [](Paged* made) { made->arena()->set_page_bytes(0); },
     "must be a power of two"},
    {"HalfAPage", [](Paged* made) { made->arena()->set_bytes(made->arena()->bytes() + 2048); },
     "are no whole pages"},
    {"WithTheCachingAllocator", [](Paged* made) { made->program.set_allocator("caching"); },
     "with the planned allocator"},
    {"APersistentBuffer", [](Paged* made) { made->moved()->set_lifetime(v1::PERSISTENT); },
     "must lie inside arena 0"},
    {"TooManyRuns",
     [](Paged* made) {
       for (int i = 0; i < 1 << 15; ++i) AddRun(0, 1, made->arena());
     },
     "runs of pages, at most"},
};

INSTANTIATE_TEST_SUITE_P(All, BrokenPagesTest, testing::ValuesIn(kBreakages),
                         [](const auto& info) { return std::string(info.param.name); });

// What is written into pages that another buffer needs meanwhile is a wrong number later. Against
// the plainest way to decide it: every third page of the arena, for a buffer that lives for long.
TEST(PagesCheckTest, PagesOfBuffersThatLiveMeanwhileAreRefusedAndNoOthers) {
  Paged made = Make();
  v1::Program& program = made.program;
  int64_t first_page = 0;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() == v1::PERSISTENT)
      first_page = std::max(first_page, (buffer.offset() + buffer.bytes() + kPage - 1) / kPage);
  }
  int refused = 0, passed = 0;
  for (int64_t page = first_page; page < made.arena()->bytes() / kPage; page += 3) {
    if (page > made.arena()->aliases(0).page() - made.pages) continue;  // its own, twice
    Paged other = made;
    MoveRun(page, &other);
    const absl::Status status = CheckProgram(other.program);
    const v1::Sequence& sequence = other.program.sequences(0);
    EXPECT_EQ(status.ok(), OrderOracle(other.program, sequence).IsSafe(sequence)) << status;
    ++(status.ok() ? passed : refused);
    if (status.ok()) continue;
    EXPECT_THAT(std::string(status.message()), HasSubstr("shares bytes with"));
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(passed, 0);
}

}  // namespace
}  // namespace terrace
