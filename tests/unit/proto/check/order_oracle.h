// What the checker must decide about order, in the slowest and plainest way: reachability between
// all pairs of instructions, then all pairs of accesses that share bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

class OrderOracle {
 public:
  // Of dense and strided operands every row; `sequence` belongs to the program.
  OrderOracle(const v1::Program& program, const v1::Sequence& sequence) {
    std::vector<std::vector<Touch>> touches(program.buffers_size());
    for (const v1::Instruction& instruction : sequence.instructions()) {
      const auto touch = [&](const v1::Operand& operand) {
        if (operand.access() == v1::ACCESS_UNSPECIFIED) return;
        touches[operand.buffer()].push_back({static_cast<int>(instruction.id()), &operand});
      };
      for (const v1::Operand& operand : instruction.operands()) touch(operand);
      touch(instruction.compute().workspace());
    }
    for (int a = 0; a < program.buffers_size(); ++a) {
      AddWithin(touches[a]);
      for (int b = a + 1; b < program.buffers_size(); ++b) {
        if (!touches[a].empty() && !touches[b].empty() &&
            Meet(program, program.buffers(a), program.buffers(b))) {
          AddBetween(touches[a], touches[b]);
        }
      }
    }
  }

  // Whether the waits and streams of `sequence`, which differs from that of the constructor in
  // nothing else, order all that must be ordered.
  bool IsSafe(const v1::Sequence& sequence) const {
    const std::vector<std::vector<uint64_t>> before = Reach(sequence);
    const auto ordered = [&](int i, int j) { return (before[j][i / 64] >> (i % 64) & 1) != 0; };
    for (const auto& [i, j] : conflicts_) {
      if (!ordered(i, j)) return false;
    }
    // Two buffers in one place: all of one before all of the other, in either order.
    for (const auto& pairs : either_) {
      bool all = true, any_forward = false, any_backward = false;
      for (const auto& [i, j] : pairs) {
        const bool forward = i < j && ordered(i, j), backward = j < i && ordered(j, i);
        all = all && (forward || backward);
        any_forward = any_forward || forward;
        any_backward = any_backward || backward;
      }
      if (!all || (any_forward && any_backward)) return false;
    }
    return true;
  }

 private:
  struct Touch {
    int instruction = 0;
    const v1::Operand* operand = nullptr;
  };

  static int64_t Size(v1::DType dtype) {
    return dtype == v1::U8 ? 1 : dtype == v1::BF16 || dtype == v1::F16 ? 2 : 4;
  }
  // [begin, end) of each row.
  static std::vector<std::pair<int64_t, int64_t>> RowsOf(const v1::Operand& operand) {
    int64_t columns = 1;
    for (int d = 1; d < operand.shape_size(); ++d) columns *= operand.shape(d);
    const int64_t stride = operand.row_stride() == 0 ? columns : operand.row_stride();
    const int64_t size = Size(operand.dtype());
    std::vector<std::pair<int64_t, int64_t>> rows;
    for (int64_t r = 0; r < operand.shape(0); ++r) {
      const int64_t begin = operand.offset() + r * stride * size;
      rows.emplace_back(begin, begin + columns * size);
    }
    return rows;
  }
  static bool Overlap(const v1::Operand& a, const v1::Operand& b) {
    for (const auto& [a_begin, a_end] : RowsOf(a)) {
      for (const auto& [b_begin, b_end] : RowsOf(b)) {
        if (a_begin < b_end && b_begin < a_end) return true;
      }
    }
    return false;
  }
  // Page by page where addresses are pages: the page of each of 256 bytes, or of all.
  static int64_t MemoryOf(const v1::Arena& arena, int64_t address) {
    if (address < arena.bytes()) return address;
    int64_t page = (address - arena.bytes()) / arena.page_bytes();
    for (const v1::PageRun& run : arena.aliases()) {
      if (page < run.pages())
        return (run.page() + page) * arena.page_bytes() + address % arena.page_bytes();
      page -= run.pages();
    }
    return -1;
  }
  static bool Meet(const v1::Program& program, const v1::Buffer& a, const v1::Buffer& b) {
    if (a.lifetime() != v1::STEP || b.lifetime() != v1::STEP || a.arena() != b.arena() ||
        a.sequence() != b.sequence()) {
      return false;
    }
    const v1::Arena& arena = program.arenas(static_cast<int>(a.arena()));
    if (arena.page_bytes() == 0)
      return a.offset() < b.offset() + b.bytes() && b.offset() < a.offset() + a.bytes();
    std::set<int64_t> places;  // offsets are multiples of 256
    for (int64_t at = 0; at < a.bytes(); at += 256) places.insert(MemoryOf(arena, a.offset() + at));
    for (int64_t at = 0; at < b.bytes(); at += 256) {
      if (places.contains(MemoryOf(arena, b.offset() + at))) return true;
    }
    return false;
  }

  void AddWithin(const std::vector<Touch>& touches) {
    for (size_t b = 0; b < touches.size(); ++b) {
      for (size_t a = 0; a < b; ++a) {
        const bool writes =
            touches[a].operand->access() != v1::READ || touches[b].operand->access() != v1::READ;
        if (touches[a].instruction != touches[b].instruction && writes &&
            Overlap(*touches[a].operand, *touches[b].operand)) {
          conflicts_.emplace(touches[a].instruction, touches[b].instruction);
        }
      }
    }
  }
  void AddBetween(const std::vector<Touch>& a, const std::vector<Touch>& b) {
    std::set<std::pair<int, int>> pairs;
    for (const Touch& x : a) {
      for (const Touch& y : b) pairs.emplace(x.instruction, y.instruction);
    }
    either_.push_back(std::move(pairs));
  }

  // By instruction, a bit for each that comes before it.
  static std::vector<std::vector<uint64_t>> Reach(const v1::Sequence& sequence) {
    const int count = sequence.instructions_size();
    std::vector<std::vector<uint64_t>> before(count, std::vector<uint64_t>(count / 64 + 1, 0));
    std::vector<int> last(64, -1);  // by stream
    for (int j = 0; j < count; ++j) {
      const v1::Instruction& instruction = sequence.instructions(j);
      const auto join = [&](int i) {
        for (size_t word = 0; word < before[j].size(); ++word) before[j][word] |= before[i][word];
        before[j][i / 64] |= uint64_t{1} << (i % 64);
      };
      if (last[instruction.stream()] >= 0) join(last[instruction.stream()]);
      for (uint32_t wait : instruction.waits()) join(static_cast<int>(wait));
      last[instruction.stream()] = j;
    }
    return before;
  }

  std::set<std::pair<int, int>> conflicts_;
  std::vector<std::set<std::pair<int, int>>> either_;
};

}  // namespace terrace
