// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "tests/support/failing_block_io.h"
#include "tests/unit/worker/memory/nvme/nvme_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBytes = 1 << 20;
constexpr int64_t kBlock = 65536;

class NvmeFaultTest : public NvmeFixture {
 protected:
  // The drive of the tests may be slow: only what tests the timeout shortens it.
  void Make(const char* engine, bool verify = false, int folders = 1,
            absl::Duration timeout = absl::Seconds(60)) {
    NvmeOptions options = Options(kBytes, folders);
    options.engine = engine;
    options.block_bytes = kBlock;
    options.verify = verify;
    options.wrap = plan_.Wrapper();
    options.timeout = timeout;
    queue_ = nullptr;
    file_ = MakeNvmeFile(std::move(options));
    ASSERT_NE(file_, nullptr);
    queue_ = MakeNvmeQueue(*file_);
    FillRandom({memory_.data(), kBytes}, 1);
  }
  absl::Status Move(NvmeDirection direction) {
    const NvmePiece piece = {.memory = memory_.data(), .bytes = kBytes};
    return queue_->Transfer(direction, {&piece, 1});
  }
  // The status of a transfer whose fifth request from now meets `fault`.
  absl::Status MoveWith(NvmeDirection direction, BlockFault fault) {
    fault.first = plan_.requests() + 5;
    plan_.Add(fault);
    return Move(direction);
  }

  BlockFaultPlan plan_;
  std::unique_ptr<NvmeFile> file_;
  std::unique_ptr<NvmeQueue> queue_;
  Arena memory_ = MakeNvmeMemory(kBytes);
};

TEST_F(NvmeFaultTest, FailedRequestsNameFileOffsetReasonAndWayOut) {
  for (const char* engine : {"io_uring", "threads"}) {
    ASSERT_NO_FATAL_FAILURE(Make(engine));
    const absl::Status read = MoveWith(NvmeDirection::kRead, {.error = EIO});
    EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(
        std::string(read.message()),
        AllOf(HasSubstr("cannot read 65536 bytes at 327680 of " + folder_ +
                        "/0/.terrace-job-rank3-0: Input/output error"),
              HasSubstr("name another folder in nvme.paths"), HasSubstr("last checkpoint")));
    const absl::Status write = MoveWith(NvmeDirection::kWrite, {.error = ENOSPC});
    EXPECT_EQ(write.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(write.message()), HasSubstr("free some space"));
    // The queue is whole: nothing is in flight any more.
    EXPECT_EQ(Move(NvmeDirection::kWrite), absl::OkStatus());
    EXPECT_EQ(Move(NvmeDirection::kRead), absl::OkStatus());
  }
}

TEST_F(NvmeFaultTest, EveryErrorHasItsCode) {
  Make("threads");
  const auto code = [&](BlockFault::Kind kind, int error) {
    return MoveWith(NvmeDirection::kWrite, {.kind = kind, .error = error}).code();
  };
  EXPECT_EQ(code(BlockFault::kFail, EIO), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(BlockFault::kFail, EDQUOT), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(BlockFault::kFail, ENODEV), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(BlockFault::kFail, EROFS), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(BlockFault::kRefuse, ENOMEM), absl::StatusCode::kResourceExhausted);
}

TEST_F(NvmeFaultTest, AFailureWaitsForTheRequestsInFlight) {
  Make("io_uring");
  const int64_t now = plan_.requests();
  plan_.Add({.kind = BlockFault::kDelay, .first = now, .delay = absl::Milliseconds(50)});
  plan_.Add({.kind = BlockFault::kFail, .first = now + 1, .error = EIO});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Move(NvmeDirection::kRead).code(), absl::StatusCode::kDataLoss);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
  EXPECT_EQ(plan_.requests(), now + 8) << "nothing starts after the failure";
}

