// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_queue.h"

#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "tests/support/failing_block_io.h"
#include "tests/unit/worker/memory/nvme/nvme_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kFileBytes = (3 << 20) + 5000;  // no whole number of blocks or pages
constexpr int64_t kFilePages = kFileBytes / kNvmePageBytes + 1;

struct Shape {
  std::string engine;
  int folders = 1;
  int depth = 1;
  int64_t block_bytes = 0;
  bool verify = false;
};

std::vector<Shape> AllShapes() {
  std::vector<Shape> shapes;
  for (const char* engine : {"io_uring", "threads"}) {
    for (const int folders : {1, 2, 3}) {
      for (const int depth : {1, 3, 8}) {
        for (const int64_t block : {int64_t{4096}, int64_t{20480}, int64_t{1} << 20}) {
          shapes.push_back({engine, folders, depth, block, shapes.size() % 2 == 1});
        }
      }
    }
  }
  return shapes;
}

std::string NameOf(const Shape& shape) {
  return shape.engine + " folders " + std::to_string(shape.folders) + " depth " +
         std::to_string(shape.depth) + " block " + std::to_string(shape.block_bytes) +
         (shape.verify ? " verify" : "");
}

// A file, a queue and what the file must hold. Every operation is random, its result compared.
class Shadow {
 public:
  Shadow(NvmeFile* file, uint64_t seed)
      : file_(file),
        queue_(MakeNvmeQueue(*file)),
        memory_(MakeNvmeMemory(kFilePages * kNvmePageBytes)),
        expected_(static_cast<size_t>(kFilePages * kNvmePageBytes)),
        random_(seed) {}

  absl::Status Step() {
    switch (random_() % 4) {
      case 0:
        return TransferSome(NvmeDirection::kWrite);
      case 1:
        return TransferSome(NvmeDirection::kRead);
      case 2:
        return WriteRange();
      default:
        return ReadRange();
    }
  }

 private:
  // Up to four pieces that share no byte, in a random order of memory.
  absl::Status TransferSome(NvmeDirection direction) {
    FillRandom({memory_.data(), static_cast<size_t>(memory_.bytes())}, random_());
    std::vector<NvmePiece> pieces;
    const auto count = static_cast<int64_t>(random_() % 4 + 1);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t part = kFilePages / count;
      const auto first = static_cast<int64_t>(random_() % part);
      const auto pages = static_cast<int64_t>(random_() % (part - first + 1));
      pieces.push_back({.offset = (i * part + first) * kNvmePageBytes,
                        .memory = memory_.data() + (count - 1 - i) * part * kNvmePageBytes,
                        .bytes = pages * kNvmePageBytes});
    }
    const absl::Status status = queue_->Transfer(direction, pieces);
    for (const NvmePiece& piece : pieces) {
      const auto bytes = static_cast<size_t>(piece.bytes);
      if (direction == NvmeDirection::kWrite) {
        std::memcpy(&expected_[static_cast<size_t>(piece.offset)], piece.memory, bytes);
      } else {
        EXPECT_EQ(std::memcmp(&expected_[static_cast<size_t>(piece.offset)], piece.memory, bytes),
                  0)
            << bytes << " bytes at " << piece.offset;
      }
    }
    return status;
  }

  std::pair<int64_t, int64_t> Range() {
    const auto offset = static_cast<int64_t>(random_() % kFileBytes);
    const int64_t limit = random_() % 2 == 0 ? kFileBytes : 9000;
    const auto bytes = static_cast<int64_t>(random_()) & INT64_MAX;
    return {offset, std::min(bytes % limit, kFileBytes - offset)};
  }
  absl::Status WriteRange() {
    const auto [offset, bytes] = Range();
    std::byte* const from = &expected_[static_cast<size_t>(offset)];
    FillRandom({from, static_cast<size_t>(bytes)}, random_());
    return file_->Write(offset, {from, static_cast<size_t>(bytes)});
  }
  absl::Status ReadRange() {
    const auto [offset, bytes] = Range();
    std::vector<std::byte> got(static_cast<size_t>(bytes));
    const absl::Status status = file_->Read(offset, got);
    EXPECT_EQ(std::memcmp(&expected_[static_cast<size_t>(offset)], got.data(), got.size()), 0)
        << bytes << " bytes at " << offset;
    return status;
  }

  NvmeFile* const file_;
  const std::unique_ptr<NvmeQueue> queue_;
  Arena memory_;
  std::vector<std::byte> expected_;  // zeros at first, as the file
  std::mt19937_64 random_;
};

