// Communicator on Gloo's tagged messages: rings for sums and gathers, a binomial tree for
// broadcasts.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/communicator.h"
#include "worker/comm/gloo_mesh.h"
#include "worker/comm/ring.h"
#include "worker/comm/sums.h"

namespace terrace {
namespace {

void Copy(void* out, const void* in, int64_t bytes) {
  if (out != in && bytes > 0) std::memcpy(out, in, bytes);
}

// A group of one: every sum is what it was, everything else a copy.
class Alone final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status AllReduce(void*, int64_t, ReduceType) override { return absl::OkStatus(); }
  absl::Status ReduceScatter(const void* in, void* out, int64_t elements,
                             ReduceType type) override {
    return Copied(out, in, elements * ElementBytes(type));
  }
  absl::Status AllGather(const void* in, void* out, int64_t bytes) override {
    return Copied(out, in, bytes);
  }
  absl::Status AllToAll(const void* in, void* out, int64_t bytes) override {
    return Copied(out, in, bytes);
  }
  absl::Status RingShift(const void* in, void* out, int64_t bytes) override {
    return Copied(out, in, bytes);
  }
  absl::Status Broadcast(void*, int64_t, int) override { return absl::OkStatus(); }
  absl::Status Send(const void*, int64_t, int) override { return NoPeer(); }
  absl::Status Receive(void*, int64_t, int) override { return NoPeer(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort() override {}
  int64_t bytes_sent() const override { return 0; }

 private:
  static absl::Status Copied(void* out, const void* in, int64_t bytes) {
    Copy(out, in, bytes);
    return absl::OkStatus();
  }
  static absl::Status NoPeer() {
    return absl::InvalidArgumentError("a group of one rank has nobody to exchange messages with");
  }
};

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::unique_ptr<GlooMesh> mesh)
      : mesh_(std::move(mesh)), ring_(mesh_.get()) {}

  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }

  absl::Status AllReduce(void* data, int64_t elements, ReduceType type) override {
    const int64_t part = (elements + size() - 1) / size() * ElementBytes(type);
    const Parts parts = {elements * ElementBytes(type), part};
    auto* bytes = static_cast<std::byte*>(data);
    RETURN_IF_ERROR(ring_.ReduceScatter(bytes, bytes + parts.Begin(rank()), parts, AdderOf(type)));
    return ring_.AllGather(bytes, parts);
  }

  absl::Status ReduceScatter(const void* in, void* out, int64_t elements,
                             ReduceType type) override {
    const int64_t part = elements * ElementBytes(type);
    return ring_.ReduceScatter(static_cast<const std::byte*>(in), static_cast<std::byte*>(out),
                               {size() * part, part}, AdderOf(type));
  }

  absl::Status AllGather(const void* in, void* out, int64_t bytes) override {
    auto* all = static_cast<std::byte*>(out);
    Copy(all + rank() * bytes, in, bytes);
    return ring_.AllGather(all, {size() * bytes, bytes});
  }

  absl::Status AllToAll(const void* in, void* out, int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    Window input(mesh_.get(), Tag::kCollective, in, size() * bytes);
    Window output(mesh_.get(), Tag::kCollective, out, size() * bytes);
    const int64_t ready_ns = mesh_->NowNanos();
    for (int i = 1; i < size(); ++i) {
      RETURN_IF_ERROR(output.Receive(mesh_->Left(i), mesh_->Left(i) * bytes, bytes));
    }
    for (int i = 1; i < size(); ++i) {
      RETURN_IF_ERROR(input.Send(mesh_->Right(i), mesh_->Right(i) * bytes, bytes, ready_ns));
    }
    const int64_t own = rank() * bytes;
    Copy(static_cast<std::byte*>(out) + own, static_cast<const std::byte*>(in) + own, bytes);
    for (int i = 1; i < size(); ++i) {
      RETURN_IF_ERROR(input.WaitSent(-1));
      RETURN_IF_ERROR(output.WaitReceived(-1));
    }
    return absl::OkStatus();
  }

