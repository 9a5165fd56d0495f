// One tiny model laid out over grids of ranks: every rank's program and memory, and what each
// element must be, worked out element by element from the words of program.proto.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "proto/program/grid.h"
#include "proto/v1/program.pb.h"
#include "tests/support/memory_region.h"
#include "tests/support/request_region.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/peers.h"

namespace terrace {

struct TestLayout {
  std::string name;
  uint32_t tensor = 1, context = 1, data_shard = 1, data_replica = 1, pipeline = 1;
  bool sharded = false;     // states are flat shards over context and data_shard
  bool no_address = false;  // the state is reached by requests alone
};

// A rank of a layout: two layers, an embedding that the head shares, keys and values that two
// tensor ranks have in common when there are four.
class TestRank {
 public:
  TestRank(const TestLayout& layout, uint32_t rank) : sharded_(layout.sharded) {
    v1::Grid* grid = program_.mutable_grid();
    grid->set_tensor(layout.tensor);
    grid->set_context(layout.context);
    grid->set_data_shard(layout.data_shard);
    grid->set_data_replica(layout.data_replica);
    grid->set_pipeline(layout.pipeline);
    place_ = CoordinatesOf(*grid, rank);
    program_.set_stage(place_.stage);
    program_.add_arenas();
    for (const v1::StateKind kind : {v1::WEIGHT, v1::FIRST_MOMENT, v1::SECOND_MOMENT})
      AddKind(kind);
    ListTensors();
    memory_.assign(arena_bytes_ / sizeof(float), -7.0f);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(memory_));
    region_ = MemoryRegion(bytes);
    if (layout.no_address) regions_ = {&requests_.emplace(bytes)};
  }
  TestRank(const TestRank&) = delete;

  RankState state() { return {program_, place_, regions_}; }
  v1::Program& program() { return program_; }
  RequestRegion& requests() { return *requests_; }  // REQUIRES: no_address

  // Exact in f32, and not zero.
  static float Value(const std::string& tensor, v1::StateKind kind, int64_t element) {
    return static_cast<float>(std::hash<std::string>()(tensor) % 1000 * 1000 + element * 4 + kind +
                              1);
  }
  using Values = std::function<float(const std::string&, v1::StateKind, int64_t)>;

  void Fill(const Values& value) {
    Visit([&](const v1::StateRange& range, int64_t element, float& held) {
      held = value(range.tensor(), range.kind(), element);
    });
  }
  // Every element that the rank holds is `value`, everything else in its state buffers is zero.
  void Expect(const Values& value) {
    std::vector<float> expected(memory_.size(), 0.0f);
    Visit([&](const v1::StateRange& range, int64_t element, float& held) {
      expected[&held - memory_.data()] = value(range.tensor(), range.kind(), element);
    });
    for (const v1::Buffer& buffer : program_.buffers()) {
      for (int64_t i = buffer.offset() / 4; i < (buffer.offset() + buffer.bytes()) / 4; ++i) {
        ASSERT_EQ(memory_[i], expected[i])
            << Describe(program_.grid(), place_) << ", buffer " << buffer.name() << ", element "
            << i - buffer.offset() / 4;
      }
    }
  }
  void Dirty() { std::fill(memory_.begin(), memory_.end(), -7.0f); }

 private:
  struct Rectangle {
    std::string tensor;
    std::vector<int64_t> shape;
    int64_t row = 0, rows = 1, column = 0, columns = 1;
    v1::StateRange::Split split = v1::StateRange::WHOLE;
    uint32_t block = 0;
    bool copy = false;
    int64_t gap = 0;  // elements behind each row
  };

  uint32_t Tensor() const { return AxisSize(program_.grid(), v1::TENSOR); }
  bool OnStage(uint32_t stage) const {
    return place_.stage == std::min(stage, AxisSize(program_.grid(), v1::PIPELINE) - 1);
  }

