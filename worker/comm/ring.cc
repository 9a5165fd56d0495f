// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/ring.h"

#include "base/status_macros.h"

namespace terrace {
namespace {

// As large as pays: each message costs two notices and some waking of threads. Smaller ones where a
// part would not fill several, so that adding and sending still overlap; but none below the
// minimum.
constexpr int64_t kMaxSegmentBytes = 1 << 20;
constexpr int64_t kMinSegmentBytes = 32 << 10;
constexpr int64_t kSegmentsWanted = 2;
// For partial sums: one is received, one added to, one sent on.
constexpr int64_t kSlots = 3;
// Segments that an all-gather has under way in each direction.
constexpr int64_t kUnderWay = 4;
constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct Piece {
  int64_t begin = 0;  // in the payload
  int64_t bytes = 0;
};

// The segments of each part, as many of all parts; the last ones of a part that is cut may be
// empty.
class Segments {
 public:
  explicit Segments(const Parts& parts)
      : parts_(parts),
        bytes_(RoundUp(std::clamp((parts.part_bytes + kSegmentsWanted - 1) / kSegmentsWanted,
                                  kMinSegmentBytes, kMaxSegmentBytes),
                       kAlignment)) {}
  int64_t count() const {
    return std::max<int64_t>(1, RoundUp(parts_.part_bytes, bytes_) / bytes_);
  }
  Piece Of(int part, int64_t segment) const {
    const int64_t size = parts_.Bytes(part), begin = std::min(size, segment * bytes_);
    return {parts_.Begin(part) + begin, std::min(size, begin + bytes_) - begin};
  }

 private:
  const Parts parts_;
  const int64_t bytes_;
};

}  // namespace

// Messages are numbered in the order in which they are sent: for each segment all steps. What is
// received as message m in step s is sent on as message m + 1, in step s + 1.
struct Ring::Reduction {
  int64_t Step(int64_t message) const { return message % steps; }
  int SentPart(int64_t message) const {
    return static_cast<int>((rank + 2 * size - 1 - Step(message)) % size);
  }
  Piece Sent(int64_t message) const { return segments.Of(SentPart(message), message / steps); }
  Piece Received(int64_t message) const {
    return segments.Of((SentPart(message) + size - 1) % size, message / steps);
  }
  bool IsFirst(int64_t message) const { return Step(message) == 0; }
  bool IsLast(int64_t message) const { return Step(message) == steps - 1; }
  static int64_t Slot(int64_t message) { return message % kSlots * kMaxSegmentBytes; }

