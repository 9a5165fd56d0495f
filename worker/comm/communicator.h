// Collectives and messages of one group of ranks. NCCL and Gloo stand behind this interface.
//
// All members call the same collectives in the same order. Calls block until the local part is
// done; run them on a stream's own thread. A lost peer gives UNAVAILABLE with the group's name and
// the peer; the group is broken then, and the rank ends.
//
// Collectives are called on one thread at a time. Send and Receive may run at the same time as a
// collective and as each other: one thread for each direction and peer. Abort and bytes_sent: any.
//
// Nothing here needs memory of the size of a payload: sums pass through segments that are reserved
// when the group is connected.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

enum class ReduceType { kF32, kBF16, kF16 };

// What a group offers whose collectives can be part of a device's graph: they are written down
// once, on all members or on none, and every launch of that graph is one of all members too.
//
// Thread rule: that of collectives.
class GraphCollectives {
 public:
  virtual ~GraphCollectives() = default;

  // Between the two collectives are put on the group's stream, which somebody captures, and not
  // waited for. EndCapture also after a failure; the bytes that each run of them will send, or what
  // has broken the group meanwhile: then it takes no calls one by one either.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<int64_t> EndCapture() = 0;

  // Around each run of the graph. While it runs CheckRun says, again and again, whether it can
  // still end: as calls that wait do, it breaks the group where a member is lost or time is over.
  // `one_by_one_ns`: what the graph holds took when it was last launched one by one. A run has
  // several times that beside the time that a call has, as it holds many calls and what is computed
  // between them. Members that measure it differently, or give up at other times, do no harm: the
  // first that does breaks the group for all.
  virtual absl::Status BeginRun(int64_t one_by_one_ns) = 0;
  virtual absl::Status CheckRun() = 0;
  virtual void EndRun(int64_t sent_bytes) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;  // N

  // Sum, in place. Deterministic: the same inputs give the same bits on every member and every run.
  virtual absl::Status AllReduce(void* data, int64_t elements, ReduceType type) = 0;
  // in: N * elements, out: elements; out may be in's own part (in + rank * elements) or apart from
  // it.
  // The sums are AllReduce's, bit for bit.
  virtual absl::Status ReduceScatter(const void* in, void* out, int64_t elements,
                                     ReduceType type) = 0;
  // in: bytes, out: N * bytes; in may be out's own part (out + rank * bytes) or apart from it.
  virtual absl::Status AllGather(const void* in, void* out, int64_t bytes) = 0;
  // in and out: N * bytes, apart. Part j of member i becomes part i of member j.
  virtual absl::Status AllToAll(const void* in, void* out, int64_t bytes) = 0;
  // To member rank + 1, from member rank - 1 (mod N). in and out apart. A group of one copies.
  virtual absl::Status RingShift(const void* in, void* out, int64_t bytes) = 0;
  virtual absl::Status Broadcast(void* data, int64_t bytes, int root) = 0;
  // One message; those of one (sender, receiver) arrive in order. Send returns when the memory may
  // be reused.
  virtual absl::Status Send(const void* data, int64_t bytes, int to) = 0;
  virtual absl::Status Receive(void* data, int64_t bytes, int from) = 0;
  virtual absl::Status Barrier() = 0;

  // Makes calls that block, now or later, return CANCELLED: for the end of a rank one of whose
  // other threads has failed. The group is broken then.
  virtual void Abort() = 0;

  // Payload bytes that this member has handed to the network since it was connected. With the
  // payload V, its parts P_j = [j S, (j + 1) S) cut at V, and S = V / N elements rounded up:
  //   all-reduce      2 V - P_i - P_(i+1) on member i; 2 V (N - 1) / N where N divides V
  //   reduce-scatter, all-gather, all-to-all   V (N - 1) / N, V being the operand of N parts
  //   ring shift, send                         V
  //   broadcast       V for each child in the binomial tree; (N - 1) V over all members
  virtual int64_t bytes_sent() const = 0;

  // Null: a thread of the host has a part in every call.
  virtual GraphCollectives* graph_collectives() { return nullptr; }
};

// Where members find each other: a key-value store scoped to one (job, epoch). Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual absl::Status Set(const std::string& key, const std::vector<char>& value) = 0;
  // Blocks until all keys are there. DEADLINE_EXCEEDED names the first missing key.
  virtual absl::StatusOr<std::vector<std::vector<char>>> Wait(const std::vector<std::string>& keys,
                                                              int64_t timeout_ms) = 0;
};

// Slows what a member sends, to see on one machine how slow links behave: a message arrives
// latency + bytes / bytes_per_second after it is ready and those before it have left. Its
// collectives share one such link, messages have one to each peer. Zeros: as fast as the network
// is.
struct LinkLimit {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

struct GroupOptions {
  std::string name;  // unique within the job: "data.0"
  int rank = 0;      // within the group
  int size = 1;
  std::string
      interface_address;  // address to listen on; empty: the one that reaches the host's name
  int64_t timeout_ms = 60'000;
  // What a call waits for the others once they are connected; 0: timeout_ms.
  int64_t call_timeout_ms = 0;
  std::vector<uint32_t> ranks;  // of the members, for messages; empty: 0 to size - 1
  LinkLimit link;
  // What the group is for, where connecting reserves memory for it (NCCL, staging); Gloo ignores
  // all of it. Other members than these refuse Send and Receive; both ends name each other.
  std::vector<int> message_peers;  // members that messages go to or come from
  bool all_to_all = true;          // whether AllToAll is called: it connects every pair
  // Whether all members run one program: operands of a collective lie at one offset of their
  // arenas.
  bool one_layout = false;
};
inline int64_t CallTimeoutMs(const GroupOptions& options) {
  return options.call_timeout_ms > 0 ? options.call_timeout_ms : options.timeout_ms;
}

// Connects every pair and warms each with small operations. A group of one needs no network.
// Ignores SIGPIPE in the whole process from then on.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(const GroupOptions& options,
                                                          RendezvousStore* store);

}  // namespace terrace
