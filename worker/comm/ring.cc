// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/ring.h"

#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr int64_t kSegmentBytes = 256 << 10;
// Segments of one part that travel together in a reduce-scatter, and slots for partial sums: those
// being received, added and sent on.
constexpr int64_t kTogether = 2;
constexpr int64_t kSlots = 3 * kTogether;
// Segments that an all-gather has under way in each direction.
constexpr int64_t kUnderWay = 4;
// Smaller parts are not worth a second message.
constexpr int64_t kWholeBytes = 32 << 10;
constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct Piece {
  int64_t begin = 0;  // in the payload
  int64_t bytes = 0;
};

// The segments of each part: `count`, a multiple of `together`; the last ones may be empty.
struct Segments {
  Segments(const Parts& parts, int64_t together) : parts_(parts) {
    count = parts.part_bytes <= kWholeBytes
                ? 1
                : RoundUp((parts.part_bytes + kSegmentBytes - 1) / kSegmentBytes, together);
    bytes_ = RoundUp((parts.part_bytes + count - 1) / count, kAlignment);
  }
  Piece Of(int part, int64_t segment) const {
    const int64_t size = parts_.Bytes(part), begin = std::min(size, segment * bytes_);
    return {parts_.Begin(part) + begin, std::min(size, begin + bytes_) - begin};
  }
  int64_t count = 1;

 private:
  const Parts parts_;
  int64_t bytes_ = 0;
};

}  // namespace

// Messages are numbered in the order in which they are sent: for each group of segments the steps,
// for each step the segments of the group. What is received as message m in step s is sent on as
// message m + together, in step s + 1.
struct Ring::Reduction {
  Reduction(const GlooMesh& mesh, const std::byte* in_data, std::byte* out_data, const Parts& all,
            Adder adder)
      : parts(all),
        segments(all, kTogether),
        together(std::min(segments.count, kTogether)),
        steps(mesh.size() - 1),
        messages(segments.count * steps),
        rank(mesh.rank()),
        size(mesh.size()),
        in(in_data),
        out(out_data),
        add(adder) {}

  int64_t Step(int64_t message) const { return message / together % steps; }
  int64_t Segment(int64_t message) const {
    return message / (together * steps) * together + message % together;
  }
  int SentPart(int64_t message) const {
    return static_cast<int>((rank + 2 * size - 1 - Step(message)) % size);
  }
  int ReceivedPart(int64_t message) const { return (SentPart(message) + size - 1) % size; }
  Piece Sent(int64_t m) const { return segments.Of(SentPart(m), Segment(m)); }
  Piece Received(int64_t m) const { return segments.Of(ReceivedPart(m), Segment(m)); }
  bool IsFirst(int64_t message) const { return Step(message) == 0; }
  bool IsLast(int64_t message) const { return Step(message) == steps - 1; }
  static int64_t Slot(int64_t message) { return message % kSlots * kSegmentBytes; }

  const Parts parts;
  const Segments segments;
  const int64_t together;
  const int64_t steps;
  const int64_t messages;
  const int rank;
  const int size;
  const std::byte* const in;
  std::byte* const out;
  const Adder add;
  Window* input = nullptr;
  int64_t ready_ns = 0;  // when what is sent next was ready
};

Ring::Ring(GlooMesh* mesh)
    : mesh_(mesh),
      scratch_(std::make_unique<std::byte[]>(kSlots * kSegmentBytes)),
      scratch_window_(mesh, Tag::kCollective, scratch_.get(), kSlots * kSegmentBytes) {}

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
  std::byte* to = r.IsLast(message) ? r.out + (piece.begin - r.parts.Begin(r.rank)) : sum;
  r.add(to, sum, r.in + piece.begin, piece.bytes);
  return absl::OkStatus();
}

absl::Status Ring::SendSum(const Reduction& r, int64_t message) {
  const Piece piece = r.Sent(message);
  if (piece.bytes == 0) return absl::OkStatus();
  if (r.IsFirst(message))
    return r.input->Send(mesh_->Right(), piece.begin, piece.bytes, r.ready_ns);
  return scratch_window_.Send(mesh_->Right(), r.Slot(message - r.together), piece.bytes,
                              mesh_->NowNanos());
}

absl::Status Ring::FinishSend(const Reduction& r, int64_t message) {
  if (r.Sent(message).bytes == 0) return absl::OkStatus();
  return (r.IsFirst(message) ? *r.input : scratch_window_).WaitSent(mesh_->Right());
}

// At most `together` messages are on their way to the right, twice as many from the left. A slot is
// free when the sum in it was sent on: that of message m when message m + together has left.
absl::Status Ring::ReduceScatter(const std::byte* in, std::byte* out, const Parts& parts,
                                 Adder add) {
  Reduction r(*mesh_, in, out, parts, add);
  Window input(mesh_, Tag::kCollective, in, parts.bytes);
  r.input = &input;
  r.ready_ns = mesh_->NowNanos();
  for (int64_t m = 0; m < std::min(r.together, r.messages); ++m) RETURN_IF_ERROR(ReceiveSum(r, m));
  for (int64_t m = 0; m < r.messages + r.together; ++m) {
    if (m >= r.together) RETURN_IF_ERROR(TakeSum(r, m - r.together));
    if (m < r.messages) RETURN_IF_ERROR(SendSum(r, m));
    if (m >= r.together) RETURN_IF_ERROR(FinishSend(r, m - r.together));
    if (m + r.together < r.messages) RETURN_IF_ERROR(ReceiveSum(r, m + r.together));
  }
  return absl::OkStatus();
}

// Messages are numbered step by step; what is received as message m is sent on as message
// m + count.
absl::Status Ring::AllGather(std::byte* data, const Parts& parts) {
  const Segments segments(parts, 1);
  const int64_t count = segments.count, messages = count * (mesh_->size() - 1);
  const auto part = [this, count](int64_t message) {
    return (mesh_->rank() + mesh_->size() - message / count) % mesh_->size();
  };
  const auto sent = [&](int64_t m) {
    return segments.Of(static_cast<int>(part(m)), m % count);
  };
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
