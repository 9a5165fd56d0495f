// SPDX-License-Identifier: Apache-2.0
// Checkpoints move between layouts: saved under any, resumed under any other.
#include <cstring>
#include <fstream>
#include <functional>
#include <latch>
#include <map>

#include "base/file.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/checkpoint/layout_fixture.h"
#include "tests/unit/worker/checkpoint/state_fixture.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const std::vector<TestLayout>& Layouts() {
  static const std::vector<TestLayout> layouts = {
      {.name = "one"},
      {.name = "tp2", .tensor = 2},
      {.name = "tp4", .tensor = 4},  // two ranks to each head of keys and values
      {.name = "zero3", .data_shard = 3, .sharded = true},
      {.name = "dp2_tp2", .tensor = 2, .data_replica = 2},
      {.name = "dp2_cp2", .context = 2, .data_shard = 2},
      {.name = "pp2", .pipeline = 2},  // with a copy of the embedding on the second stage
      {.name = "all",
       .tensor = 2,
       .context = 2,
       .data_shard = 2,
       .data_replica = 2,
       .pipeline = 2,
       .sharded = true},
      {.name = "one_nvme", .no_address = true},
      {.name = "tp4_nvme", .tensor = 4, .no_address = true},
      {.name = "zero3_nvme", .data_shard = 3, .sharded = true, .no_address = true},
      {.name = "pp2_tp2_zero2_nvme",
       .tensor = 2,
       .data_shard = 2,
       .pipeline = 2,
       .sharded = true,
       .no_address = true}};
  return layouts;
}

