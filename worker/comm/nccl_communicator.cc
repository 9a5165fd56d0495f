// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/nccl_channel.h"
#include "worker/comm/nccl_connect.h"
#include "worker/comm/nccl_registration.h"
#include "worker/comm/sent_bytes.h"
#include "worker/comm/sums.h"

namespace terrace {
namespace {

// A graph is faster than its parts one by one, but the device's clock may sink meanwhile, and
// others may use it.
constexpr int64_t kTimesOneByOne = 4;

ncclDataType_t DataTypeOf(ReduceType type) {
  if (type == ReduceType::kF16) return ncclFloat16;
  return type == ReduceType::kBF16 ? ncclBfloat16 : ncclFloat32;
}

const std::byte* At(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* At(void* data, int64_t offset) { return static_cast<std::byte*>(data) + offset; }

// The messages of one group call. They run at the same time, in any order.
class Messages {
 public:
  Messages() { ncclGroupStart(); }
  void Add(ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress && bad_ == ncclSuccess) bad_ = result;
  }
  // The first result that is an error, that of the group otherwise.
  ncclResult_t End() {
    const ncclResult_t result = ncclGroupEnd();
    return bad_ == ncclSuccess ? result : bad_;
  }

 private:
  ncclResult_t bad_ = ncclSuccess;
};

class Nccl final : public NcclCommunicator, public GraphCollectives {
 public:
  explicit Nccl(NcclConnection connection)
      : connection_(std::move(connection)), channel_(*connection_.collectives) {}

  int rank() const override { return connection_.group->options().rank; }
  int size() const override { return connection_.group->options().size; }

  // The last few elements, which are no part for each member, have a call of their own.
  absl::Status AllReduce(void* data, int64_t elements, ReduceType type) override {
    const auto kind = DataTypeOf(type);
    const int64_t part = elements / size(), summed = part * size();
    const int64_t bytes = part * ElementBytes(type);
    std::byte* const own = At(data, rank() * bytes);
    std::byte* const rest = At(data, size() * bytes);
    RETURN_IF_ERROR(channel_.Begin({"all-reduce", elements, "elements"}));
    if (size() == 1) return absl::OkStatus();
    if (part > 0) {
      RETURN_IF_ERROR(channel_.Launch([&] {
        return ncclReduceScatter(data, own, part, kind, ncclSum, channel_.comm(), stream());
      }));
      RETURN_IF_ERROR(channel_.Launch(
          [&] { return ncclAllGather(own, data, bytes, ncclUint8, channel_.comm(), stream()); }));
    }
    if (elements > summed) {
      RETURN_IF_ERROR(channel_.Launch([&] {
        return ncclAllReduce(rest, rest, elements - summed, kind, ncclSum, channel_.comm(),
                             stream());
      }));
    }
    return Finished(SentByAllReduce(place(), elements, ElementBytes(type)));
  }

  absl::Status ReduceScatter(const void* in, void* out, int64_t elements,
                             ReduceType type) override {
    const int64_t bytes = elements * ElementBytes(type);
    RETURN_IF_ERROR(channel_.Begin({"reduce-scatter", elements, "elements a member"}));
    RETURN_IF_ERROR(OrCopy(out, in, bytes, [&] {
      return ncclReduceScatter(in, out, elements, DataTypeOf(type), ncclSum, channel_.comm(),
                               stream());
    }));
    return Finished(SentByParts(place(), bytes));
  }

  absl::Status AllGather(const void* in, void* out, int64_t bytes) override {
    RETURN_IF_ERROR(channel_.Begin({"all-gather", bytes, "bytes a member"}));
    RETURN_IF_ERROR(OrCopy(out, in, bytes, [&] {
      return ncclAllGather(in, out, bytes, ncclUint8, channel_.comm(), stream());
    }));
    return Finished(SentByParts(place(), bytes));
  }

  absl::Status AllToAll(const void* in, void* out, int64_t bytes) override {
    if (!connection_.group->options().all_to_all) {
      return absl::FailedPreconditionError(
          absl::StrCat("group ", connection_.group->options().name,
                       ": was connected without all-to-all (GroupOptions.all_to_all)"));
    }
    RETURN_IF_ERROR(channel_.Begin({"all-to-all", bytes, "bytes a member"}));
    const int64_t own = rank() * bytes;
    RETURN_IF_ERROR(channel_.Copy(At(out, own), At(in, own), bytes));
    if (bytes > 0 && size() > 1) {
      RETURN_IF_ERROR(channel_.Launch([&] {
        Messages messages;
        for (int i = 1; i < size(); ++i) {
          const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
          messages.Add(
              ncclSend(At(in, to * bytes), bytes, ncclUint8, to, channel_.comm(), stream()));
          messages.Add(
              ncclRecv(At(out, from * bytes), bytes, ncclUint8, from, channel_.comm(), stream()));
        }
        return messages.End();
      }));
    }
    return Finished(SentByParts(place(), bytes));
  }

