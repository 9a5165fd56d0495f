// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/staged_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/sent_bytes.h"
#include "worker/comm/sums.h"

namespace terrace {
namespace {

constexpr int64_t kGrain = 64;  // pieces are whole multiples: of every element, and of cache lines

// A buffer and how much of it there is.
struct Staging {
  std::unique_ptr<StagingBuffer> buffer;
  int64_t bytes = 0;

  // Calls `body` for the pieces of `part_bytes`, each so small that `pieces` of its kind fit.
  absl::Status InPieces(int64_t part_bytes, int pieces,
                        absl::FunctionRef<absl::Status(int64_t begin, int64_t bytes)> body) const {
    const int64_t most = bytes / pieces / kGrain * kGrain;
    for (int64_t begin = 0; begin < part_bytes; begin += most) {
      RETURN_IF_ERROR(body(begin, std::min(most, part_bytes - begin)));
    }
    return absl::OkStatus();
  }
};

const std::byte* At(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* At(void* data, int64_t offset) { return static_cast<std::byte*>(data) + offset; }

// Threads as in Communicator: collectives have one buffer, and each direction of messages another.
class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, Staging collectives,
                     std::map<int, Staging> sends, std::map<int, Staging> receives)
      : host_(std::move(host)),
        collectives_(std::move(collectives)),
        sends_(std::move(sends)),
        receives_(std::move(receives)),
        stage_(collectives_.buffer->data()) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  absl::Status AllReduce(void* data, int64_t elements, ReduceType type) override {
    const int64_t element = ElementBytes(type), end = elements * element;
    const int64_t part = (elements + size() - 1) / size() * element;
    RETURN_IF_ERROR(collectives_.InPieces(part, size(), [&](int64_t begin, int64_t n) {
      return ReducePiece({data, part, end}, begin, n, type);
    }));
    return Sent(SentByAllReduce(place(), elements, element));
  }

  absl::Status ReduceScatter(const void* in, void* out, int64_t elements,
                             ReduceType type) override {
    const int64_t part = elements * ElementBytes(type);
    RETURN_IF_ERROR(collectives_.InPieces(part, size() + 1, [&](int64_t begin, int64_t n) {
      RETURN_IF_ERROR(PartsToHost(in, part, begin, n));
      std::byte* const sum = stage_ + size() * n;
      RETURN_IF_ERROR(host_->ReduceScatter(stage_, sum, n / ElementBytes(type), type));
      RETURN_IF_ERROR(collectives_.buffer->ToDevice(At(out, begin), sum, n));
      return collectives_.buffer->Wait();
    }));
    return Sent(SentByParts(place(), part));
  }

  absl::Status AllGather(const void* in, void* out, int64_t bytes) override {
    const bool in_place = in == At(out, rank() * bytes);
    RETURN_IF_ERROR(collectives_.InPieces(bytes, size(), [&](int64_t begin, int64_t n) {
      std::byte* const own = stage_ + rank() * n;
      RETURN_IF_ERROR(collectives_.buffer->ToHost(own, At(in, begin), n));
      RETURN_IF_ERROR(collectives_.buffer->Wait());
      RETURN_IF_ERROR(host_->AllGather(own, stage_, n));
      return PartsToDevice(out, bytes, begin, n, stage_, in_place ? rank() : -1);
    }));
    return Sent(SentByParts(place(), bytes));
  }

  absl::Status AllToAll(const void* in, void* out, int64_t bytes) override {
    RETURN_IF_ERROR(collectives_.InPieces(bytes, 2 * size(), [&](int64_t begin, int64_t n) {
      RETURN_IF_ERROR(PartsToHost(in, bytes, begin, n));
      std::byte* const received = stage_ + size() * n;
      RETURN_IF_ERROR(host_->AllToAll(stage_, received, n));
      return PartsToDevice(out, bytes, begin, n, received, -1);
    }));
    return Sent(SentByParts(place(), bytes));
  }