  std::vector<Rectangle> RectanglesOfStage() const {
    const int64_t t = Tensor(), vocabulary = (11 + t - 1) / t;  // rows, the last ones padded
    const int64_t kv_ranks = std::min<int64_t>(t, 2);           // two heads of keys and of values
    const uint32_t block = t / kv_ranks;
    std::vector<Rectangle> list;
    if (OnStage(0) || OnStage(1)) {
      list.push_back({.tensor = "wte",
                      .shape = {11, 8},
                      .rows = vocabulary,
                      .columns = 8,
                      .split = v1::StateRange::BY_ROWS,
                      .copy = !OnStage(0)});
    }
    for (uint32_t layer : {0, 1}) {
      if (!OnStage(layer)) continue;
      const std::string h = "h." + std::to_string(layer) + ".";
      // 8 rows; queries, keys, values side by side: columns [0, 8), [8, 12), [12, 16).
      const auto split = [&](int64_t column, int64_t columns, uint32_t every) {
        list.push_back({.tensor = h + "qkv",
                        .shape = {8, 16},
                        .rows = 8,
                        .column = column,
                        .columns = columns,
                        .split = v1::StateRange::BY_COLUMNS,
                        .block = every,
                        .gap = 1});
      };
      split(0, 8 / t, 0);
      split(8, 4 / kv_ranks, block);
      split(12, 4 / kv_ranks, block);
      list.push_back({.tensor = h + "proj",
                      .shape = {8, 2, 4},
                      .rows = 8 / t,
                      .columns = 8,
                      .split = v1::StateRange::BY_ROWS});
      list.push_back({.tensor = h + "bias",
                      .shape = {9},
                      .columns = (9 + t - 1) / t,
                      .split = v1::StateRange::BY_COLUMNS});
      list.push_back({.tensor = h + "norm", .shape = {5}, .columns = 5});
    }
    return list;
  }

  // All rectangles of a kind lie in one region, one after the other.
  void AddKind(v1::StateKind kind) {
    int64_t region = 0;
    std::vector<v1::StateRange*> ranges;
    for (const Rectangle& r : RectanglesOfStage()) {
      v1::StateRange* range = program_.add_state();
      range->set_tensor(r.tensor);
      range->set_kind(kind);
      for (const int64_t size : r.shape) range->add_shape(size);
      range->set_row(r.row);
      range->set_rows(r.rows);
      range->set_column(r.column);
      range->set_columns(r.columns);
      range->set_split(r.split);
      range->set_split_block(r.block);
      range->set_buffer(program_.buffers_size());
      range->set_offset(region * 4);
      range->set_row_stride(r.columns + r.gap);
      range->set_dtype(v1::F32);
      range->set_copy(r.copy);
      region += r.rows * (r.columns + r.gap) + 3;
      ranges.push_back(range);
    }
    const int64_t shards = ShardCount(program_.grid());
    const int64_t shard = (region + shards - 1) / shards;
    for (v1::StateRange* range : ranges) range->set_shard_elements(sharded_ ? shard : 0);
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_name(v1::StateKind_Name(kind));
    buffer->set_bytes((sharded_ ? shard : region) * 4);
    buffer->set_offset(arena_bytes_);
    arena_bytes_ += (buffer->bytes() + 255) / 256 * 256;
  }

  // Of all stages, in the model's order.
  void ListTensors() {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      v1::Initializer* initializer = program_.add_initializers();
      initializer->set_tensor(name);
      initializer->set_kind(v1::Initializer::NORMAL);
      initializer->set_stddev(1);
      for (const int64_t size : shape) initializer->add_shape(size);
    };
    add("wte", {11, 8});
    for (const std::string h : {"h.0.", "h.1."}) {
      add(h + "norm", {5});
      add(h + "qkv", {8, 16});
      add(h + "proj", {8, 2, 4});
      add(h + "bias", {9});
    }
  }

  void Visit(const std::function<void(const v1::StateRange&, int64_t, float&)>& visit) {
    for (const v1::StateRange& range : program_.state()) {
      const v1::Buffer& buffer = program_.buffers(range.buffer());
      const int64_t tensor_rows = range.shape_size() == 1 ? 1 : range.shape(0);
      int64_t tensor_columns = 1;
      for (int d = range.shape_size() == 1 ? 0 : 1; d < range.shape_size(); ++d) {
        tensor_columns *= range.shape(d);
      }
      const int64_t moved = place_.tensor / std::max(1u, range.split_block());
      for (int64_t r = 0; r < range.rows(); ++r) {
        for (int64_t c = 0; c < range.columns(); ++c) {
          int64_t row = range.row() + r, column = range.column() + c;
          if (range.split() == v1::StateRange::BY_ROWS) row += moved * range.rows();
          if (range.split() == v1::StateRange::BY_COLUMNS) column += moved * range.columns();
          if (row >= tensor_rows || column >= tensor_columns) continue;
          int64_t position = range.offset() / 4 + r * range.row_stride() + c;
          if (range.shard_elements() > 0) {
            position -= ShardIndex(program_.grid(), place_) * range.shard_elements();
            if (position < 0 || position >= range.shard_elements()) continue;
          }
          visit(range, row * tensor_columns + column, memory_[buffer.offset() / 4 + position]);
        }
      }
    }
  }

  const bool sharded_;
  v1::Program program_;
  Coordinates place_;
  int64_t arena_bytes_ = 0;
  std::vector<float> memory_;
  MemoryRegion region_;
  std::optional<RequestRegion> requests_;
  std::vector<Region*> regions_ = {&region_};
};