  absl::Status RingShift(const void* in, void* out, int64_t bytes) override {
    RETURN_IF_ERROR(channel_.Begin({"ring shift", bytes, "bytes"}));
    const int right = (rank() + 1) % size(), left = (rank() + size() - 1) % size();
    RETURN_IF_ERROR(OrCopy(out, in, bytes, [&] {
      Messages messages;
      messages.Add(ncclSend(in, bytes, ncclUint8, right, channel_.comm(), stream()));
      messages.Add(ncclRecv(out, bytes, ncclUint8, left, channel_.comm(), stream()));
      return messages.End();
    }));
    return Finished(SentByRingShift(place(), bytes));
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    RETURN_IF_ERROR(channel_.Begin({"broadcast", bytes, "bytes"}));
    RETURN_IF_ERROR(OrCopy(data, data, bytes, [&] {
      return ncclBroadcast(data, data, bytes, ncclUint8, root, channel_.comm(), stream());
    }));
    return Finished(SentByBroadcast(place(), bytes, root));
  }

  absl::Status Send(const void* data, int64_t bytes, int to) override {
    ASSIGN_OR_RETURN(NcclChannel* const channel, ChannelOf(connection_.sends, to));
    RETURN_IF_ERROR(channel->Begin({"a message", bytes, "bytes", to}));
    if (bytes == 0) return absl::OkStatus();
    RETURN_IF_ERROR(channel->Launch([&] {
      return ncclSend(data, bytes, ncclUint8, kReceiver, channel->comm(), channel->stream());
    }));
    RETURN_IF_ERROR(channel->Finish());
    return Sent(bytes);
  }

  absl::Status Receive(void* data, int64_t bytes, int from) override {
    ASSIGN_OR_RETURN(NcclChannel* const channel, ChannelOf(connection_.receives, from));
    RETURN_IF_ERROR(channel->Begin({"a message", bytes, "bytes", from}));
    if (bytes == 0) return absl::OkStatus();
    RETURN_IF_ERROR(channel->Launch([&] {
      return ncclRecv(data, bytes, ncclUint8, kSender, channel->comm(), channel->stream());
    }));
    return channel->Finish();
  }

  absl::Status Barrier() override {
    float* const one = connection_.scratch.get();
    RETURN_IF_ERROR(channel_.Begin({"barrier", size(), "members"}));
    if (size() == 1) return absl::OkStatus();
    RETURN_IF_ERROR(channel_.Launch([&] {
      return ncclAllReduce(one, one, 1, ncclFloat32, ncclSum, channel_.comm(), stream());
    }));
    return channel_.Finish();
  }

  GraphCollectives* graph_collectives() override { return this; }
  absl::Status BeginCapture() override {
    RETURN_IF_ERROR(channel_.Begin({"capturing", size(), "members"}));
    captured_bytes_ = 0;
    captures_ = true;
    channel_.SetCaptured(true);
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> EndCapture() override {
    channel_.SetCaptured(false);
    captures_ = false;
    RETURN_IF_ERROR(connection_.group->Check());
    return captured_bytes_;
  }
  absl::Status BeginRun(int64_t one_by_one_ns) override {
    return channel_.Begin({"a graph", size(), "members"}, kTimesOneByOne * one_by_one_ns);
  }
  absl::Status CheckRun() override { return channel_.Check(); }
  void EndRun(int64_t sent_bytes) override { Sent(sent_bytes).IgnoreError(); }

  void Abort() override { connection_.group->Abort(); }
  int64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }

  CUstream_st* stream() const override { return channel_.stream(); }
  CUstream_st* send_stream(int to) const override { return StreamOf(connection_.sends, to); }
  CUstream_st* receive_stream(int from) const override {
    return StreamOf(connection_.receives, from);
  }

  const std::string& slower_because() const override { return slower_because_; }

  absl::Status Register(const NcclMemory& memory) {
    ASSIGN_OR_RETURN(slower_because_, RegisterMemory(memory, connection_, this));
    return absl::OkStatus();
  }
  absl::Status WarmUp();

 private:
  absl::Status WarmMessages(const float* in, float* out);
  using Channels = std::map<int, std::unique_ptr<NcclChannel>>;

