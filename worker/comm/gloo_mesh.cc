// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/gloo_mesh.h"

#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/interface_address.h"
#include "base/strings.h"
#include "gloo/barrier.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/device.h"

namespace terrace {
namespace {

// How long a wait lasts at least before it looks whether its connection stands, and at most twice
// that.
constexpr std::chrono::milliseconds kPatience{400};
// Over a broken connection nothing comes any more, but what came before may not have been noticed:
// by a wait that was interrupted before it looked, for example. So many come back empty-handed.
constexpr int kLastWaits = 3;

int64_t SteadyNanos() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

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
  // Through Gloo only an exception reaches Connect again.
  static void Check(const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }

  RendezvousStore* const store_;
  const GroupOptions& options_;
};

std::shared_ptr<gloo::Context> ConnectContext(const GroupOptions& options, RendezvousStore* store) {
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

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(const GroupOptions& options,
                                                            RendezvousStore* store) {
  try {
    return std::unique_ptr<GlooMesh>(new GlooMesh(options, ConnectContext(options, store)));
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("group ", options.name, ": cannot connect member ",
                                               options.rank, " of ", options.size, ": ", e.what()));
  }
}

GlooMesh::GlooMesh(const GroupOptions& options, std::shared_ptr<gloo::Context> context)
    : options_(options), context_(std::move(context)), questions_(options.size) {
  const LinkLimit& limit = options_.link;
  if (limit.bytes_per_second > 0 || limit.latency_seconds > 0) {
    for (int peer = 0; peer < size(); ++peer) pacers_.push_back(std::make_unique<Pacer>(limit));
  }
  interrupts_ = std::thread(&GlooMesh::InterruptLongWaits, this);
}

GlooMesh::~GlooMesh() {
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  interrupts_.join();
}

void GlooMesh::InterruptLongWaits() {
  const absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&ending_), absl::FromChrono(kPatience))) {
    const int64_t since_ns = SteadyNanos() - std::chrono::nanoseconds(kPatience).count();
    for (Window* window : windows_) window->InterruptIfSince(since_ns);
  }
}

absl::Status GlooMesh::Barrier() {
  if (aborted_.load()) return Aborted();
  try {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return Lost(-1, e.what());
  }
}

// Whoever registers later sees the flag, whoever waits already is woken.
void GlooMesh::Abort() {
  aborted_.store(true);
  const absl::MutexLock lock(&mutex_);
  for (Window* window : windows_) {
    window->Interrupt(Window::Direction::kSend);
    window->Interrupt(Window::Direction::kReceive);
  }
}

void GlooMesh::Register(Window* window) {
  const absl::MutexLock lock(&mutex_);
  windows_.insert(window);
}

void GlooMesh::Unregister(Window* window) {
  const absl::MutexLock lock(&mutex_);
  windows_.erase(window);
}

absl::Status GlooMesh::Lost(int peer, std::string_view problem) const {
  std::string who = "a peer";
  peer = PeerWith(problem, peer);
  if (peer >= 0) {
    const bool named = static_cast<int>(options_.ranks.size()) == options_.size;
    who = absl::StrCat("rank ", named ? options_.ranks[peer] : static_cast<uint32_t>(peer));
  }
  return absl::UnavailableError(
      absl::StrCat("group ", options_.name, ": ", who, " is lost: ", Absl(problem)));
}

int GlooMesh::PeerWith(std::string_view problem, int asked) const {
  if (asked >= 0 && ProblemOf(asked) == problem) return asked;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && ProblemOf(peer) == problem) return peer;
  }
  return asked;
}