  absl::Status RingShift(const void* in, void* out, int64_t bytes) override {
    StagingBuffer& buffer = *collectives_.buffer;
    RETURN_IF_ERROR(collectives_.InPieces(bytes, 2, [&](int64_t begin, int64_t n) {
      RETURN_IF_ERROR(buffer.ToHost(stage_, At(in, begin), n));
      RETURN_IF_ERROR(buffer.Wait());
      // A whole grain apart: pieces of odd sizes end inside one.
      std::byte* const received = stage_ + (n + kGrain - 1) / kGrain * kGrain;
      RETURN_IF_ERROR(host_->RingShift(stage_, received, n));
      RETURN_IF_ERROR(buffer.ToDevice(At(out, begin), received, n));
      return buffer.Wait();
    }));
    return Sent(SentByRingShift(place(), bytes));
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    StagingBuffer& buffer = *collectives_.buffer;
    RETURN_IF_ERROR(collectives_.InPieces(bytes, 1, [&](int64_t begin, int64_t n) {
      if (rank() == root) RETURN_IF_ERROR(buffer.ToHost(stage_, At(data, begin), n));
      RETURN_IF_ERROR(buffer.Wait());
      RETURN_IF_ERROR(host_->Broadcast(stage_, n, root));
      if (rank() != root) RETURN_IF_ERROR(buffer.ToDevice(At(data, begin), stage_, n));
      return buffer.Wait();
    }));
    return Sent(SentByBroadcast(place(), bytes, root));
  }

  absl::Status Send(const void* data, int64_t bytes, int to) override {
    ASSIGN_OR_RETURN(const Staging* staging, StagingOf(sends_, to));
    StagingBuffer& buffer = *staging->buffer;
    RETURN_IF_ERROR(staging->InPieces(bytes, 1, [&](int64_t begin, int64_t n) {
      RETURN_IF_ERROR(buffer.ToHost(buffer.data(), At(data, begin), n));
      RETURN_IF_ERROR(buffer.Wait());
      return host_->Send(buffer.data(), n, to);
    }));
    return Sent(bytes);
  }

  absl::Status Receive(void* data, int64_t bytes, int from) override {
    ASSIGN_OR_RETURN(const Staging* staging, StagingOf(receives_, from));
    StagingBuffer& buffer = *staging->buffer;
    return staging->InPieces(bytes, 1, [&](int64_t begin, int64_t n) {
      RETURN_IF_ERROR(host_->Receive(buffer.data(), n, from));
      RETURN_IF_ERROR(buffer.ToDevice(At(data, begin), buffer.data(), n));
      return buffer.Wait();
    });
  }

  absl::Status Barrier() override { return host_->Barrier(); }
  void Abort() override { host_->Abort(); }
  int64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  // What an all-reduce sums: parts of `part` bytes, cut at `end`.
  struct Summed {
    void* data;
    int64_t part, end;
  };

