// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/variations.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/planner.h"

namespace terrace {
namespace {

constexpr int64_t kMinSequenceLength = 16;

// What costs nothing but time, from the cheapest on; each step keeps those before it.
using Release = void (*)(v1::LayoutSpec*);
constexpr Release kReleases[] = {[](v1::LayoutSpec* layout) { layout->set_allocator("planned"); },
                                 [](v1::LayoutSpec* layout) { layout->clear_micro_batch(); },
                                 [](v1::LayoutSpec* layout) {
                                   layout->clear_recompute();
                                   layout->clear_recompute_every();
                                   layout->clear_recompute_layers();
                                 },
                                 [](v1::LayoutSpec* layout) {
                                   layout->set_zero(-1);
                                   layout->clear_shard_size();
                                 },
                                 [](v1::LayoutSpec* layout) { layout->set_tile_bytes(-1); },
                                 [](v1::LayoutSpec* layout) {
                                   const std::string packing = layout->packing();
                                   *layout = v1::LayoutSpec();
                                   layout->set_packing(packing);
                                   layout->set_allocator("planned");
                                   layout->set_zero(-1);
                                   layout->set_sequence_parallel(-1);
                                   layout->set_persistent_parameters(-1);
                                   layout->set_tile_bytes(-1);
                                 }};

}  // namespace

void SetSequenceLength(int64_t length, v1::JobSpec* spec) {
  v1::DataSpec* data = spec->mutable_data();
  data->set_sequence_length(length);
  // The longest bucket is as long as the samples.
  const std::vector<int64_t> buckets(data->buckets().begin(), data->buckets().end());
  data->clear_buckets();
  for (const int64_t bucket : buckets) {
    if (bucket < length) data->add_buckets(bucket);
  }
  if (!buckets.empty()) data->add_buckets(length);
}

Variation WithBf16(Variation variation) {
  variation.spec.mutable_train()->set_precision("bf16");
  variation.changes.push_back("train.precision bf16");
  return variation;
}

std::vector<Variation> Shorter(const Variation& variation) {
  std::vector<Variation> shorter = {variation};
  for (int64_t length = variation.spec.data().sequence_length() / 2; length >= kMinSequenceLength;
       length /= 2) {
    shorter.push_back(variation);
    SetSequenceLength(length, &shorter.back().spec);
    shorter.back().changes.push_back(absl::StrCat("data.sequence_length ", length));
  }
  return shorter;
}

std::vector<Variation> WithLayoutReleased(const Variation& variation) {
  std::vector<Variation> released = {variation};
  if (variation.spec.layout().packing() == "contiguous") {
    released.push_back(variation);
    released.back().spec.mutable_layout()->set_packing("auto");
    released.back().changes.push_back("layout.packing auto");
  }
  for (const Release release : kReleases) {
    Variation next = released.back();
    release(next.spec.mutable_layout());
    const bool changed =
        next.spec.layout().SerializeAsString() != released.back().spec.layout().SerializeAsString();
    if (changed) released.push_back(std::move(next));
  }
  return released;
}

std::vector<Variation> WithOffload(const Variation& variation) {
  std::vector<Variation> offloaded;
  if (variation.spec.layout().has_offload()) return offloaded;
  const bool has_nvme = variation.spec.resources().nvme().paths_size() > 0;
  for (const v1::Offload& offload : Offloads(/*to_nvme=*/true)) {
    Variation next = WithLayoutReleased(variation).back();
    *next.spec.mutable_layout()->mutable_offload() = offload;
    const bool nvme = offload.optimizer().nvme() > 0;
    if (nvme && !has_nvme) next.changes.push_back("resources.nvme (a folder)");
    offloaded.push_back(std::move(next));
  }
  return offloaded;
}

}  // namespace terrace
