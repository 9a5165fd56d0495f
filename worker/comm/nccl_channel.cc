// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/nccl_channel.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

// A wait begins with short questions, as most calls take microseconds, and then leaves the
// processor to others between them.
constexpr int64_t kSpinNanos = 2'000'000;
constexpr auto kSleep = std::chrono::microseconds(50);
constexpr int kRoundsPerErrorCheck = 16;
// How long the others may take to leave a group that is closed; later this one leaves alone.
constexpr int64_t kCloseNanos = 5'000'000'000;

int64_t NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Started(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

}  // namespace

uint32_t NcclGroup::RankOf(int member) const {
  const bool named = static_cast<int>(options_.ranks.size()) == options_.size;
  return named ? options_.ranks[member] : static_cast<uint32_t>(member);
}

void NcclGroup::Break(const absl::Status& failure) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) failure_ = failure;
  broken_.store(true);
}

absl::Status NcclGroup::Check() const {
  if (aborted()) {
    return absl::CancelledError(absl::StrCat("group ", options_.name, ": given up by this rank"));
  }
  if (!broken_.load(std::memory_order_relaxed)) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return failure_;
}

absl::StatusOr<std::unique_ptr<NcclChannel>> NcclChannel::Connect(NcclGroup* group,
                                                                  const Place& place,
                                                                  const ncclUniqueId& id,
                                                                  cudaStream_t stream) {
  std::unique_ptr<NcclChannel> channel(new NcclChannel(group));
  RETURN_IF_ERROR(channel->Open(place, id, stream));
  return channel;
}

absl::Status NcclChannel::Open(const Place& place, const ncclUniqueId& id, cudaStream_t stream) {
  RETURN_IF_ERROR(Must(cudaGetDevice(&device_)));
  RETURN_IF_ERROR(Begin({.name = "connecting", .amount = place.size, .unit = "members"}));
  if (stream == nullptr) {
    RETURN_IF_ERROR(Must(cudaStreamCreateWithFlags(&own_stream_, cudaStreamNonBlocking)));
  }
  stream_ = stream == nullptr ? own_stream_ : stream;
  RETURN_IF_ERROR(Must(cudaEventCreateWithFlags(&ran_, cudaEventDisableTiming)));
  if (place.size == 1) return absl::OkStatus();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (place.max_ctas > 0) config.maxCTAs = place.max_ctas;
  const ncclResult_t result = ncclCommInitRankConfig(&comm_, place.size, id, place.rank, &config);
  if (!Started(result)) return GiveUp(Failure(result));
  return WaitForComm();
}

NcclChannel::~NcclChannel() {
  cudaSetDevice(device_);
  Close();
  if (ran_ != nullptr) cudaEventDestroy(ran_);
  if (own_stream_ != nullptr) cudaStreamDestroy(own_stream_);
}

// In peace: all members finish what is under way. Otherwise nobody waits for anybody.
void NcclChannel::Close() {
  if (comm_ == nullptr) return;
  bool peace = group_->Check().ok();
  if (peace) {
    Deregister();
    begun_ns_ = NowNanos();
    deadline_ns_ = begun_ns_ + kCloseNanos;
    peace = Started(ncclCommFinalize(comm_)) && WaitForComm().ok();
  }
  if (comm_ == nullptr) return;  // the wait has given it up
  if (peace) {
    ncclCommDestroy(comm_);
  } else {
    ncclCommAbort(comm_);
  }
  comm_ = nullptr;
}

absl::Status NcclChannel::Begin(const Operation& operation, int64_t expected_ns) {
  operation_ = operation;
  begun_ns_ = NowNanos();
  deadline_ns_ = begun_ns_ + expected_ns + CallTimeoutMs(group_->options()) * 1'000'000;
  RETURN_IF_ERROR(Problems());
  // Each stream of a program has a thread, and each thread a current device.
  return Must(cudaSetDevice(device_));
}

absl::Status NcclChannel::Launch(absl::FunctionRef<ncclResult_t()> start) {
  const ncclResult_t result = start();
  if (!Started(result)) return GiveUp(Failure(result));
  return WaitForComm();
}

absl::Status NcclChannel::Copy(void* out, const void* in, int64_t bytes) {
  if (out == in || bytes == 0) return absl::OkStatus();
  return Must(cudaMemcpyAsync(out, in, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_));
}

