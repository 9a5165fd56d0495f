// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/staging.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {
namespace {

constexpr const char* kNames[] = {"fetch",
                                  "leave",
                                  "gradient",
                                  "weight",
                                  "first_moment",
                                  "second_moment",
                                  "rounded",
                                  "first_moment_scales",
                                  "second_moment_scales"};

struct Piece {
  int value = kNone;
  size_t first = 0, last = 0;  // uses
};

struct RingBuffer {
  int value = kNone;
  size_t last = 0;  // use of what it holds
};

// By their first use.
std::vector<Piece> FindPieces(const Graph& graph, const std::vector<Node>& nodes) {
  std::vector<Piece> pieces;
  std::map<int, size_t> index;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Slice& slice : nodes[i].operands) {
      if (slice.absent()) continue;
      const int value = graph.Root(slice).value;
      if (graph.values[value].ring == kNone) continue;
      const auto [it, is_new] = index.try_emplace(value, pieces.size());
      if (is_new) pieces.push_back({.value = value, .first = i});
      pieces[it->second].last = i;
    }
  }
  return pieces;
}

}  // namespace

void AssignStaging(int sequence, Graph* graph) {
  const std::vector<Piece> pieces = FindPieces(*graph, graph->sequences[sequence].nodes);
  std::map<int, int64_t> bytes;  // by ring: of the largest piece
  for (const Piece& piece : pieces) {
    const Value& value = graph->values[piece.value];
    int64_t& most = bytes[value.ring];
    most = std::max(most, value.elements() * kernels::SizeOf(value.dtype));
  }
  std::map<int, std::vector<RingBuffer>> rings;
  for (const Piece& piece : pieces) {
    const int ring = graph->values[piece.value].ring;
    std::vector<RingBuffer>& buffers = rings[ring];
    auto oldest =
        std::min_element(buffers.begin(), buffers.end(),
                         [](const RingBuffer& a, const RingBuffer& b) { return a.last < b.last; });
    const bool free = oldest != buffers.end() && oldest->last < piece.first;
    if (!free || static_cast<int>(buffers.size()) < kRingBuffers) {
      const int value = graph->Add({.name = absl::StrCat("staging.", kNames[ring], buffers.size()),
                                    .cls = v1::COMMUNICATION,
                                    .dtype = kernels::DType::kU8,
                                    .shape = {bytes.at(ring)},
                                    .tier = v1::HOST,
                                    .sequence = sequence,
                                    .ring = ring});
      buffers.push_back({.value = value});
      oldest = buffers.end() - 1;
    }
    graph->values[piece.value].inside = oldest->value;
    oldest->last = piece.last;
  }
}

}  // namespace terrace::compiler