  Place place() const { return {rank(), size()}; }
  absl::Status Sent(int64_t bytes) {
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  // Where a part is cut the piece goes on with zeros, which nobody reads: parts of one size keep
  // every element in the part that decides the order of its sum.
  absl::Status ReducePiece(const Summed& summed, int64_t begin, int64_t n, ReduceType type) {
    StagingBuffer& buffer = *collectives_.buffer;
    const auto there = [&](int part) {
      return std::clamp<int64_t>(summed.end - part * summed.part - begin, 0, n);
    };
    for (int part = 0; part < size(); ++part) {
      const int64_t have = there(part);
      std::byte* const piece = stage_ + part * n;
      if (have > 0) {
        RETURN_IF_ERROR(buffer.ToHost(piece, At(summed.data, part * summed.part + begin), have));
      }
      std::memset(piece + have, 0, n - have);
    }
    RETURN_IF_ERROR(buffer.Wait());
    RETURN_IF_ERROR(host_->AllReduce(stage_, size() * n / ElementBytes(type), type));
    for (int part = 0; part < size() && there(part) > 0; ++part) {
      RETURN_IF_ERROR(buffer.ToDevice(At(summed.data, part * summed.part + begin),
                                      stage_ + part * n, there(part)));
    }
    return buffer.Wait();
  }

  // The same range of every part, one after the other.
  absl::Status PartsToHost(const void* in, int64_t part_bytes, int64_t begin, int64_t n) {
    for (int part = 0; part < size(); ++part) {
      RETURN_IF_ERROR(
          collectives_.buffer->ToHost(stage_ + part * n, At(in, part * part_bytes + begin), n));
    }
    return collectives_.buffer->Wait();
  }
  absl::Status PartsToDevice(void* out, int64_t part_bytes, int64_t begin, int64_t n,
                             const std::byte* from, int except) {
    for (int part = 0; part < size(); ++part) {
      if (part == except) continue;
      RETURN_IF_ERROR(
          collectives_.buffer->ToDevice(At(out, part * part_bytes + begin), from + part * n, n));
    }
    return collectives_.buffer->Wait();
  }

  absl::StatusOr<const Staging*> StagingOf(const std::map<int, Staging>& of, int peer) const {
    const auto found = of.find(peer);
    if (found != of.end()) return &found->second;
    return absl::InvalidArgumentError(
        absl::StrCat("peer: got member ", peer, " of ", size(),
                     ", must be one that the group was connected for messages with"));
  }

  const std::unique_ptr<Communicator> host_;
  const Staging collectives_;
  const std::map<int, Staging> sends_, receives_;
  std::byte* const stage_;
  std::atomic<int64_t> bytes_sent_{0};
};

absl::StatusOr<Staging> Reserve(const MakeStagingBuffer& make, StagingUse use, int64_t bytes) {
  Staging staging = {nullptr, bytes};
  ASSIGN_OR_RETURN(staging.buffer, make(use, bytes));
  return staging;
}

absl::Status CheckSizes(const StagingSizes& sizes, const GroupOptions& options) {
  const int64_t least = 2 * options.size * kGrain;
  if (sizes.collective_bytes < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("group ", options.name, ": collective_bytes: got ", sizes.collective_bytes,
                     ", must be at least ", least, ": ", kGrain, " for what each of ", options.size,
                     " members sends and receives"));
  }
  if (sizes.message_bytes < kGrain) {
    return absl::InvalidArgumentError(absl::StrCat("group ", options.name, ": message_bytes: got ",
                                                   sizes.message_bytes, ", must be at least ",
                                                   kGrain));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t StagingBytes(const StagingSizes& sizes, int message_peers) {
  return sizes.collective_bytes + 2 * message_peers * sizes.message_bytes;
}

absl::StatusOr<std::unique_ptr<Communicator>> StageThroughHost(std::unique_ptr<Communicator> host,
                                                               const GroupOptions& options,
                                                               const MakeStagingBuffer& make_buffer,
                                                               const StagingSizes& sizes) {
  RETURN_IF_ERROR(CheckSizes(sizes, options));
  ASSIGN_OR_RETURN(Staging collectives,
                   Reserve(make_buffer, {StagingUse::kCollectives}, sizes.collective_bytes));
  std::map<int, Staging> sends, receives;
  for (const int peer : options.message_peers) {
    ASSIGN_OR_RETURN(sends[peer],
                     Reserve(make_buffer, {StagingUse::kSend, peer}, sizes.message_bytes));
    ASSIGN_OR_RETURN(receives[peer],
                     Reserve(make_buffer, {StagingUse::kReceive, peer}, sizes.message_bytes));
  }
  return std::make_unique<StagedCommunicator>(std::move(host), std::move(collectives),
                                              std::move(sends), std::move(receives));
}

}  // namespace terrace
