// Answers requests for completions with one program that generates. Each text of the program is a
// place; what is asked for waits for a place in the order in which it came, and all that have one
// go on side by side, token by token, whatever request they are of.
//
// Borrows what it is made of. Submit() may be called on any thread; Run() is called on one.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/tokenizer.h"
#include "worker/tools/completion_answer.h"
#include "worker/tools/completion_request.h"
#include "worker/tools/growing_texts.h"

namespace terrace {

class Completions {
 public:
  // Both are called on the thread of Run().
  struct Listener {
    // Called once; with an error where the program failed or the server stops.
    std::function<void(absl::StatusOr<std::vector<Choice>>)> reply;
    // Where there is one it gets the parts of each choice as they come. False: nobody reads any
    // more, and the request ends without a reply.
    std::function<bool(const ChoicePart&)> part;
  };

  Completions(GrowingTexts* texts, const Tokenizer& tokenizer)
      : texts_(*texts), tokenizer_(tokenizer), places_(texts->count()) {}

  // RESOURCE_EXHAUSTED where so many wait already that the request is not taken, UNAVAILABLE where
  // the server stops.
  absl::Status Submit(CompletionRequest request, Listener listener) ABSL_LOCKS_EXCLUDED(mutex_);
  // Works until Stop(), then answers what is left with UNAVAILABLE. Returns why the program failed.
  absl::Status Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A request and those of its choices that are done.
  struct Ticket {
    CompletionRequest request;
    Listener listener;
    std::vector<Choice> choices;
    int64_t left = 0;  // 0: whoever asked has an answer, or has gone
  };
  struct Task {
    std::shared_ptr<Ticket> ticket;
    int64_t choice = 0;  // of ticket->choices
  };
  struct Place {
    Task task;
    std::optional<Continuation> continuation;  // none: the place is free
    std::vector<TokenScore> scores;            // of the prompt, then of new tokens
    bool begins = false;                       // its prompt has not been computed
    int64_t told = 0;                          // new tokens that were in a part
    size_t told_bytes = 0;                     // of their texts
  };

  bool TakeTasks() ABSL_LOCKS_EXCLUDED(mutex_);
  void Begin(int64_t place, Task task);
  void Continue(int64_t place);
  bool Tell(int64_t place);
  void End(int64_t place);
  void Free(int64_t place);
  void AnswerAll(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  GrowingTexts& texts_;
  const Tokenizer& tokenizer_;
  std::vector<Place> places_;

  absl::Mutex mutex_;
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
