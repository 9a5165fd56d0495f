// SPDX-License-Identifier: Apache-2.0
#include "tests/system/meeting.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/ring.h"
#include "worker/comm/sums.h"

namespace terrace {
namespace {

void Copy(std::byte* out, const std::byte* in, int64_t bytes) {
  if (out != in && bytes > 0) std::memcpy(out, in, bytes);
}

}  // namespace

absl::Status Meeting::Refuse(int member, const std::string& problem) const {
  return absl::InternalError(
      absl::StrCat("group ", name_, ": member ", member, " of ", size_, ": ", problem));
}

absl::Status Meeting::Collective(int member, const Shape& shape, const void* in, void* out,
                                 bool* done) {
  *done = false;
  Arrival& arrival = arrivals_[member];
  if (arrival.done != nullptr) return Refuse(member, "calls while its last call is not done");
  if (here_ > 0 && !(shape == shape_)) {
    return Refuse(member, absl::StrCat("calls collective ", static_cast<int>(shape.kind), " of ",
                                       shape.count, ", the others collective ",
                                       static_cast<int>(shape_.kind), " of ", shape_.count));
  }
  shape_ = shape;
  arrival.in = static_cast<const std::byte*>(in);
  arrival.out = static_cast<std::byte*>(out);
  arrival.done = done;
  if (++here_ < size_) return absl::OkStatus();
  Perform();
  for (Arrival& served : arrivals_) *std::exchange(served.done, nullptr) = true;
  here_ = 0;
  return absl::OkStatus();
}

void Meeting::Perform() {
  switch (shape_.kind) {
    case Kind::kAllReduce:
      return AllReduce();
    case Kind::kReduceScatter:
      return ReduceScatter();
    case Kind::kAllGather:
      return AllGather();
    case Kind::kAllToAll:
      return AllToAll();
    case Kind::kRingShift:
      return RingShift();
    case Kind::kBroadcast:
      return Broadcast();
    case Kind::kBarrier:
      return;
  }
}

// Part p in the order p + 1, p + 2, ..., p (ring.h). `give` gets each part's number and bytes while
// its sum lies in sum_; nobody else reads that part of the inputs then.
void Meeting::Sum(int64_t part_bytes, int64_t bytes,
                  const std::function<void(int, int64_t)>& give) {
  const Adder add = AdderOf(shape_.type);
  const Parts parts = {bytes, part_bytes};
  sum_.resize(std::max<size_t>(sum_.size(), part_bytes));
  for (int part = 0; part < size_; ++part) {
    const int64_t begin = parts.Begin(part), size = parts.Bytes(part);
    Copy(sum_.data(), arrivals_[(part + 1) % size_].in + begin, size);
    for (int i = 2; i <= size_; ++i)
      add(sum_.data(), sum_.data(), arrivals_[(part + i) % size_].in + begin, size);
    give(part, size);
  }
}

void Meeting::AllReduce() {
  if (size_ == 1) return;
  const int64_t element = ElementBytes(shape_.type), bytes = shape_.count * element;
  const Parts parts = {bytes, (shape_.count + size_ - 1) / size_ * element};
  Sum(parts.part_bytes, bytes, [&](int part, int64_t size) {
    for (Arrival& arrival : arrivals_) Copy(arrival.out + parts.Begin(part), sum_.data(), size);
  });
  for (int i = 0; i < size_; ++i)
    arrivals_[i].bytes_sent += 2 * bytes - parts.Bytes(i) - parts.Bytes((i + 1) % size_);
}

void Meeting::ReduceScatter() {
  const int64_t part = shape_.count * ElementBytes(shape_.type);
  Sum(part, size_ * part,
      [&](int member, int64_t size) { Copy(arrivals_[member].out, sum_.data(), size); });
  for (Arrival& arrival : arrivals_) arrival.bytes_sent += part * (size_ - 1);
}

void Meeting::AllGather() {
  for (Arrival& to : arrivals_) {
    for (int part = 0; part < size_; ++part)
      Copy(to.out + part * shape_.count, arrivals_[part].in, shape_.count);
    to.bytes_sent += shape_.count * (size_ - 1);
  }
}

void Meeting::AllToAll() {
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      Copy(arrivals_[to].out + from * shape_.count, arrivals_[from].in + to * shape_.count,
           shape_.count);
    }
    arrivals_[from].bytes_sent += shape_.count * (size_ - 1);
  }
}