std::vector<std::string> EntriesOf(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

void ExpectWholeTensors(const std::string& file, std::vector<v1::StateKind> kinds) {
  const auto reader = SafetensorsReader::Open(file).value();
  EXPECT_EQ(reader->metadata().at("format"), "pt");
  TestRank whole({.name = "one"}, 0);
  size_t tensors = 0;
  for (const v1::Initializer& initializer : whole.program().initializers()) {
    for (const v1::StateKind kind : kinds) {
      const char* suffix = kind == v1::FIRST_MOMENT    ? ".adam_m"
                           : kind == v1::SECOND_MOMENT ? ".adam_v"
                                                       : "";
      const StoredTensor tensor = reader->Get(initializer.tensor() + suffix).value();
      const std::vector<std::byte> data = tensor.ReadAll().value();
      EXPECT_THAT(tensor.shape, ::testing::ElementsAreArray(initializer.shape()));
      for (size_t i = 0; i < data.size() / 4; ++i) {
        float value;
        std::memcpy(&value, data.data() + i * 4, 4);
        ASSERT_EQ(value, TestRank::Value(initializer.tensor(), kind, i)) << tensor.name << " " << i;
      }
      ++tensors;
    }
  }
  EXPECT_EQ(reader->Names().size(), tensors);
}

class LayoutTest : public ::testing::TestWithParam<TestLayout> {
 protected:
  std::string Save() {
    TestJob job(GetParam());
    job.Fill(&TestRank::Value);
    EXPECT_THAT(job.Write(folder_.path(), 7), Each(absl::OkStatus()));
    return folder_.path("step-00000007");
  }
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutTest, ::testing::ValuesIn(Layouts()),
                         [](const auto& info) { return info.param.name; });

TEST_P(LayoutTest, TheFilesHoldWholeTensorsThatVerify) {
  const std::string path = Save();
  EXPECT_TRUE(VerifyCheckpoint(path).ok()) << VerifyCheckpoint(path);
  ExpectWholeTensors(path + "/model.safetensors", {v1::WEIGHT});
  ExpectWholeTensors(path + "/optimizer.safetensors", {v1::FIRST_MOMENT, v1::SECOND_MOMENT});
  EXPECT_EQ(NewestCheckpoint(folder_.path()).value().tokens, 70);
}

TEST_P(LayoutTest, TheFilesAreTheSameAsOfOneRank) {
  const std::string path = Save();
  TestJob one({.name = "one"});
  one.Fill(&TestRank::Value);
  TemporaryFolder other;
  ASSERT_THAT(one.Write(other.path(), 7), Each(absl::OkStatus()));
  for (const char* name : {"/model.safetensors", "/optimizer.safetensors", "/manifest.json"}) {
    EXPECT_EQ(ReadTextFile(path + name, 1 << 20).value(),
              ReadTextFile(other.path("step-00000007") + name, 1 << 20).value())
        << name;
  }
}

TEST_P(LayoutTest, ResumesUnderEveryLayout) {
  const std::string path = Save();
  for (const TestLayout& layout : Layouts()) {
    SCOPED_TRACE(layout.name);
    TestJob job(layout);
    ASSERT_THAT(job.Read(path), Each(absl::OkStatus()));
    job.Expect(&TestRank::Value);
  }
}

TEST_P(LayoutTest, GivenWeightsReachWhoHoldsThemAndMomentsAreZero) {
  TestJob one({.name = "one"}), job(GetParam());
  one.Fill(&TestRank::Value);
  ASSERT_THAT(one.Write(folder_.path(), 1), Each(absl::OkStatus()));
  for (int i = 0; i < job.size(); ++i) {
    ASSERT_TRUE(ReadWeights(folder_.path("step-00000001"), job.rank(i).state()).ok());
  }
  job.Expect([](const std::string& tensor, v1::StateKind kind, int64_t element) {
    return kind == v1::WEIGHT ? TestRank::Value(tensor, kind, element) : 0.0f;
  });
}

TEST_P(LayoutTest, RandomWeightsDoNotDependOnTheLayout) {
  TestJob one({.name = "one"}), job(GetParam());
  ASSERT_TRUE(InitialiseWeights(3, one.rank(0).state(), 1).ok());
  ASSERT_THAT(one.Write(folder_.path(), 1), Each(absl::OkStatus()));
  const auto model = SafetensorsReader::Open(folder_.path("step-00000001")).value();
  std::map<std::string, std::vector<std::byte>> drawn;
  for (const std::string& name : model->Names()) {
    drawn[name] = model->Get(name).value().ReadAll().value();
  }
  for (int i = 0; i < job.size(); ++i) {
    ASSERT_TRUE(InitialiseWeights(3, job.rank(i).state(), 2).ok());
  }
  job.Expect([&](const std::string& tensor, v1::StateKind kind, int64_t element) {
    float value = 0;
    if (kind != v1::WEIGHT) return value;
    std::memcpy(&value, drawn.at(tensor).data() + element * 4, 4);
    return value;
  });
}

// ---- failures of one rank ----------------------------------------------------------------------

class OneRankFailsTest : public ::testing::Test {
 protected:
  OneRankFailsTest() : job_({.name = "tp2_zero2", .tensor = 2, .data_shard = 2, .sharded = true}) {
    job_.Fill(&TestRank::Value);
    EXPECT_THAT(job_.Write(folder_.path(), 1), Each(absl::OkStatus()));
  }
  void ExpectOnlyTheFirst() {
    EXPECT_THAT(EntriesOf(folder_.path()),
                ::testing::UnorderedElementsAre(".write.lock", "step-00000001"));
    EXPECT_TRUE(VerifyCheckpoint(folder_.path("step-00000001")).ok());
  }
  TemporaryFolder folder_;
  TestJob job_;
};

TEST_F(OneRankFailsTest, AllFailWithItsWords) {
  job_.rank(2).program().mutable_initializers(0)->set_tensor("another");
  const std::vector<absl::Status> statuses = job_.Write(folder_.path(), 2);
  EXPECT_THAT(std::string(statuses[2].message()), HasSubstr("was begun with other tensors"));
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(statuses[rank].message()),
                HasSubstr(std::string("rank 2: ") + std::string(statuses[2].message())));
  }
  ExpectOnlyTheFirst();
}