// Threads as ranks. A rank that has left is lost to the others.
class ThreadPeers {
 public:
  explicit ThreadPeers(int size) : size_(size) {}

  class Peer final : public CheckpointPeers {
   public:
    Peer(ThreadPeers* all, int rank) : all_(all), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return all_->size_; }
    absl::Status AllGather(const void* in, void* out, int64_t bytes) override {
      return all_->AllGather(rank_, in, out, bytes);
    }

   private:
    ThreadPeers* const all_;
    const int rank_;
  };
  Peer At(int rank) { return Peer(this, rank); }

  void Leave() {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    changed_.notify_all();
  }

 private:
  absl::Status AllGather(int rank, const void* in, void* out, int64_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return lost_ || !leaving_; });
    // Who is lost does not come to this round. Others may still be leaving the last one, with its
    // data.
    if (lost_) return absl::UnavailableError("a peer is lost");
    data_.resize(size_ * bytes);
    std::copy_n(static_cast<const std::byte*>(in), bytes, data_.begin() + rank * bytes);
    if (++arrived_ == size_) leaving_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return lost_ || leaving_; });
    if (!leaving_) return absl::UnavailableError("a peer is lost");
    std::copy_n(data_.begin(), data_.size(), static_cast<std::byte*>(out));
    if (--arrived_ == 0) leaving_ = false;
    changed_.notify_all();
    return absl::OkStatus();
  }

  const int size_;
  std::mutex mutex_;  // the standard one: ThreadSanitizer sees through it
  std::condition_variable changed_;
  bool lost_ = false;
  bool leaving_ = false;
  int arrived_ = 0;
  std::vector<std::byte> data_;
};

// All ranks of a layout.
class TestJob {
 public:
  explicit TestJob(const TestLayout& layout) : layout_(layout) {
    const uint32_t size =
        layout.tensor * layout.context * layout.data_shard * layout.data_replica * layout.pipeline;
    for (uint32_t rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<TestRank>(layout, rank));
    }
  }
  int size() const { return static_cast<int>(ranks_.size()); }
  TestRank& rank(int index) { return *ranks_[index]; }
  void Fill(const TestRank::Values& value) {
    for (auto& rank : ranks_) rank->Fill(value);
  }
  void Expect(const TestRank::Values& value) {
    for (auto& rank : ranks_) rank->Expect(value);
  }
  void Dirty() {
    for (auto& rank : ranks_) rank->Dirty();
  }

  // Calls `body` for each rank on a thread of its own; the statuses by rank.
  std::vector<absl::Status> Run(
      const std::function<absl::Status(int, TestRank&, CheckpointPeers*)>& body) {
    ThreadPeers peers(size());
    std::vector<absl::Status> statuses(size());
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < size(); ++i) {
        threads.emplace_back([&, i] {
          ThreadPeers::Peer peer = peers.At(i);
          statuses[i] = body(i, *ranks_[i], &peer);
          if (absl::IsCancelled(statuses[i])) peers.Leave();
        });
      }
    }
    return statuses;
  }
  std::vector<absl::Status> Write(const std::string& directory, int64_t step, uint32_t keep = 0) {
    return Run([&](int, TestRank& rank, CheckpointPeers* peers) {
      return WriteCheckpoint(directory, {.step = step, .tokens = step * 10}, rank.state(),
                             {.keep = keep, .unix_ms = step, .peers = peers})
          .status();
    });
  }
  std::vector<absl::Status> Read(const std::string& path) {
    return Run([&](int, TestRank& rank, CheckpointPeers* peers) {
      return ReadCheckpoint(path, rank.state(), peers).status();
    });
  }

 private:
  const TestLayout layout_;
  std::vector<std::unique_ptr<TestRank>> ranks_;
};

}  // namespace terrace