void Meeting::RingShift() {
  for (int from = 0; from < size_; ++from) {
    Copy(arrivals_[(from + 1) % size_].out, arrivals_[from].in, shape_.count);
    if (size_ > 1) arrivals_[from].bytes_sent += shape_.count;
  }
}

// A member of the binomial tree sends to itself plus each bit below its lowest, seen from the root.
void Meeting::Broadcast() {
  for (int place = 0; place < size_; ++place) {
    Arrival& to = arrivals_[(place + shape_.root) % size_];
    Copy(to.out, arrivals_[shape_.root].in, shape_.count);
    for (int bit = 1; place + bit < size_ && (place & bit) == 0; bit *= 2)
      to.bytes_sent += shape_.count;
  }
}

absl::Status Meeting::Send(int from, int to, const void* data, int64_t bytes, bool* done) {
  return Exchange(from, to, {.from = data, .bytes = bytes, .done = done});
}

absl::Status Meeting::Receive(int to, int from, void* data, int64_t bytes, bool* done) {
  return Exchange(from, to, {.to = data, .bytes = bytes, .done = done});
}

// The second end copies and tells both.
absl::Status Meeting::Exchange(int from, int to, const Message& half) {
  *half.done = false;
  const int caller = half.from != nullptr ? from : to, peer = from + to - caller;
  if (peer < 0 || peer >= size_ || peer == caller) {
    return Refuse(caller, absl::StrCat("peer: got member ", peer, ", must be another one"));
  }
  const auto [waiting, first] = messages_.emplace(std::pair(from, to), half);
  if (first) return absl::OkStatus();
  const Message other = waiting->second;
  if ((other.from != nullptr) == (half.from != nullptr))
    return Refuse(caller, "calls while its last message is not done");
  if (other.bytes != half.bytes) {
    return Refuse(caller, absl::StrCat("has a message of ", half.bytes, " bytes with member ", peer,
                                       ", which has one of ", other.bytes));
  }
  messages_.erase(waiting);
  std::memcpy(half.to != nullptr ? half.to : other.to,
              half.from != nullptr ? half.from : other.from, half.bytes);
  arrivals_[from].bytes_sent += half.bytes;
  *half.done = *other.done = true;
  return absl::OkStatus();
}

absl::Status Member::AllReduce(void* data, int64_t elements, ReduceType type) {
  return meeting_->Collective(rank_, {Meeting::Kind::kAllReduce, elements, type}, data, data,
                              done_);
}

absl::Status Member::ReduceScatter(const void* in, void* out, int64_t elements, ReduceType type) {
  return meeting_->Collective(rank_, {Meeting::Kind::kReduceScatter, elements, type}, in, out,
                              done_);
}

absl::Status Member::AllGather(const void* in, void* out, int64_t bytes) {
  return meeting_->Collective(rank_, {Meeting::Kind::kAllGather, bytes}, in, out, done_);
}

absl::Status Member::AllToAll(const void* in, void* out, int64_t bytes) {
  return meeting_->Collective(rank_, {Meeting::Kind::kAllToAll, bytes}, in, out, done_);
}

absl::Status Member::RingShift(const void* in, void* out, int64_t bytes) {
  return meeting_->Collective(rank_, {Meeting::Kind::kRingShift, bytes}, in, out, done_);
}

absl::Status Member::Broadcast(void* data, int64_t bytes, int root) {
  return meeting_->Collective(
      rank_, {.kind = Meeting::Kind::kBroadcast, .count = bytes, .root = root}, data, data, done_);
}

absl::Status Member::Send(const void* data, int64_t bytes, int to) {
  return meeting_->Send(rank_, to, data, bytes, done_);
}

absl::Status Member::Receive(void* data, int64_t bytes, int from) {
  return meeting_->Receive(rank_, from, data, bytes, done_);
}

absl::Status Member::Barrier() {
  return meeting_->Collective(rank_, {.kind = Meeting::Kind::kBarrier}, nullptr, nullptr, done_);
}

}  // namespace terrace