TEST_F(OneRankFailsTest, ARankThatIsLostBeforeItWritesFailsTheRest) {
  const auto statuses = job_.Run([&](int index, TestRank& rank, CheckpointPeers* peers) {
    if (index == 3) return absl::CancelledError("killed");
    return WriteCheckpoint(folder_.path(), {.step = 2}, rank.state(), {.peers = peers}).status();
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(absl::IsUnavailable(statuses[rank]));
  ExpectOnlyTheFirst();
}

// Peers among whom something happens around each call.
class WatchedPeers final : public CheckpointPeers {
 public:
  using Gather = std::function<absl::Status()>;
  using Around = std::function<absl::Status(int call, const Gather& gather)>;  // calls from 1
  WatchedPeers(CheckpointPeers* peers, Around around) : peers_(peers), around_(std::move(around)) {}
  int rank() const override { return peers_->rank(); }
  int size() const override { return peers_->size(); }
  absl::Status AllGather(const void* in, void* out, int64_t bytes) override {
    return around_(++calls_, [&] { return peers_->AllGather(in, out, bytes); });
  }

 private:
  CheckpointPeers* const peers_;
  const Around around_;
  int calls_ = 0;
};

absl::Status LostInTheSecondCall(int call, const WatchedPeers::Gather& gather) {
  return call == 2 ? absl::CancelledError("killed") : gather();
}

TEST_F(OneRankFailsTest, ARankThatIsLostAfterItHasReadFailsTheRest) {
  const auto statuses = job_.Run([&](int index, TestRank& rank, CheckpointPeers* peers) {
    WatchedPeers lost(peers, &LostInTheSecondCall);
    return WriteCheckpoint(folder_.path(), {.step = 2}, rank.state(),
                           {.peers = index == 1 ? &lost : peers})
        .status();
  });
  for (const int rank : {0, 2, 3}) {
    EXPECT_TRUE(absl::IsUnavailable(statuses[rank])) << rank << ": " << statuses[rank];
  }
  ExpectOnlyTheFirst();
}

TEST_F(OneRankFailsTest, ARankThatFindsNoFolderAfterALossSaysThatAPeerIsLost) {
  std::latch removed(1);
  const auto statuses = job_.Run([&](int index, TestRank& rank, CheckpointPeers* peers) {
    WatchedPeers lost(peers, &LostInTheSecondCall);
    WatchedPeers late(peers, [&](int, const WatchedPeers::Gather& gather) {
      const absl::Status status = gather();
      removed.wait();
      return status;
    });
    const absl::Status status = WriteCheckpoint(folder_.path(), {.step = 2}, rank.state(),
                                                {.peers = index == 1   ? &lost
                                                          : index == 2 ? &late
                                                                       : peers})
                                    .status();
    if (index == 0) removed.count_down();
    return status;
  });
  for (const int rank : {0, 2, 3}) {
    EXPECT_TRUE(absl::IsUnavailable(statuses[rank])) << rank << ": " << statuses[rank];
  }
  ExpectOnlyTheFirst();
}

TEST_F(OneRankFailsTest, APartThatNobodyOwnsIsNotACheckpoint) {
  for (const int rank : {1, 3}) {  // the second half of each tensor
    for (v1::StateRange& range : *job_.rank(rank).program().mutable_state()) {
      if (range.tensor() == "h.1.bias") range.set_copy(true);
    }
  }
  for (const absl::Status& status : job_.Write(folder_.path(), 2)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("must be all of them, each once"));
  }
  ExpectOnlyTheFirst();
}

TEST_F(OneRankFailsTest, TheFenceOpensOnEveryRankOnceItsStateHasBeenRead) {
  std::atomic<int> opened = 0;
  const auto statuses = job_.Run([&](int, TestRank& rank, CheckpointPeers* peers) {
    return WriteCheckpoint(folder_.path(), {.step = 2}, rank.state(),
                           {.peers = peers,
                            .on_read =
                                [&] {
                                  ++opened;
                                  rank.Dirty();  // as the optimizer would
                                }})
        .status();
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
  EXPECT_EQ(opened, 4);
  ASSERT_THAT(job_.Read(folder_.path("step-00000002")), Each(absl::OkStatus()));
  job_.Expect(&TestRank::Value);
}

}  // namespace
}  // namespace terrace