absl::Status NcclChannel::Finish() {
  if (captured_) return absl::OkStatus();
  RETURN_IF_ERROR(Must(cudaEventRecord(ran_, stream_)));
  return WaitWhile([this]() -> absl::StatusOr<bool> {
    const cudaError_t state = cudaEventQuery(ran_);
    if (state == cudaSuccess) return false;
    if (state == cudaErrorNotReady) return true;
    return Failure(state);
  });
}

// Registering asks the other members nothing: a refusal is this one's alone and leaves the
// communicator as it was.
absl::StatusOr<std::string> NcclChannel::Register(void* memory, int64_t bytes) {
  RETURN_IF_ERROR(Begin({.name = "registering memory", .amount = bytes, .unit = "bytes"}));
  if (comm_ == nullptr) return "";
  void* handle = nullptr;
  const ncclResult_t result = ncclCommRegister(comm_, memory, static_cast<size_t>(bytes), &handle);
  if (!Started(result)) {
    return absl::StrCat("NCCL refuses it: ", ncclGetErrorString(result), ": ",
                        ncclGetLastError(comm_));
  }
  RETURN_IF_ERROR(WaitForComm());
  if (handle == nullptr) return "NCCL is set to register nothing (NCCL_LOCAL_REGISTER)";
  registered_.push_back(handle);
  return "";
}

void NcclChannel::Deregister() {
  for (void* handle : registered_) {
    if (comm_ != nullptr) ncclCommDeregister(comm_, handle);
  }
  registered_.clear();
}

absl::Status NcclChannel::WaitForComm() {
  return WaitWhile([this]() -> absl::StatusOr<bool> {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) return Failure(asked);
    if (!Started(state)) return Failure(state);
    return state == ncclInProgress;
  });
}

absl::Status NcclChannel::WaitWhile(absl::FunctionRef<absl::StatusOr<bool>()> goes_on) {
  const int64_t begin = NowNanos();
  for (int64_t round = 0;; ++round) {
    const absl::StatusOr<bool> more = goes_on();
    if (!more.ok()) return GiveUp(more.status());
    if (!*more) return absl::OkStatus();
    if (round % kRoundsPerErrorCheck == 0) RETURN_IF_ERROR(Problems());
    RETURN_IF_ERROR(CheckDeadline());
    if (NowNanos() - begin < kSpinNanos) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

absl::Status NcclChannel::CheckDeadline() {
  const int64_t now = NowNanos();
  if (now <= deadline_ns_) return absl::OkStatus();
  return GiveUp(absl::UnavailableError(
      absl::StrCat(Where(), " has not ended after ", (now - begun_ns_) / 1'000'000,
                   " ms: a member is lost, or does not take part")));
}

absl::Status NcclChannel::Check() {
  RETURN_IF_ERROR(Problems());
  return CheckDeadline();
}

// Whatever else ends a call than its own end.
absl::Status NcclChannel::Problems() {
  if (absl::Status status = group_->Check(); !status.ok()) return GiveUp(std::move(status));
  if (comm_ == nullptr) return absl::OkStatus();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  const ncclResult_t result = asked == ncclSuccess ? state : asked;
  return Started(result) ? absl::OkStatus() : GiveUp(Failure(result));
}

// Ends the kernels of this channel, and the other channels' calls with them.
absl::Status NcclChannel::GiveUp(absl::Status failure) {
  group_->Break(failure);
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  return failure;
}

absl::Status NcclChannel::Must(cudaError_t error) {
  return error == cudaSuccess ? absl::OkStatus() : GiveUp(Failure(error));
}

absl::Status NcclChannel::Failure(ncclResult_t result) const {
  const std::string what = absl::StrCat(Where(), " failed: NCCL: ", ncclGetErrorString(result),
                                        ": ", ncclGetLastError(comm_));
  switch (result) {
    case ncclRemoteError:
    case ncclSystemError:
      return absl::UnavailableError(absl::StrCat(what, "; a member is lost"));
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::InvalidArgumentError(what);
    default:
      return absl::InternalError(what);
  }
}

absl::Status NcclChannel::Failure(cudaError_t error) const {
  return absl::InternalError(absl::StrCat(Where(), " failed: CUDA: ", cudaGetErrorString(error)));
}

std::string NcclChannel::Where() const {
  const GroupOptions& options = group_->options();
  std::string where =
      absl::StrCat("group ", options.name, ": rank ", group_->RankOf(options.rank), ": ",
                   Absl(operation_.name), " of ", operation_.amount, " ", Absl(operation_.unit));
  if (operation_.peer >= 0) absl::StrAppend(&where, " with rank ", group_->RankOf(operation_.peer));
  return where;
}

}  // namespace terrace
