// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>

#include "base/log.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/small_cluster.h"
#include "tests/fuzz/target.h"

// Messages as they come over the network, some after each other: each is a byte that says what it
// is, its length in two bytes (the lower one first), and its bytes. What is no message gRPC refuses
// before anybody sees it.
namespace terrace {
namespace {

constexpr int kMessagesMax = 64;
constexpr uint8_t kClockGoesOn = 255;  // by a second

void ForEachMessage(std::string_view input,
                    const std::function<void(uint8_t kind, std::string_view bytes)>& take) {
  for (int i = 0; i < kMessagesMax && input.size() >= 3; ++i) {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(input[at]); };
    const size_t length = byte(1) | static_cast<size_t>(byte(2)) << 8;
    const uint8_t kind = byte(0);
    input.remove_prefix(3);
    const std::string_view bytes = input.substr(0, length);
    input.remove_prefix(bytes.size());
    take(kind, bytes);
  }
}

void Judge(const absl::Status& status) {
  if (!status.ok()) JudgeRefusal(status);
}

// What is shown can be sent: it is written and read again.
template <typename Message>
void JudgeAnswer(const absl::StatusOr<Message>& answer) {
  if (!answer.ok()) return JudgeRefusal(answer.status());
  Message again;
  FuzzRequire(again.ParseFromString(answer->SerializeAsString()), "an answer can be read", "");
}

void Quiet() {
  static const bool quiet = [] {
    log::Init("fuzz", log::Level::kError);
    google::protobuf::SetLogHandler(nullptr);
    return true;
  }();
  (void)quiet;
}

template <typename Request>
void With(std::string_view bytes, const std::function<void(const Request&)>& call) {
  Request request;
  if (request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) call(request);
}

JobFilter FilterOf(const v1::ListPageRequest& request) {
  JobFilter filter{.owner = request.owner(), .array = request.array(), .text = request.text()};
  for (const int state : request.states())
    filter.states.push_back(static_cast<v1::JobState>(state));
  return filter;
}

// The calls of clients that decide about jobs and workers, by the kind of a message.
void Call(SmallCluster& cluster, uint8_t kind, std::string_view bytes) {
  Reconciler& to = cluster.reconciler();
  switch (kind % 9) {
    case 0:
      return With<v1::ListPageRequest>(bytes, [&](const auto& request) {
        const int64_t limit = 1 + std::abs(request.limit() % 1000);
        JudgeAnswer(
            to.ListPage(FilterOf(request),
                        {.before = request.before(), .limit = limit, .whole = request.whole()}));
      });
    case 1:
      return With<v1::DrainRequest>(
          bytes, [&](const auto& request) { JudgeAnswer(to.Drain(request, "fuzz")); });
    case 2:
      return With<v1::UndrainRequest>(
          bytes, [&](const auto& request) { JudgeAnswer(to.Undrain(request.node(), "fuzz")); });
    case 3:
      return With<v1::CancelJobRequest>(bytes, [&](const auto& request) {
        JudgeAnswer(to.Cancel(request.id(), request.force()));
      });
    case 4:
      return With<v1::PauseJobRequest>(bytes, [&](const auto& request) {
        JudgeAnswer(to.Pause(request.id(), request.force()));
      });
    case 5:
      return With<v1::ResumeJobRequest>(
          bytes, [&](const auto& request) { JudgeAnswer(to.Resume(request.id())); });
    case 6:
      return With<v1::RequeueRequest>(bytes, [&](const auto& request) {
        JudgeAnswer(to.Requeue(request.id(), request.force()));
      });
    case 7:
      return With<v1::SubmitAfterRequest>(
          bytes, [&](const auto& request) { Judge(to.CheckAfter(request.dependencies())); });
    default:
      return With<v1::SubmitMemberRequest>(
          bytes, [&](const auto& request) { Judge(to.CheckMember(request.member(), "alice")); });
  }
}

}  // namespace

// Whatever a worker says, the job of another one runs on.
void FuzzWorkerMessages(std::string_view input) {
  Quiet();
  SmallCluster cluster;
  ForEachMessage(input, [&](uint8_t kind, std::string_view bytes) {
    if (kind == kClockGoesOn) return cluster.Pass(1000);
    With<v1::WorkerMessage>(bytes,
                            [&](const auto& message) { Judge(cluster.HostileSays(message)); });
    cluster.RequireVictimIsWell();
  });
  JudgeAnswer(cluster.reconciler().ListPage({}, {.whole = true}));
  JudgeAnswer(cluster.reconciler().HistoryOf(cluster.hostiles_job()));
}

// Whatever clients ask, in any order, is answered or refused with a sentence.
void FuzzClientCalls(std::string_view input) {
  Quiet();
  SmallCluster cluster;
  ForEachMessage(input, [&](uint8_t kind, std::string_view bytes) {
    if (kind == kClockGoesOn) return cluster.Pass(1000);
    Call(cluster, kind, bytes);
    cluster.Pass(0);
  });
  JudgeAnswer(cluster.reconciler().ListPage({}, {.whole = true}));
}

}  // namespace terrace
