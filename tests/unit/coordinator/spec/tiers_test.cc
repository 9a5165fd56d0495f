// The keys of memory tiers: where things rest, and what the tiers may hold.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kMinimal[] = R"(name: books
model: {config: gpt2}
data: {train: [books.txt]}
train: {steps: 10, global_batch: 8}
)";

v1::JobSpec Parse(const std::string& more) {
  const auto spec = ParseJobSpec(absl::StrCat(kMinimal, more), "/jobs");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : v1::JobSpec();
}

std::string ErrorOf(const std::string& more) {
  const auto spec = ParseJobSpec(absl::StrCat(kMinimal, more), "/jobs");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << more;
  return std::string(spec.status().message());
}

TEST(TiersTest, NothingIsOffloadedUnlessAsked) {
  const v1::JobSpec spec = Parse("");
  EXPECT_FALSE(spec.layout().has_offload());
  EXPECT_EQ(spec.layout().allocator(), "planned");
  EXPECT_EQ(spec.layout().chunk_bytes(), 0);
  EXPECT_EQ(spec.layout().tile_bytes(), -1);
  EXPECT_EQ(spec.resources().host_memory(), 0);
  EXPECT_EQ(spec.resources().nvme().paths_size(), 0);
  EXPECT_EQ(spec.resources().nvme().engine(), "auto");
  EXPECT_FALSE(spec.resources().nvme().verify());
}

TEST(TiersTest, ATierOrItsPartsAreRead) {
  const v1::JobSpec spec = Parse(R"(
layout:
  offload: {parameter: host, optimizer: {device: 0.2, host: 0.5, nvme: 0.3}}
  allocator: planned
  chunk_bytes: 4MiB
  tile_bytes: 0
resources: {nvme: fast, host_memory: 2GiB}
)");
  const v1::Offload& offload = spec.layout().offload();
  EXPECT_EQ(offload.parameter().host(), 1);
  EXPECT_FALSE(offload.has_gradient());
  EXPECT_EQ(offload.optimizer().device(), 0.2);
  EXPECT_EQ(offload.optimizer().host(), 0.5);
  EXPECT_EQ(offload.optimizer().nvme(), 0.3);
  EXPECT_EQ(spec.layout().allocator(), "planned");
  EXPECT_EQ(spec.layout().chunk_bytes(), 4 << 20);
  EXPECT_EQ(spec.layout().tile_bytes(), 0);
  EXPECT_EQ(spec.resources().host_memory(), int64_t{2} << 30);
}

TEST(TiersTest, NvmeIsAFolderFoldersOrAMapping) {
  EXPECT_THAT(Parse("resources: {nvme: fast}").resources().nvme().paths(),
              ElementsAre("/jobs/fast"));
  EXPECT_THAT(Parse("resources: {nvme: [/mnt/a, b]}").resources().nvme().paths(),
              ElementsAre("/mnt/a", "/jobs/b"));
  const v1::NvmeSpec nvme = Parse(R"(
resources:
  nvme:
    paths: [/mnt/a, /mnt/b]
    bytes: 1TB
    block_bytes: 512KiB
    queue_depth: 32
    verify: true
    engine: threads
    endurance: 3PB
    min_drive_life_days: 365.5
    bytes_per_second: 100MB
)")
                                .resources()
                                .nvme();
  EXPECT_THAT(nvme.paths(), ElementsAre("/mnt/a", "/mnt/b"));
  EXPECT_EQ(nvme.bytes(), int64_t{1'000'000'000'000});
  EXPECT_EQ(nvme.block_bytes(), 512 << 10);
  EXPECT_EQ(nvme.queue_depth(), 32u);
  EXPECT_TRUE(nvme.verify());
  EXPECT_EQ(nvme.engine(), "threads");
  EXPECT_EQ(nvme.endurance_bytes(), 3e15);
  EXPECT_EQ(nvme.min_drive_life_days(), 365.5);
  EXPECT_EQ(nvme.bytes_per_second(), 100'000'000);
}

TEST(TiersTest, OneWordOffloadsTheStates) {
  const v1::Offload offload = Parse("layout: {offload: host}").layout().offload();
  EXPECT_EQ(offload.parameter().host(), 1);
  EXPECT_EQ(offload.gradient().host(), 1);
  EXPECT_EQ(offload.optimizer().host(), 1);
  EXPECT_FALSE(offload.has_activation());
}