class NvmeQueueTest : public NvmeFixture {
 protected:
  NvmeOptions OptionsOf(const Shape& shape) {
    NvmeOptions options = Options(kFileBytes, shape.folders);
    options.engine = shape.engine;
    options.queue_depth = shape.depth;
    options.block_bytes = shape.block_bytes;
    options.verify = shape.verify;
    return options;
  }
};

TEST_F(NvmeQueueTest, ReadsWhatWasWrittenForEveryEngineStripeAndDepth) {
  for (const Shape& shape : AllShapes()) {
    SCOPED_TRACE(NameOf(shape));
    const auto file = MakeNvmeFile(OptionsOf(shape));
    ASSERT_NE(file, nullptr);
    Shadow shadow(file.get(), 4);
    for (int step = 0; step < 8; ++step) ASSERT_EQ(shadow.Step(), absl::OkStatus());
  }
}

TEST_F(NvmeQueueTest, PassingFaultsChangeNothing) {
  for (const Shape& shape : {Shape{"io_uring", 2, 8, 65536, true}, Shape{"threads", 1, 3, 20480}}) {
    SCOPED_TRACE(NameOf(shape));
    BlockFaultPlan plan;
    constexpr int64_t kAlways = int64_t{1} << 40;
    plan.Add({.kind = BlockFault::kShorten, .count = kAlways, .every = 3, .bytes = 8192});
    plan.Add({.kind = BlockFault::kShorten, .count = kAlways, .every = 7, .bytes = 5000});
    plan.Add({.kind = BlockFault::kFail, .count = kAlways, .every = 61, .error = EINTR});
    plan.Add({.kind = BlockFault::kFail, .count = kAlways, .every = 67, .error = EAGAIN});
    plan.Add({.kind = BlockFault::kRefuse, .count = kAlways, .every = 71, .error = EBUSY});
    plan.Add({.kind = BlockFault::kDelay,
              .count = kAlways,
              .every = 11,
              .delay = absl::Milliseconds(2)});
    NvmeOptions options = OptionsOf(shape);
    options.wrap = plan.Wrapper();
    const auto file = MakeNvmeFile(std::move(options));
    ASSERT_NE(file, nullptr);
    Shadow shadow(file.get(), 5);
    for (int step = 0; step < 8; ++step) ASSERT_EQ(shadow.Step(), absl::OkStatus());
    EXPECT_GT(plan.requests(), 100);
  }
}

TEST_F(NvmeQueueTest, TwoQueuesWorkAtOnceOnDifferentBytes) {
  for (const char* engine : {"io_uring", "threads"}) {
    NvmeOptions options = Options(8 << 20, 2);
    options.engine = engine;
    options.block_bytes = 65536;
    options.verify = true;
    const auto file = MakeNvmeFile(std::move(options));
    ASSERT_NE(file, nullptr);
    Arena memory = MakeNvmeMemory(8 << 20);
    FillRandom({memory.data(), 8 << 20}, 6);
    const std::vector<std::byte> expected(memory.data(), memory.data() + (8 << 20));
    const NvmePiece low = {.offset = 0, .memory = memory.data(), .bytes = 4 << 20};
    const NvmePiece high = {
        .offset = 4 << 20, .memory = memory.data() + (4 << 20), .bytes = 4 << 20};
    const auto move = [&](const NvmePiece& piece, NvmeDirection direction) {
      const auto queue = MakeNvmeQueue(*file);
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(queue->Transfer(direction, {&piece, 1}), absl::OkStatus());
      }
    };
    move(low, NvmeDirection::kWrite);
    std::thread reader([&] { move(low, NvmeDirection::kRead); });
    move(high, NvmeDirection::kWrite);
    reader.join();
    std::memset(memory.data(), 0, 8 << 20);
    move(low, NvmeDirection::kRead);
    move(high, NvmeDirection::kRead);
    EXPECT_EQ(std::memcmp(memory.data(), expected.data(), expected.size()), 0);
  }
}

