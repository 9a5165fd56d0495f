// A small program with weights and optimizer state, and the memory it runs in.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"
#include "tests/support/memory_region.h"
#include "tests/support/request_region.h"
#include "worker/checkpoint/checkpoint.h"

namespace terrace {

// A folder for one test, removed with the fixture.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string path(const std::string& name = "") const {
    return name.empty() ? path_ : path_ + "/" + name;
  }

 private:
  std::string path_;
};

// Adds tensors one after the other; each has a weight and both Adam moments.
class StateFixture {
 public:
  // `no_address`: the memory is reached by requests alone.
  explicit StateFixture(v1::DType dtype = v1::F32, bool no_address = false)
      : dtype_(dtype), no_address_(no_address) {
    program_.add_arenas()->set_id(0);
    spec_.set_name("fixture");
    spec_.mutable_train()->set_seed(7);
  }

  // `parts`: into how many ranges, each in a buffer of its own, the tensor's first dimension is
  // cut.
  void Add(const std::string& name, const std::vector<int64_t>& shape, int parts = 1) {
    for (const v1::StateKind kind : {v1::WEIGHT, v1::FIRST_MOMENT, v1::SECOND_MOMENT}) {
      for (int part = 0; part < parts; ++part) {
        const int64_t begin = shape[0] * part / parts;
        AddRange(name, shape, kind, begin, shape[0] * (part + 1) / parts - begin);
      }
    }
    v1::Initializer* initializer = program_.add_initializers();
    initializer->set_tensor(name);
    initializer->set_kind(v1::Initializer::NORMAL);
    initializer->set_stddev(0.02f);
    for (const int64_t size : shape) initializer->add_shape(size);
  }

  // Reserves the arena, filled with a pattern that differs in every byte position and `salt`.
  void Fill(uint8_t salt) {
    memory_.resize(arena_bytes_);
    for (size_t i = 0; i < memory_.size(); ++i) {
      memory_[i] = static_cast<std::byte>(i * 31 + (i >> 8) * 7 + salt);
      if (i % 2 == 1) memory_[i] &= std::byte{0xbf};  // an exponent without its top bit is finite
    }
    Expose();
  }
  void Clear() {
    memory_.assign(arena_bytes_, std::byte{0});
    Expose();
  }

  std::span<float> Floats(const std::string& name, v1::StateKind kind = v1::WEIGHT) {
    for (const v1::StateRange& range : program_.state()) {
      if (range.tensor() != name || range.kind() != kind) continue;
      const int64_t offset = program_.buffers(range.buffer()).offset() + range.offset();
      return {reinterpret_cast<float*>(memory_.data() + offset),
              static_cast<size_t>(range.rows() * range.columns())};
    }
    return {};
  }

  v1::Program& program() { return program_; }
  v1::JobSpec& spec() { return spec_; }
  RankState state() const { return {program_, {}, regions_}; }
  std::vector<std::byte>& memory() { return memory_; }
  RequestRegion& requests() { return *requests_; }  // REQUIRES: no_address, Fill or Clear

 private:
  void Expose() {
    region_ = MemoryRegion(memory_);
    if (no_address_) regions_ = {&requests_.emplace(memory_)};
  }
  void AddRange(const std::string& name, const std::vector<int64_t>& shape, v1::StateKind kind,
                int64_t begin, int64_t size) {
    const bool is_vector = shape.size() < 2;
    const int64_t rows = is_vector ? 1 : size, columns = is_vector ? size : shape[1];
    const int64_t bytes = rows * columns * (dtype_ == v1::F32 ? 4 : 2);
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_bytes(bytes);
    buffer->set_offset(arena_bytes_);
    arena_bytes_ += (bytes + 255) / 256 * 256;
    v1::StateRange* range = program_.add_state();
    range->set_tensor(name);
    range->set_kind(kind);
    range->set_row(is_vector ? 0 : begin);
    range->set_rows(rows);
    range->set_column(is_vector ? begin : 0);
    range->set_columns(columns);
    range->set_row_stride(columns);
    range->set_buffer(buffer->id());
    range->set_dtype(dtype_);
    for (const int64_t dimension : shape) range->add_shape(dimension);
  }

  const v1::DType dtype_;
  const bool no_address_;
  v1::Program program_;
  v1::JobSpec spec_;
  int64_t arena_bytes_ = 0;
  std::vector<std::byte> memory_;
  MemoryRegion region_;
  std::optional<RequestRegion> requests_;
  std::vector<Region*> regions_ = {&region_};
};

}  // namespace terrace
