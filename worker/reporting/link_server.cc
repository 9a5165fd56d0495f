// SPDX-License-Identifier: Apache-2.0
#include "worker/reporting/link_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<LinkServer>> LinkServer::Start(Options options) {
  ASSIGN_OR_RETURN(LinkListener listener, LinkListener::Listen(options.path));
  return std::unique_ptr<LinkServer>(new LinkServer(std::move(options), std::move(listener)));
}

LinkServer::LinkServer(Options options, LinkListener listener)
    : options_(std::move(options)), listener_(std::move(listener)) {
  acceptor_ = std::thread(&LinkServer::AcceptLoop, this);
  sender_ = std::thread(&LinkServer::SendLoop, this);
}

LinkServer::~LinkServer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (connection_ != nullptr) connection_->Shutdown();
  }
  listener_.Close();
  acceptor_.join();
  sender_.join();
  if (receiver_.joinable()) receiver_.join();
}

void LinkServer::AcceptLoop() {
  while (true) {
    auto connection = listener_.Accept();
    if (!connection.ok()) return;
    Adopt(*std::move(connection));
  }
}

// A daemon that dials takes the place of the one before, which may have been killed without a word.
void LinkServer::Adopt(std::shared_ptr<LinkConnection> connection) {
  {
    absl::MutexLock lock(&mutex_);
    if (connection_ != nullptr) connection_->Shutdown();
  }
  if (receiver_.joinable()) receiver_.join();
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  connection_ = connection;
  urgent_ = true;
  report_sent_ = !has_report_;
  metrics_sent_ = !has_metrics_;
  keys_sent_ = 0;
  for (auto& [request, wait] : waits_) wait.sent = false;
  receiver_ = std::thread([this, connection] { ReceiveLoop(connection.get()); });
}

void LinkServer::ReceiveLoop(LinkConnection* connection) {
  while (true) {
    const auto message = connection->Receive();
    if (!message.ok()) break;
    Handle(*message);
  }
  absl::MutexLock lock(&mutex_);
  if (connection_.get() == connection) connection_ = nullptr;
}

// Commands of another job or epoch are not for this process.
void LinkServer::Handle(const v1::LinkMessage& message) {
  switch (message.message_case()) {
    case v1::LinkMessage::kGo:
      if (message.go().job() == options_.job && message.go().epoch() == options_.epoch)
        options_.on_go();
      return;
    case v1::LinkMessage::kStop:
      if (message.stop().job() == options_.job && message.stop().epoch() >= options_.epoch) {
        options_.on_stop(message.stop().checkpoint());
      }
      return;
    case v1::LinkMessage::kKvValues: {
      absl::MutexLock lock(&mutex_);
      const auto wait = waits_.find(message.kv_values().request());
      if (wait == waits_.end()) return;
      wait->second.answer = message.kv_values();
      wait->second.answered = true;
      return;
    }
    default:
      log::Warn("link: the daemon sent a message that is not for ranks, number ",
                int{message.message_case()});
  }
}

void LinkServer::SendLoop() {
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (connection_ != nullptr && SomethingToSend());
  };
  const auto urgent = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || urgent_; };
  while (true) {
    mutex_.Await(absl::Condition(&ready));
    if (stopping_) return;
    const std::shared_ptr<LinkConnection> connection = connection_;
    const v1::LinkMessage message = NextMessage();
    urgent_ = SomethingToSend();
    sending_ = true;
    mutex_.Unlock();
    const absl::Status status = connection->Send(message);
    if (status.ok() && options_.on_sent) options_.on_sent(message);
    mutex_.Lock();
    sending_ = false;
    if (status.ok()) {
      mutex_.AwaitWithTimeout(absl::Condition(&urgent), options_.news_wait);
      continue;
    }
    // For the next daemon.
    events_.insert(events_.begin(), message.events().begin(), message.events().end());
    DropEventsBeyondLimit();
    connection->Shutdown();
    if (connection_ == connection) connection_ = nullptr;
  }
}

bool LinkServer::SomethingToSend() const {
  return !report_sent_ || !metrics_sent_ || keys_sent_ < keys_.size() || !events_.empty() ||
         std::any_of(waits_.begin(), waits_.end(),
                     [](const auto& wait) { return !wait.second.sent; });
}