  Place place() const { return {rank(), size()}; }
  absl::Status Sent(int64_t bytes) {
    if (captures_) {
      captured_bytes_ += bytes;
      return absl::OkStatus();
    }
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  absl::Status Finished(int64_t sent_bytes) {
    RETURN_IF_ERROR(channel_.Finish());
    return Sent(sent_bytes);
  }
  // What a group of one does instead of a call.
  absl::Status OrCopy(void* out, const void* in, int64_t bytes,
                      absl::FunctionRef<ncclResult_t()> start) {
    if (size() == 1) return channel_.Copy(out, in, bytes);
    return bytes == 0 ? absl::OkStatus() : channel_.Launch(start);
  }
  absl::StatusOr<NcclChannel*> ChannelOf(const Channels& channels, int peer) const {
    const auto found = channels.find(peer);
    if (found != channels.end()) return found->second.get();
    return absl::InvalidArgumentError(
        absl::StrCat("peer: got member ", peer, " of ", size(),
                     ", must be one that the group was connected for messages with"));
  }
  static CUstream_st* StreamOf(const Channels& channels, int peer) {
    const auto found = channels.find(peer);
    return found == channels.end() ? nullptr : found->second->stream();
  }

  const NcclConnection connection_;
  NcclChannel& channel_;  // of collectives
  std::atomic<int64_t> bytes_sent_{0};
  bool captures_ = false;
  int64_t captured_bytes_ = 0;  // by what was captured since BeginCapture
  std::string slower_because_;
};

// One small operation of each kind, on numbers that show who sent them. Connects every pair that
// the program will use.
absl::Status Nccl::WarmUp() {
  const int n = size();
  float* const in = connection_.scratch.get();
  float* const out = in + n + 1;
  std::vector<float> sent(n + 1, static_cast<float>(rank())), received(n, -1), sums(n + 1, -1);
  const std::vector<float> zeros(2 * (n + 1));
  sent[n] = 1;
  const int64_t all = (n + 1) * sizeof(float);
  RETURN_IF_ERROR(channel_.Begin({"warming up", n, "members"}));
  RETURN_IF_ERROR(channel_.Copy(in, sent.data(), all));
  RETURN_IF_ERROR(RingShift(in, out, all));
  bool right = true;
  if (connection_.group->options().all_to_all) {
    RETURN_IF_ERROR(AllToAll(in, out, sizeof(float)));
    RETURN_IF_ERROR(channel_.Copy(received.data(), out, n * sizeof(float)));
    RETURN_IF_ERROR(channel_.Finish());
    for (int peer = 0; peer < n; ++peer) right = right && received[peer] == peer;
  }
  RETURN_IF_ERROR(AllReduce(in, n + 1, ReduceType::kF32));
  RETURN_IF_ERROR(Broadcast(in, all, n - 1));
  RETURN_IF_ERROR(channel_.Copy(sums.data(), in, all));
  RETURN_IF_ERROR(channel_.Finish());
  RETURN_IF_ERROR(ReduceScatter(in, out, 1, ReduceType::kF32));
  RETURN_IF_ERROR(WarmMessages(in, out));
  RETURN_IF_ERROR(channel_.Begin({"warming up", n, "members"}));
  RETURN_IF_ERROR(channel_.Copy(in, zeros.data(), 2 * all));
  RETURN_IF_ERROR(channel_.Finish());
  bytes_sent_.store(0);
  if (right && sums[n] == static_cast<float>(n)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("group ", connection_.group->options().name,
                                          ": members do not receive what the others send; the sum "
                                          "of ",
                                          n, " ones is ", sums[n]));
}

// In the order in which the channels were connected, for the same reason.
absl::Status Nccl::WarmMessages(const float* in, float* out) {
  for (const auto& [peer, channel] : connection_.sends) {
    if (rank() < peer) RETURN_IF_ERROR(Send(in, sizeof(float), peer));
    RETURN_IF_ERROR(Receive(out, sizeof(float), peer));
    if (rank() > peer) RETURN_IF_ERROR(Send(in, sizeof(float), peer));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> ConnectNccl(const GroupOptions& options,
                                                              RendezvousStore* store,
                                                              CUstream_st* stream,
                                                              const NcclMemory* memory) {
  ASSIGN_OR_RETURN(NcclConnection connection, ConnectNcclChannels(options, store, stream));
  auto group = std::make_unique<Nccl>(std::move(connection));
  if (memory != nullptr) RETURN_IF_ERROR(group->Register(*memory));
  RETURN_IF_ERROR(group->WarmUp());  // last: it leaves the scratch and the counts at zero
  return group;
}

}  // namespace terrace