TEST_F(NvmeFaultTest, ADriveThatStaysBusyIsUnavailableInTheEnd) {
  Make("threads");
  const absl::Status status =
      MoveWith(NvmeDirection::kRead, {.count = int64_t{1} << 40, .error = EAGAIN});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(NvmeFaultTest, ARequestWithoutAnswerEndsTheTransferAndTheQueue) {
  for (const char* engine : {"io_uring", "threads"}) {
    ASSERT_NO_FATAL_FAILURE(Make(engine, false, 1, absl::Seconds(1)));
    const absl::Status lost = MoveWith(NvmeDirection::kRead, {.kind = BlockFault::kLose});
    EXPECT_EQ(lost.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(lost.message()),
                AllOf(HasSubstr("no answer for 1s with 1 requests in flight"),
                      HasSubstr(".terrace-job-rank3-0")));
    EXPECT_EQ(Move(NvmeDirection::kRead), lost) << "its memory may still be written to";
  }
}

// A checkpoint that reads the state holds back the step's writes to it: without this they would
// begin to wait once it has given up.
TEST_F(NvmeFaultTest, WhatOneQueueWaitedForNoOtherWaitsForAgain) {
  for (const char* engine : {"io_uring", "threads"}) {
    ASSERT_NO_FATAL_FAILURE(Make(engine, false, 1, absl::Seconds(3)));
    const auto later = MakeNvmeQueue(*file_);
    const auto beside = MakeNvmeQueue(*file_);
    const int64_t now = plan_.requests();
    plan_.Add({.kind = BlockFault::kLose, .first = now, .count = int64_t{1} << 40});
    absl::Status lost;
    std::thread reads([&] { lost = Move(NvmeDirection::kRead); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    // In flight when the first gives up, and begun afterwards.
    const auto begin = std::chrono::steady_clock::now();
    Arena memory = MakeNvmeMemory(kBytes);
    const NvmePiece piece = {.memory = memory.data(), .bytes = kBytes};
    const absl::Status in_flight = beside->Transfer(NvmeDirection::kWrite, {&piece, 1});
    reads.join();
    EXPECT_EQ(lost.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(in_flight, lost);
    EXPECT_EQ(later->Transfer(NvmeDirection::kWrite, {&piece, 1}), lost);
    std::vector<std::byte> some(10);
    EXPECT_EQ(file_->Read(0, some), lost) << "as checkpoints read";
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2900));
    EXPECT_EQ(in_flight, beside->Transfer(NvmeDirection::kRead, {&piece, 1}));
  }
}

TEST_F(NvmeFaultTest, SlowRequestsAreOnlySlow) {
  Make("io_uring", false, 1, absl::Seconds(1));
  ASSERT_EQ(Move(NvmeDirection::kWrite), absl::OkStatus());
  const std::vector<std::byte> expected(memory_.data(), memory_.data() + kBytes);
  std::memset(memory_.data(), 0, kBytes);
  plan_.Add({.kind = BlockFault::kDelay,
             .first = plan_.requests(),
             .count = 16,
             .delay = absl::Milliseconds(600)});
  EXPECT_EQ(Move(NvmeDirection::kRead), absl::OkStatus()) << "each answer restarts the wait";
  EXPECT_EQ(std::memcmp(memory_.data(), expected.data(), kBytes), 0);
}

TEST_F(NvmeFaultTest, ATruncatedFileNeverReadsAsZeros) {
  for (const char* engine : {"io_uring", "threads"}) {
    for (const int64_t left : {int64_t{0}, 3 * kBlock + 100, kBytes}) {
      ASSERT_NO_FATAL_FAILURE(Make(engine));
      ASSERT_EQ(Move(NvmeDirection::kWrite), absl::OkStatus());
      const UniqueFd outside = OpenFromOutside("job-rank3-0");
      ASSERT_EQ(::ftruncate(outside.get(), left), 0);
      const absl::Status status = Move(NvmeDirection::kRead);
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()), HasSubstr("something outside truncated it"));
      // Writing everything again does not make the file whole.
      EXPECT_EQ(Move(NvmeDirection::kWrite).code(), absl::StatusCode::kDataLoss);
      std::vector<std::byte> some(10);
      EXPECT_EQ(file_->Read(5, some).code(), absl::StatusCode::kDataLoss);
    }
  }
}

TEST_F(NvmeFaultTest, ATruncationDuringAReadIsNoticedByThatRead) {
  Make("threads");
  ASSERT_EQ(Move(NvmeDirection::kWrite), absl::OkStatus());
  plan_.Add({.kind = BlockFault::kDelay,
             .first = plan_.requests() + 8,
             .count = 8,
             .delay = absl::Milliseconds(500)});
  const UniqueFd outside = OpenFromOutside("job-rank3-0");
  std::thread truncates([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(::ftruncate(outside.get(), 9 * kBlock), 0);
  });
  EXPECT_EQ(Move(NvmeDirection::kRead).code(), absl::StatusCode::kDataLoss);
  truncates.join();
}

TEST_F(NvmeFaultTest, ChecksumsFindAPageChangedFromOutside) {
  for (const char* engine : {"io_uring", "threads"}) {
    ASSERT_NO_FATAL_FAILURE(Make(engine, /*verify=*/true, /*folders=*/2));
    ASSERT_EQ(Move(NvmeDirection::kWrite), absl::OkStatus());
    ASSERT_EQ(Move(NvmeDirection::kRead), absl::OkStatus());
    const UniqueFd outside = OpenFromOutside("job-rank3-1");
    const std::byte changed = memory_.data()[kBlock + 5000] ^ std::byte{1};
    ASSERT_EQ(::pwrite(outside.get(), &changed, 1, 5000), 1);
    ASSERT_EQ(::fsync(outside.get()), 0);
    const absl::Status status = Move(NvmeDirection::kRead);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("/1/.terrace-job-rank3-1 at 4096: the page read is not the page"));
    std::vector<std::byte> some(10);
    EXPECT_EQ(file_->Read(kBlock + 8000, some).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(file_->Write(kBlock + 8000, some).code(), absl::StatusCode::kDataLoss)
        << "the rest of the page would be taken over";
    EXPECT_EQ(file_->Read(kBlock + 8192, some), absl::OkStatus());
    EXPECT_EQ(Move(NvmeDirection::kWrite), absl::OkStatus());
    EXPECT_EQ(Move(NvmeDirection::kRead), absl::OkStatus()) << "written again it is right again";
  }
}

}  // namespace
}  // namespace terrace