// State before keys before waits, each with the metrics and events that are there. Marks what it
// returns as sent; a new connection starts over.
v1::LinkMessage LinkServer::NextMessage() {
  v1::LinkMessage message;
  if (!report_sent_) {
    *message.mutable_report() = report_;
    report_sent_ = true;
  } else if (keys_sent_ < keys_.size()) {
    message = keys_[keys_sent_++];
  } else if (auto wait = std::find_if(waits_.begin(), waits_.end(),
                                      [](const auto& w) { return !w.second.sent; });
             wait != waits_.end()) {
    message = wait->second.request;
    wait->second.sent = true;
  }
  if (!metrics_sent_) {
    *message.mutable_metrics() = metrics_;
    metrics_sent_ = true;
  }
  for (v1::JobEvent& event : events_) *message.add_events() = std::move(event);
  events_.clear();
  return message;
}

void LinkServer::Tell(LinkNews news) {
  absl::MutexLock lock(&mutex_);
  if (news.report.has_value()) {
    urgent_ = urgent_ || !has_report_ || news.report->state() != report_.state();
    report_ = *std::move(news.report);
    has_report_ = true;
    report_sent_ = false;
  }
  if (news.metrics.has_value()) {
    metrics_ = *std::move(news.metrics);
    has_metrics_ = true;
    metrics_sent_ = false;
  }
  if (news.event.has_value()) {
    urgent_ = urgent_ || !(news.event->has_step() || news.event->has_activity());
    events_.push_back(*std::move(news.event));
    DropEventsBeyondLimit();
  }
  if (events_.size() >= kNewsEventsMax) urgent_ = true;
}

// The oldest steps go first.
void LinkServer::DropEventsBeyondLimit() {
  while (events_.size() > kMaxQueuedEvents) {
    const auto step = std::find_if(events_.begin(), events_.end(),
                                   [](const v1::JobEvent& e) { return e.has_step(); });
    events_.erase(step == events_.end() ? events_.begin() : step);
  }
}

void LinkServer::Flush(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  urgent_ = urgent_ || SomethingToSend();
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !sending_ && (connection_ == nullptr || !SomethingToSend());
  };
  mutex_.AwaitWithTimeout(absl::Condition(&done), timeout);
}

absl::Status LinkServer::Set(const std::string& key, const std::vector<char>& value) {
  v1::LinkMessage message;
  v1::KvSet* set = message.mutable_kv_set();
  set->set_job(options_.job);
  set->set_epoch(options_.epoch);
  set->set_key(key);
  set->set_value(value.data(), value.size());
  absl::MutexLock lock(&mutex_);
  keys_.push_back(std::move(message));
  urgent_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<char>>> LinkServer::Wait(
    const std::vector<std::string>& keys, int64_t timeout_ms) {
  absl::MutexLock lock(&mutex_);
  const uint64_t request = next_request_++;
  PendingWait& pending = waits_[request];
  v1::KvWait* wait = pending.request.mutable_kv_wait();
  wait->set_job(options_.job);
  wait->set_epoch(options_.epoch);
  wait->set_request(request);
  wait->set_rank(options_.rank);
  wait->set_timeout_ms(timeout_ms);
  for (const std::string& key : keys) wait->add_keys(key);
  urgent_ = true;
  mutex_.AwaitWithTimeout(absl::Condition(&pending.answered), absl::Milliseconds(timeout_ms));
  const bool answered = pending.answered;
  const v1::KvValues answer = std::move(pending.answer);
  waits_.erase(request);
  if (!answered || !answer.error().empty() ||
      answer.values_size() != static_cast<int>(keys.size())) {
    return absl::DeadlineExceededError(absl::StrCat("rendezvous: no value for '",
                                                    keys.empty() ? "" : keys.front(), "' after ",
                                                    timeout_ms, " ms ", answer.error()));
  }
  std::vector<std::vector<char>> values;
  for (const std::string& value : answer.values()) values.emplace_back(value.begin(), value.end());
  return values;
}

}  // namespace terrace