TEST(TiersTest, AWrongTierIsSaidOnceWithTheNearestOne) {
  const std::string error = ErrorOf("layout: {offload: hots}");
  EXPECT_THAT(error,
              AllOf(HasSubstr("line 5, column 10: layout.offload: got \"hots\", must be one of "
                              "device, host, nvme"),
                    HasSubstr("try host"), Not(HasSubstr("layout.offload.gradient"))));
}

TEST(TiersTest, AllProblemsOfPartsAreReportedWithTheirPlaces) {
  const std::string error = ErrorOf(R"(layout:
  offload:
    parameter: {device: 0.5, hosst: 0.5}
    gradient: {device: 0.5, host: 0.4}
    optimizer: {device: 0.5, host: 1.5}
    activation: [host]
    optimiser: host
)");
  EXPECT_THAT(error, HasSubstr("line 7, column 30: layout.offload.parameter.hosst: got an unknown "
                               "tier, must be one of device, host, nvme; try host"));
  EXPECT_THAT(error, HasSubstr("line 8, column 5: layout.offload.gradient: got parts that sum to "
                               "0.9, must be parts that sum to 1"));
  EXPECT_THAT(error, HasSubstr("line 9, column 30: layout.offload.optimizer.host: got \"1.5\", "
                               "must be a part from 0 to 1"));
  EXPECT_THAT(error, HasSubstr("line 10, column 5: layout.offload.activation: got a list"));
  EXPECT_THAT(error, HasSubstr("line 11, column 5: layout.offload.optimiser: got an unknown key"));
  EXPECT_THAT(error, HasSubstr("try layout.offload.optimizer"));
}

TEST(TiersTest, HowBuffersArePackedIsOneOfThreeWords) {
  EXPECT_EQ(Parse("").layout().packing(), "auto");
  EXPECT_EQ(Parse("layout: {packing: contiguous}").layout().packing(), "contiguous");
  EXPECT_EQ(Parse("layout: {packing: pages, allocator: planned}").layout().packing(), "pages");
  EXPECT_THAT(ErrorOf("layout: {packing: page}"),
              AllOf(HasSubstr("line 5, column 10: layout.packing: got \"page\", must be one of "
                              "auto, contiguous, pages"),
                    HasSubstr("try pages")));
}

TEST(TiersTest, AnAllocatorThatPlacesBuffersHasNoPagesToPack) {
  EXPECT_THAT(ErrorOf("layout: {packing: pages, allocator: caching}"),
              AllOf(HasSubstr("layout.packing: got pages, must be left out with layout.allocator "
                              "caching"),
                    HasSubstr("try layout.allocator planned")));
  Parse("layout: {packing: auto, allocator: caching}");
}

TEST(TiersTest, NvmeNeedsAFolder) {
  EXPECT_THAT(ErrorOf("layout: {offload: {optimizer: {host: 0.5, nvme: 0.5}}}"),
              AllOf(HasSubstr("line 5, column 20: layout.offload.optimizer: got nvme, must be "
                              "accompanied by a folder"),
                    HasSubstr("try resources: {nvme: /mnt/nvme}, or host")));
  Parse("layout: {offload: {optimizer: nvme}}\nresources: {nvme: /mnt/a}");
}

TEST(TiersTest, TheSameFolderTwiceIsRefused) {
  EXPECT_THAT(ErrorOf("resources: {nvme: [/mnt/a, /mnt/a/]}"), HasSubstr("different folders"));
}

TEST(TiersTest, SizesAreWholeBlocks) {
  EXPECT_THAT(
      ErrorOf("layout: {chunk_bytes: 5000}"),
      HasSubstr("layout.chunk_bytes: got 5000 bytes, must be a multiple of 4096; try 8192"));
  EXPECT_THAT(ErrorOf("layout: {tile_bytes: 5000}"), HasSubstr("layout.tile_bytes"));
  EXPECT_THAT(ErrorOf("resources: {nvme: {paths: a, block_bytes: 10000}}"),
              HasSubstr("resources.nvme.block_bytes"));
}

TEST(TiersTest, ADriveLifeNeedsTheEndurance) {
  EXPECT_THAT(ErrorOf("resources: {nvme: {paths: a, min_drive_life_days: 300}}"),
              AllOf(HasSubstr("resources.nvme.min_drive_life_days: got 300"),
                    HasSubstr("resources.nvme.endurance"), HasSubstr("3PB")));
}

}  // namespace
}  // namespace terrace