  const int rank;
  const int size;
  const int64_t steps;
  const Segments segments;
  const std::byte* const in;
  std::byte* const out;
  const int64_t own_begin;  // of this member's part in the payload
  const Adder add;
  Window* const input;
  const int64_t ready_ns;  // of the inputs
};

Ring::Ring(GlooMesh* mesh)
    : mesh_(mesh),
      scratch_(std::make_unique<std::byte[]>(kSlots * kMaxSegmentBytes)),
      scratch_window_(mesh, Tag::kCollective, scratch_.get(), kSlots * kMaxSegmentBytes) {}

absl::Status Ring::ReceiveSum(const Reduction& r, int64_t message) {
  const Piece piece = r.Received(message);
  if (piece.bytes == 0) return absl::OkStatus();
  return scratch_window_.Receive(mesh_->Left(), r.Slot(message), piece.bytes);
}

absl::Status Ring::TakeSum(const Reduction& r, int64_t message) {
  const Piece piece = r.Received(message);
  if (piece.bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(scratch_window_.WaitReceived(mesh_->Left()));
  std::byte* sum = scratch_.get() + r.Slot(message);
  std::byte* to = r.IsLast(message) ? r.out + (piece.begin - r.own_begin) : sum;
  r.add(to, sum, r.in + piece.begin, piece.bytes);
  return absl::OkStatus();
}

absl::Status Ring::SendSum(const Reduction& r, int64_t message) {
  const Piece piece = r.Sent(message);
  if (piece.bytes == 0) return absl::OkStatus();
  if (r.IsFirst(message))
    return r.input->Send(mesh_->Right(), piece.begin, piece.bytes, r.ready_ns);
  return scratch_window_.Send(mesh_->Right(), r.Slot(message - 1), piece.bytes, mesh_->NowNanos());
}

absl::Status Ring::FinishSend(const Reduction& r, int64_t message) {
  if (r.Sent(message).bytes == 0) return absl::OkStatus();
  return (r.IsFirst(message) ? *r.input : scratch_window_).WaitSent(mesh_->Right());
}

// Two messages are under way in each direction. The slot of message m is free when message m + 1
// has been sent.
absl::Status Ring::ReduceScatter(const std::byte* in, std::byte* out, const Parts& parts,
                                 Adder add) {
  Window input(mesh_, Tag::kCollective, in, parts.bytes);
  const Reduction r = {.rank = mesh_->rank(),
                       .size = mesh_->size(),
                       .steps = mesh_->size() - 1,
                       .segments = Segments(parts),
                       .in = in,
                       .out = out,
                       .own_begin = parts.Begin(mesh_->rank()),
                       .add = add,
                       .input = &input,
                       .ready_ns = mesh_->NowNanos()};
  const int64_t messages = r.segments.count() * r.steps;
  RETURN_IF_ERROR(ReceiveSum(r, 0));
  for (int64_t m = 0; m <= messages; ++m) {
    if (m > 0) RETURN_IF_ERROR(TakeSum(r, m - 1));
    if (m < messages) RETURN_IF_ERROR(SendSum(r, m));
    if (m > 0) RETURN_IF_ERROR(FinishSend(r, m - 1));
    if (m + 1 < messages) RETURN_IF_ERROR(ReceiveSum(r, m + 1));
  }
  return absl::OkStatus();
}

// Messages are numbered step by step; what is received as message m is sent on as message
// m + count.
absl::Status Ring::AllGather(std::byte* data, const Parts& parts) {
  const Segments segments(parts);
  const int64_t count = segments.count(), messages = count * (mesh_->size() - 1);
  const auto part = [this, count](int64_t message) {
    return (mesh_->rank() + mesh_->size() - message / count) % mesh_->size();
  };
  const auto sent = [&](int64_t m) { return segments.Of(static_cast<int>(part(m)), m % count); };
  const auto received = [&](int64_t m) {
    return segments.Of(static_cast<int>(part(m + count)), m % count);
  };
  Window window(mesh_, Tag::kCollective, static_cast<void*>(data), parts.bytes);
  const auto receive = [&](int64_t m) {
    const Piece piece = received(m);
    if (piece.bytes == 0) return absl::OkStatus();
    return window.Receive(mesh_->Left(), piece.begin, piece.bytes);
  };
  const int64_t lag = std::min(count, kUnderWay), start_ns = mesh_->NowNanos();
  for (int64_t m = 0; m < std::min(kUnderWay, messages); ++m) RETURN_IF_ERROR(receive(m));
  for (int64_t m = 0; m < messages + kUnderWay; ++m) {
    if (m >= lag && m - lag < messages && received(m - lag).bytes > 0)
      RETURN_IF_ERROR(window.WaitReceived(mesh_->Left()));
    if (m < messages && sent(m).bytes > 0) {
      const int64_t ready_ns = m < count ? start_ns : mesh_->NowNanos();
      RETURN_IF_ERROR(window.Send(mesh_->Right(), sent(m).begin, sent(m).bytes, ready_ns));
    }
    if (m >= kUnderWay && sent(m - kUnderWay).bytes > 0)
      RETURN_IF_ERROR(window.WaitSent(mesh_->Right()));
    if (m + kUnderWay < messages) RETURN_IF_ERROR(receive(m + kUnderWay));
  }
  return absl::OkStatus();
}

}  // namespace terrace