TEST_F(NvmeQueueTest, CountsBytesAndSecondsOfEachDirection) {
  const auto file = MakeNvmeFile(Options(1 << 20));
  const auto queue = MakeNvmeQueue(*file);
  Arena memory = MakeNvmeMemory(1 << 20);
  const NvmePiece piece = {.memory = memory.data(), .bytes = 1 << 20};
  ASSERT_TRUE(queue->Transfer(NvmeDirection::kWrite, {&piece, 1}).ok());
  ASSERT_TRUE(queue->Transfer(NvmeDirection::kWrite, {&piece, 1}).ok());
  EXPECT_EQ(queue->counters(NvmeDirection::kWrite).bytes, 2 << 20);
  EXPECT_GT(queue->counters(NvmeDirection::kWrite).seconds, 0);
  EXPECT_EQ(queue->counters(NvmeDirection::kRead).bytes, 0);
}

TEST_F(NvmeQueueTest, ThrottleHoldsItsRateInEachDirectionAlone) {
  NvmeOptions options = Options(4 << 20);
  options.bytes_per_second = 5 << 20;
  const auto file = MakeNvmeFile(std::move(options));
  Arena memory = MakeNvmeMemory(4 << 20);
  const auto move = [&](NvmeDirection direction) {
    const auto queue = MakeNvmeQueue(*file);
    const NvmePiece piece = {
        .offset = direction == NvmeDirection::kRead ? 0 : 2 << 20,
        .memory = memory.data() + (direction == NvmeDirection::kRead ? 0 : 2 << 20),
        .bytes = 2 << 20};
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(queue->Transfer(direction, {&piece, 1}).ok());
  };
  const auto begin = std::chrono::steady_clock::now();
  std::thread reader([&] { move(NvmeDirection::kRead); });
  move(NvmeDirection::kWrite);
  reader.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took.count(), 0.8);  // 4 MiB each way at 5 MiB/s
  EXPECT_LT(took.count(), 1.5);  // one after the other would take 1.6
}

TEST_F(NvmeQueueTest, RefusesPiecesThatAreNotWholePagesOfTheFile) {
  const auto file = MakeNvmeFile(Options(65536));
  const auto queue = MakeNvmeQueue(*file);
  Arena memory = MakeNvmeMemory(65536);
  const auto code = [&](const NvmePiece& piece) {
    return queue->Transfer(NvmeDirection::kRead, {&piece, 1}).code();
  };
  EXPECT_EQ(code({512, memory.data(), 4096}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({0, memory.data() + 512, 4096}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({0, memory.data(), 100}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({61440, memory.data(), 8192}), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code({-4096, memory.data(), 4096}), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code({61440, memory.data(), 4096}), absl::StatusCode::kOk);
}

TEST_F(NvmeQueueTest, MemoryIsRegisteredAsFarAsOneBufferHoldsARequest) {
  NvmeOptions options = Options(4 << 20);
  options.engine = "io_uring";
  const auto file = MakeNvmeFile(std::move(options));
  const auto queue = MakeNvmeQueue(*file);
  Arena memory = MakeNvmeMemory(3 << 20);
  queue->RegisterMemory({memory.data(), 1 << 20});
  if (queue->description().find("unregistered buffers") != std::string::npos) {
    GTEST_SKIP() << queue->description();
  }
  EXPECT_THAT(queue->description(), HasSubstr("registered files, registered buffers (1 MiB)"));
  FillRandom({memory.data(), 3 << 20}, 7);
  const std::vector<std::byte> expected(memory.data(), memory.data() + (3 << 20));
  const NvmePiece piece = {.offset = 65536, .memory = memory.data(), .bytes = 3 << 20};
  ASSERT_EQ(queue->Transfer(NvmeDirection::kWrite, {&piece, 1}), absl::OkStatus());
  std::memset(memory.data(), 0, 3 << 20);
  ASSERT_EQ(queue->Transfer(NvmeDirection::kRead, {&piece, 1}), absl::OkStatus());
  EXPECT_EQ(std::memcmp(memory.data(), expected.data(), expected.size()), 0);
}

}  // namespace
}  // namespace terrace