  absl::Status RingShift(const void* in, void* out, int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    Window input(mesh_.get(), Tag::kCollective, in, bytes);
    Window output(mesh_.get(), Tag::kCollective, out, bytes);
    RETURN_IF_ERROR(output.Receive(mesh_->Left(), 0, bytes));
    RETURN_IF_ERROR(input.Send(mesh_->Right(), 0, bytes, mesh_->NowNanos()));
    RETURN_IF_ERROR(output.WaitReceived(mesh_->Left()));
    return input.WaitSent(mesh_->Right());
  }

  // Seen from the root, member v receives from v without its lowest bit, and sends to v plus each
  // lower bit.
  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    if (bytes == 0) return absl::OkStatus();
    Window window(mesh_.get(), Tag::kCollective, data, bytes);
    const int place = (rank() + size() - root) % size();
    int bit = 1;
    while (bit < size() && (place & bit) == 0) bit *= 2;
    if (place != 0) {
      const int parent = (place - bit + root) % size();
      RETURN_IF_ERROR(window.Receive(parent, 0, bytes));
      RETURN_IF_ERROR(window.WaitReceived(parent));
    }
    for (bit /= 2; bit > 0; bit /= 2) {
      if (place + bit >= size()) continue;
      const int child = (place + bit + root) % size();
      RETURN_IF_ERROR(window.Send(child, 0, bytes, mesh_->NowNanos()));
      RETURN_IF_ERROR(window.WaitSent(child));
    }
    return absl::OkStatus();
  }

  absl::Status Send(const void* data, int64_t bytes, int to) override {
    RETURN_IF_ERROR(CheckPeer(to));
    if (bytes == 0) return absl::OkStatus();
    Window window(mesh_.get(), Tag::kMessage, data, bytes);
    RETURN_IF_ERROR(window.Send(to, 0, bytes, mesh_->NowNanos()));
    return window.WaitSent(to);
  }

  absl::Status Receive(void* data, int64_t bytes, int from) override {
    RETURN_IF_ERROR(CheckPeer(from));
    if (bytes == 0) return absl::OkStatus();
    Window window(mesh_.get(), Tag::kMessage, data, bytes);
    RETURN_IF_ERROR(window.Receive(from, 0, bytes));
    return window.WaitReceived(from);
  }

  absl::Status Barrier() override { return mesh_->Barrier(); }
  void Abort() override { mesh_->Abort(); }
  int64_t bytes_sent() const override { return mesh_->bytes_sent(); }

 private:
  absl::Status CheckPeer(int peer) const {
    if (peer >= 0 && peer < size() && peer != rank()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("peer: got member ", peer, " of ", size(),
                                                   ", must be another one than ", rank()));
  }

  const std::unique_ptr<GlooMesh> mesh_;
  Ring ring_;
};

// Every pair and the ring have worked before the group is handed out.
absl::Status WarmUp(Communicator* group) {
  const int size = group->size();
  std::vector<int32_t> sent(size, group->rank()), received(size, -1);
  RETURN_IF_ERROR(group->AllToAll(sent.data(), received.data(), sizeof(int32_t)));
  float sum = 1;
  RETURN_IF_ERROR(group->AllReduce(&sum, 1, ReduceType::kF32));
  bool right = sum == static_cast<float>(size);
  for (int peer = 0; peer < size; ++peer) right = right && received[peer] == peer;
  if (right) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the members of a group of ", size,
                                          " do not receive what the others send; the sum of ones "
                                          "is ",
                                          sum));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(const GroupOptions& options,
                                                          RendezvousStore* store) {
  if (options.size == 1) return std::make_unique<Alone>();
  // Gloo writes to its sockets without MSG_NOSIGNAL: a lost peer would end this process instead of
  // the call.
  ::signal(SIGPIPE, SIG_IGN);
  ASSIGN_OR_RETURN(std::unique_ptr<GlooMesh> mesh, GlooMesh::Connect(options, store));
  GlooMesh* const connected = mesh.get();
  auto group = std::make_unique<GlooCommunicator>(std::move(mesh));
  RETURN_IF_ERROR(WarmUp(group.get()));
  connected->ResetBytesSent();
  return group;
}

}  // namespace terrace
