// Communicator on Gloo's TCP transport: a ring for sums, a tree for broadcasts. Gloo throws;
// nothing leaves this file but a Status.
//
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <chrono>
#include <csignal>
#include <exception>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gloo/allreduce.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/device.h"
#include "worker/comm/communicator.h"
#include "worker/comm/interface_address.h"

namespace terrace {
namespace {

float FromBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// To nearest, ties to even; a NaN stays one.
uint16_t ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void AddF32(void* out, const void* a, const void* b, size_t n) {
  auto* sum = static_cast<float*>(out);
  const auto* x = static_cast<const float*>(a);
  const auto* y = static_cast<const float*>(b);
  for (size_t i = 0; i < n; ++i) sum[i] = x[i] + y[i];
}

void AddBF16(void* out, const void* a, const void* b, size_t n) {
  auto* sum = static_cast<uint16_t*>(out);
  const auto* x = static_cast<const uint16_t*>(a);
  const auto* y = static_cast<const uint16_t*>(b);
  for (size_t i = 0; i < n; ++i) sum[i] = ToBF16(FromBF16(x[i]) + FromBF16(y[i]));
}

// A group of one: every sum is what it was.
class Alone final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status AllReduce(void*, int64_t, ReduceType) override { return absl::OkStatus(); }
  absl::Status Broadcast(void*, int64_t, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
};

// Our store behind Gloo's interface, keys prefixed with the group's name.
class StoreAdapter final : public gloo::rendezvous::Store {
 public:
  StoreAdapter(RendezvousStore* store, const GroupOptions& options)
      : store_(store), options_(options) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Check(store_->Set(Name(key), data));
  }
  std::vector<char> get(const std::string& key) override {
    auto values = store_->Wait({Name(key)}, options_.timeout_ms);
    Check(values.status());
    return std::move(values->front());
  }
  void wait(const std::vector<std::string>& keys) override { WaitFor(keys, options_.timeout_ms); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    WaitFor(keys, timeout.count());
  }

 private:
  void WaitFor(const std::vector<std::string>& keys, int64_t timeout_ms) {
    std::vector<std::string> names;
    for (const std::string& key : keys) names.push_back(Name(key));
    Check(store_->Wait(names, timeout_ms).status());
  }
  std::string Name(const std::string& key) const { return options_.name + "/" + key; }
  // Through Gloo only an exception reaches ConnectGloo again.
  static void Check(const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }

  RendezvousStore* const store_;
  const GroupOptions& options_;
};

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(std::string name, std::shared_ptr<gloo::Context> context)
      : name_(std::move(name)), context_(std::move(context)) {}

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  absl::Status AllReduce(void* data, int64_t elements, ReduceType type) override {
    return Guarded([&] {
      gloo::AllreduceOptions options(context_);
      // The ring adds each chunk in the order of the ranks, in one place, and copies the sum: same
      // bits everywhere.
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      if (type == ReduceType::kBF16) {
        options.setOutput(static_cast<uint16_t*>(data), elements);
        options.setReduceFunction(AddBF16);
      } else {
        options.setOutput(static_cast<float*>(data), elements);
        options.setReduceFunction(AddF32);
      }
      gloo::allreduce(options);
    });
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    return Guarded([&] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(static_cast<char*>(data), bytes);
      options.setRoot(root);
      gloo::broadcast(options);
    });
  }

  absl::Status Barrier() override {
    return Guarded([&] {
      gloo::BarrierOptions options(context_);
      gloo::barrier(options);
    });
  }

 private:
  template <typename F>
  absl::Status Guarded(F call) {
    try {
      call();
      return absl::OkStatus();
    } catch (const std::exception& e) {
      return absl::UnavailableError(absl::StrCat("group ", name_, ": a peer is lost: ", e.what()));
    }
  }

  const std::string name_;
  const std::shared_ptr<gloo::Context> context_;
};

// Opens the connections that are opened on first use, and proves that sums arrive.
absl::Status WarmUp(Communicator* group) {
  float one = 1;
  RETURN_IF_ERROR(group->AllReduce(&one, 1, ReduceType::kF32));
  if (one == static_cast<float>(group->size())) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the sum of ones over ", group->size(), " ranks is ", one));
}

std::shared_ptr<gloo::Context> Connect(const GroupOptions& options, RendezvousStore* store) {
  gloo::transport::tcp::attr attr;
  attr.hostname = options.interface_address.empty() ? PrimaryAddress() : options.interface_address;
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attr);
  auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
  context->setTimeout(std::chrono::milliseconds(options.timeout_ms));
  StoreAdapter adapter(store, options);
  context->connectFullMesh(adapter, device);
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(const GroupOptions& options,
                                                          RendezvousStore* store) {
  if (options.size == 1) return std::make_unique<Alone>();
  // Gloo writes to its sockets without MSG_NOSIGNAL: a lost peer would end this process instead of
  // the call.
  ::signal(SIGPIPE, SIG_IGN);
  try {
    std::unique_ptr<Communicator> group =
        std::make_unique<GlooCommunicator>(options.name, Connect(options, store));
    RETURN_IF_ERROR(WarmUp(group.get()));
    return group;
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("group ", options.name, ": cannot connect rank ",
                                               options.rank, " of ", options.size, ": ", e.what()));
  }
}

}  // namespace terrace
