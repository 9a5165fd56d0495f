// Groups for ranks that take turns on one thread, where nobody can wait inside a call: a call
// leaves what its member wants and returns, and the call of the last member does it for all. The
// sums are those of the rings of worker/comm, bit for bit, and so are the counts of bytes.
//
//   Meeting   what the members of a group have left so far
//   Member    one member's end of it; tells when what it was asked for has been done
//
// Used only on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace terrace {

class Meeting {
 public:
  enum class Kind {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kAllToAll,
    kRingShift,
    kBroadcast,
    kBarrier,
  };
  // What all members of a collective must say alike.
  struct Shape {
    Kind kind = Kind::kBarrier;
    int64_t count = 0;  // elements of sums, else bytes
    ReduceType type = ReduceType::kF32;
    int root = 0;
    bool operator==(const Shape&) const = default;
  };

  Meeting(std::string name, int size) : name_(std::move(name)), size_(size), arrivals_(size) {}

  int size() const { return size_; }
  int64_t bytes_sent(int member) const { return arrivals_[member].bytes_sent; }

  // `*done` becomes true when the memory holds the result and may be written again. INTERNAL when a
  // member asks for something else than those before it, or again before it was served.
  absl::Status Collective(int member, const Shape& shape, const void* in, void* out, bool* done);
  absl::Status Send(int from, int to, const void* data, int64_t bytes, bool* done);
  absl::Status Receive(int to, int from, void* data, int64_t bytes, bool* done);

 private:
  struct Arrival {
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    bool* done = nullptr;  // null: not here
    int64_t bytes_sent = 0;
  };
  // One end has come, the other has not.
  struct Message {
    const void* from = nullptr;
    void* to = nullptr;
    int64_t bytes = 0;
    bool* done = nullptr;
  };

  void Perform();
  void Sum(int64_t part_bytes, int64_t bytes, const std::function<void(int, int64_t)>& give);
  void AllReduce();
  void ReduceScatter();
  void AllGather();
  void AllToAll();
  void RingShift();
  void Broadcast();
  absl::Status Refuse(int member, const std::string& problem) const;
  absl::Status Exchange(int from, int to, const Message& half);

  const std::string name_;
  const int size_;
  Shape shape_;
  int here_ = 0;
  std::vector<Arrival> arrivals_;
  std::map<std::pair<int, int>, Message> messages_;  // by sender and receiver
  std::vector<std::byte> sum_;
};

// Borrows the meeting.
class Member final : public Communicator {
 public:
  Member(Meeting* meeting, int rank) : meeting_(meeting), rank_(rank) {}

  // Where the next call reports: false at once, true when it has been done.
  void ReportTo(bool* done) { done_ = done; }

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }
  absl::Status AllReduce(void* data, int64_t elements, ReduceType type) override;
  absl::Status ReduceScatter(const void* in, void* out, int64_t elements, ReduceType type) override;
  absl::Status AllGather(const void* in, void* out, int64_t bytes) override;
  absl::Status AllToAll(const void* in, void* out, int64_t bytes) override;
  absl::Status RingShift(const void* in, void* out, int64_t bytes) override;
  absl::Status Broadcast(void* data, int64_t bytes, int root) override;
  absl::Status Send(const void* data, int64_t bytes, int to) override;
  absl::Status Receive(void* data, int64_t bytes, int from) override;
  absl::Status Barrier() override;
  void Abort() override {}  // nobody waits
  int64_t bytes_sent() const override { return meeting_->bytes_sent(rank_); }

 private:
  Meeting* const meeting_;
  const int rank_;
  bool* done_ = nullptr;
};

}  // namespace terrace
