// Ring reduce-scatter and all-gather (Patarasuk and Yuan 2009), the two halves of an all-reduce.
//
// A payload is N parts, each cut into segments. In step s of N - 1 every member sends one part to
// its right neighbour and receives another from its left one; segments of several steps are under
// way at a time, so that adding, sending and receiving overlap. Part p is summed in the order p +
// 1, p + 2, ..., p, in one place: the same bits on every member and every run, whoever asks for
// them.
//
// Partial sums live in segments that are reserved once; the inputs are never written. Borrows the
// mesh. Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "worker/comm/gloo_mesh.h"
#include "worker/comm/sums.h"

namespace terrace {

// How a payload is divided: part p is bytes [p * part_bytes, (p + 1) * part_bytes), cut at its end.
struct Parts {
  int64_t bytes = 0;
  int64_t part_bytes = 0;

  int64_t Begin(int part) const { return std::min(bytes, part * part_bytes); }
  int64_t Bytes(int part) const { return Begin(part + 1) - Begin(part); }
};

class Ring {
 public:
  explicit Ring(GlooMesh* mesh);

  // `out` receives the sum of this member's part; it may be that part of `in`.
  absl::Status ReduceScatter(const std::byte* in, std::byte* out, const Parts& parts, Adder add);
  // Every member's own part must be in place.
  absl::Status AllGather(std::byte* data, const Parts& parts);

 private:
  struct Reduction;
  absl::Status ReceiveSum(const Reduction& reduction, int64_t message);
  absl::Status TakeSum(const Reduction& reduction, int64_t message);
  absl::Status SendSum(const Reduction& reduction, int64_t message);
  absl::Status FinishSend(const Reduction& reduction, int64_t message);

  GlooMesh* const mesh_;
  const std::unique_ptr<std::byte[]> scratch_;
  Window scratch_window_;
};

}  // namespace terrace
