// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/completions.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr size_t kWaitingMax = 4096;  // choices
constexpr char kStops[] = "the server stops";

}  // namespace

absl::Status Completions::Submit(CompletionRequest request, Listener listener) {
  const size_t choices = request.prompts.size() * request.choices;
  auto ticket = std::make_shared<Ticket>(
      Ticket{.request = std::move(request), .listener = std::move(listener), .choices = {}});
  ticket->choices.resize(choices);
  ticket->left = static_cast<int64_t>(choices);
  absl::MutexLock lock(&mutex_);
  if (stopping_) return absl::UnavailableError(kStops);
  if (waiting_.size() > kWaitingMax - std::min(choices, kWaitingMax))
    return absl::ResourceExhaustedError("too many requests wait already: ask again later");
  for (size_t i = 0; i < choices; ++i)
    waiting_.push_back({.ticket = ticket, .choice = static_cast<int64_t>(i)});
  return absl::OkStatus();
}

void Completions::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

absl::Status Completions::Run() {
  while (TakeTasks()) {
    if (absl::Status status = texts_.Run(); !status.ok()) {
      AnswerAll(status);
      return status;
    }
    for (int64_t place = 0; place < texts_.count(); ++place) {
      if (places_[place].continuation.has_value()) Continue(place);
    }
  }
  AnswerAll(absl::UnavailableError(kStops));
  return absl::OkStatus();
}

// Fills free places; waits while there is nothing to do. False when it is time to stop.
bool Completions::TakeTasks() {
  const bool idle = std::none_of(places_.begin(), places_.end(),
                                 [](const Place& place) { return place.continuation.has_value(); });
  std::vector<std::pair<int64_t, Task>> taken;
  {
    absl::MutexLock lock(&mutex_);
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || !waiting_.empty();
    };
    if (idle) mutex_.Await(absl::Condition(&some));
    if (stopping_) return false;
    for (int64_t place = 0; place < texts_.count(); ++place) {
      if (places_[place].continuation.has_value()) continue;
      while (!waiting_.empty() && waiting_.front().ticket->left == 0) waiting_.pop_front();
      if (waiting_.empty()) break;
      taken.emplace_back(place, std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }
  for (auto& [place, task] : taken) Begin(place, std::move(task));
  return true;
}

void Completions::Begin(int64_t place, Task task) {
  const CompletionRequest& request = task.ticket->request;
  const std::vector<int32_t>& prompt = request.prompts[task.choice / request.choices];
  Place& begun = places_[place];
  begun.continuation.emplace(request.each, tokenizer_, prompt, task.choice);
  begun.task = std::move(task);
  begun.scores.clear();
  begun.begins = true;
  begun.told = 0;
  begun.told_bytes = 0;
  texts_.Clear(place);
  // A prompt that is not shown needs no scores.
  texts_.Append(place, prompt, request.each.tokens, request.echo ? request.logprobs : std::nullopt);
}

// After a pass: the scores of the prompt, then a token.
void Completions::Continue(int64_t place) {
  Place& at = places_[place];
  if (at.task.ticket->left == 0) return Free(place);
  Continuation& text = *at.continuation;
  if (std::exchange(at.begins, false)) at.scores = texts_.scores(place);
  const std::span<const float> logits = texts_.logits(place);
  if (!text.done() && text.Add(logits)) {  // done: no tokens were asked for
    if (const auto& logprobs = at.task.ticket->request.logprobs; logprobs.has_value())
      at.scores.push_back(ScoreOf(logits, text.ids().back(), *logprobs));
  }
  if (!Tell(place)) return Free(place);
  if (text.done()) return End(place);
  texts_.Append(place, std::span(text.ids()).last(1), 0);
}

// Gives what is new of a text to whoever reads it in parts. False where nobody does any more.
bool Completions::Tell(int64_t place) {
  Place& at = places_[place];
  Ticket& ticket = *at.task.ticket;
  if (!ticket.listener.part) return true;
  Continuation& text = *at.continuation;
  const std::string_view shown = text.Shown();
  const auto ids = std::span(text.ids()).subspan(text.prompt_tokens() + at.told);
  // Nothing can be shown while a character or a stop is not whole.
  if (shown.empty() && !text.done()) return true;
  const auto scores = std::span(at.scores);
  const bool heard =
      ticket.listener.part({.index = at.task.choice,
                            .first = at.told == 0,
                            .text = shown,
                            .ids = ids,
                            .scores = scores.empty() ? scores : scores.last(ids.size()),
                            .offset = at.told_bytes,
                            .finish = text.finish()});
  at.told += std::ssize(ids);
  for (const int32_t id : ids) at.told_bytes += tokenizer_.Decode({id}).size();
  if (!heard) ticket.left = 0;
  return heard;
}

void Completions::End(int64_t place) {
  Place& at = places_[place];
  const std::shared_ptr<Ticket> ticket = std::move(at.task.ticket);
  const Continuation& text = *at.continuation;
  ticket->choices[at.task.choice] = {.ids = text.ids(),
                                     .prompt_tokens = text.prompt_tokens(),
                                     .text = text.text(),
                                     .finish = text.finish(),
                                     .scores = std::move(at.scores)};
  Free(place);
  if (--ticket->left == 0) ticket->listener.reply(std::move(ticket->choices));
}

void Completions::Free(int64_t place) {
  places_[place].task = {};
  places_[place].continuation.reset();
  texts_.Clear(place);
}

void Completions::AnswerAll(const absl::Status& status) {
  std::deque<Task> tasks;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    tasks.swap(waiting_);
  }
  for (Place& place : places_) {
    if (place.continuation.has_value()) tasks.push_back(std::move(place.task));
    place.continuation.reset();
  }
  for (const Task& task : tasks) {
    if (task.ticket->left == 0) continue;  // another of its choices was here
    task.ticket->left = 0;
    task.ticket->listener.reply(status);
  }
}

}  // namespace terrace