// A wait that is interrupted before it begins says what Gloo has told, and else ends at once. A
// connection that is broken already refuses the question.
std::string GlooMesh::ProblemOf(int peer) const {
  static char nothing = 0;
  const absl::MutexLock lock(&questions_mutex_);
  try {
    for (int i = 0; i < size(); ++i) {
      if (i == rank() || (peer >= 0 && i != peer)) continue;
      if (questions_[i] == nullptr) {
        auto question = context_->createUnboundBuffer(&nothing, sizeof nothing);
        question->recv(i, static_cast<uint64_t>(Tag::kQuestion), 0, sizeof nothing);
        questions_[i] = std::move(question);
      }
      questions_[i]->abortWaitRecv();
      questions_[i]->waitRecv();
    }
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

absl::Status GlooMesh::Aborted() const {
  return absl::CancelledError(absl::StrCat("group ", options_.name, ": given up by this rank"));
}

void GlooMesh::Pace(Tag tag, int to, int64_t bytes, int64_t ready_ns) {
  pacers_[tag == Tag::kCollective ? rank() : to]->Cross(bytes, ready_ns);
}

Window::Window(GlooMesh* mesh, Tag tag, void* data, int64_t bytes)
    : mesh_(mesh), tag_(tag), buffer_(mesh->context_->createUnboundBuffer(data, bytes)) {
  mesh_->Register(this);
}

Window::~Window() { mesh_->Unregister(this); }

void Window::Interrupt(Direction direction) {
  direction == Direction::kSend ? buffer_->abortWaitSend() : buffer_->abortWaitRecv();
}

void Window::InterruptIfSince(int64_t nanos) {
  const auto is_long = [nanos](const std::atomic<int64_t>& since_ns) {
    const int64_t since = since_ns.load(std::memory_order_relaxed);
    return since != 0 && since <= nanos;
  };
  if (is_long(sends_since_ns_)) Interrupt(Direction::kSend);
  if (is_long(receives_since_ns_)) Interrupt(Direction::kReceive);
}

absl::Status Window::Send(int to, int64_t offset, int64_t bytes, int64_t ready_ns) {
  if (!mesh_->pacers_.empty()) mesh_->Pace(tag_, to, bytes, ready_ns);
  if (mesh_->aborted_.load(std::memory_order_relaxed)) return mesh_->Aborted();
  try {
    buffer_->send(to, static_cast<uint64_t>(tag_), offset, bytes);
  } catch (const std::exception& e) {
    return mesh_->Lost(to, e.what());
  }
  mesh_->bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status Window::Receive(int from, int64_t offset, int64_t bytes) {
  if (mesh_->aborted_.load(std::memory_order_relaxed)) return mesh_->Aborted();
  try {
    buffer_->recv(from, static_cast<uint64_t>(tag_), offset, bytes);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return mesh_->Lost(from, e.what());
  }
}

absl::Status Window::WaitSent(int peer) { return Wait(Direction::kSend, peer); }
absl::Status Window::WaitReceived(int peer) { return Wait(Direction::kReceive, peer); }

absl::Status Window::Wait(Direction direction, int peer) {
  const int64_t begin_ns = SteadyNanos();
  std::string problem;
  try {
    for (int last_waits = 0; last_waits < kLastWaits; last_waits += problem.empty() ? 0 : 1) {
      if (mesh_->aborted_.load()) return mesh_->Aborted();
      if (WaitOnce(direction)) return absl::OkStatus();
      if (problem.empty()) problem = mesh_->ProblemOf(peer);
      // Interruptions begin Gloo's own count anew.
      const int64_t timeout_ms = CallTimeoutMs(mesh_->options_);
      if (problem.empty() && SteadyNanos() - begin_ns > timeout_ms * 1'000'000) {
        problem = absl::StrCat("no message for ", timeout_ms, " ms");
        break;
      }
    }
  } catch (const std::exception& e) {
    problem = e.what();
  }
  return mesh_->Lost(peer, problem);
}

bool Window::WaitOnce(Direction direction) {
  const bool sends = direction == Direction::kSend;
  std::atomic<int64_t>& since_ns = sends ? sends_since_ns_ : receives_since_ns_;
  since_ns.store(SteadyNanos(), std::memory_order_relaxed);
  const bool completed = sends ? buffer_->waitSend() : buffer_->waitRecv();
  since_ns.store(0, std::memory_order_relaxed);
  return completed;
}

}  // namespace terrace
