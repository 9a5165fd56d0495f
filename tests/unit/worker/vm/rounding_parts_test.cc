// Whose random bits a rank takes, in every layout: each element of its weights those of its tensor
// and of its place in it, and padding none.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/rounding_parts.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "proto/program/op_codec.h"
#include "proto/program/state_layout.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

// What an element of a buffer is, by the state manifest or by the parts.
struct Place {
  kernels::PhiloxKey key = {};
  int64_t element = -1;
  bool operator==(const Place&) const = default;
};
using Places = std::map<uint32_t, std::vector<Place>>;  // by buffer

constexpr uint64_t kSeed = 91;

Places ByManifest(const v1::Program& program, const Coordinates& rank) {
  Places places;
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() != v1::WEIGHT || range.dtype() != v1::BF16) continue;
    std::vector<Place>& of = places[range.buffer()];
    of.resize(program.buffers(static_cast<int>(range.buffer())).bytes() / 2);
    const kernels::PhiloxKey key = kernels::RoundingKey(kSeed, TensorHash(range.tensor()));
    for (const StateRun& run : RunsOf(range, program.grid(), rank)) {
      for (int64_t i = 0; i < run.elements; ++i) of[run.offset / 2 + i] = {key, run.begin + i};
    }
  }
  return places;
}

Places ByUpdates(const v1::Program& program, const Coordinates& rank) {
  Places places;
  for (const v1::Instruction& instruction : program.sequences(0).instructions()) {
    if (instruction.compute().op() != "update_stochastic") continue;
    kernels::OpAttrs attrs = DecodeOp(instruction.compute()).value().attrs;
    auto& rounding = std::get<kernels::UpdateAttrs>(attrs).rounding;
    rounding.seed = kSeed;
    const int64_t elements = instruction.operands(1).shape(0);
    const absl::Status resolved = ResolveRounding(program, rank, elements, &rounding);
    EXPECT_TRUE(resolved.ok()) << resolved;
    std::vector<Place>& of = places[rounding.buffer];
    of.resize(program.buffers(static_cast<int>(rounding.buffer)).bytes() / 2);
    for (int64_t i = 0; i < elements; ++i) {
      for (const kernels::RoundingPart& part : *rounding.parts) {
        const kernels::RoundingPlace place = kernels::PlaceIn(part, i);
        if (place.element < 0) continue;
        Place& here = of[rounding.first + i];
        EXPECT_EQ(here.element, -1) << "two parts, or two updates";
        here = {part.key, place.element};
      }
    }
  }
  return places;
}

void ExpectAllPlaces(const LayoutCase& c) {
  const auto stages = CompileCase(c);
  ASSERT_TRUE(stages.ok()) << stages.status();
  int64_t elements = 0;
  for (uint32_t index = 0; index < RanksOf(stages->at(0).grid()); ++index) {
    const Coordinates rank = CoordinatesOf(stages->at(0).grid(), index);
    const v1::Program& program = stages->at(rank.stage);
    const Places want = ByManifest(program, rank), got = ByUpdates(program, rank);
    ASSERT_TRUE(want == got) << "rank " << index;
    for (const auto& [buffer, of] : want) elements += static_cast<int64_t>(of.size());
  }
  EXPECT_GT(elements, 0);
}

class RoundingPartsTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Families, RoundingPartsTest, testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param; });

TEST_P(RoundingPartsTest, EveryElementHasTheBitsOfItsPlaceInItsTensor) {
  constexpr size_t kEvery = 61;  // of the layouts that there are
  int layouts = 0;
  for (LayoutCase c : LayoutMatrix(8, kEvery)) {
    if (c.family != GetParam()) continue;
    SCOPED_TRACE(Describe(c));
    c.layout.set_precision("bf16");
    c.layout.set_stochastic_rounding(true);
    ExpectAllPlaces(c);
    ++layouts;
  }
  EXPECT_GT(layouts, 8);
}

TEST_P(RoundingPartsTest, SoItHasWhereStatesStreamThroughTheHost) {
  for (const uint32_t zero : {0, 3}) {
    LayoutCase c = {GetParam(), MatrixLayout()};
    c.layout.set_precision("bf16");
    c.layout.set_stochastic_rounding(true);
    c.layout.set_zero_stage(zero);
    c.layout.set_data_parallel(zero == 0 ? 1 : 2);
    c.layout.set_chunk_bytes(3 * 4096);
    for (auto* shares : {c.layout.mutable_offload()->mutable_optimizer(),
                         c.layout.mutable_offload()->mutable_parameter()}) {
      shares->set_device(0);
      shares->set_nvme(1);
    }
    ExpectAllPlaces(c);
  }
}

}  // namespace
}  // namespace terrace
