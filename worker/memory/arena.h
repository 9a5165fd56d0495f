// One reservation of exact size: what a program's offsets point into. Reserved with mmap (2 MiB
// pages where the system grants them), touched completely before admission, so that no page fault
// and no out-of-memory waits in the steps.
//
// Visible from outside: in /proc/<pid>/maps the mapping right behind the page
// "/memfd:terrace-arena-0" is the arena, and nothing else; where it has second addresses
// (second_addresses.h), all mappings of that name and those right behind them. Inaccessible pages
// lie on both sides, so that an overrun is a crash and not a wrong number.
//
// Owns the memory. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/memory/region.h"
#include "worker/memory/second_addresses.h"

namespace terrace {

class Arena final : public Region {
 public:
  // RESOURCE_EXHAUSTED with the bytes when the system refuses. The bytes are rounded up to the page
  // size only. The memory is zero.
  static absl::StatusOr<Arena> Reserve(std::string_view name, const ArenaExtent& extent);
  static absl::StatusOr<Arena> Reserve(std::string_view name, int64_t bytes) {
    return Reserve(name, ArenaExtent{.bytes = bytes});
  }
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena() override;

  // Writes one byte to every page, with `threads` threads.
  void Touch(int threads);

  std::byte* data() const override { return data_; }
  int64_t bytes() const override { return bytes_; }  // as asked for
  absl::Status Read(int64_t offset, std::span<std::byte> to) override;
  absl::Status Write(int64_t offset, std::span<const std::byte> from) override;
  int64_t reserved_bytes() const { return reserved_; }  // as mapped, without second addresses

 private:
  Arena(std::byte* data, int64_t bytes, int64_t reserved)
      : data_(data), bytes_(bytes), reserved_(reserved) {}
  std::byte* span_ = nullptr;  // the whole mapping, guard pages included
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t reserved_ = 0;
  int64_t span_bytes_ = 0;
  int64_t second_bytes_ = 0;
};

}  // namespace terrace
