// Says on a terminal what a command waits for, from the moment when a person begins to wonder.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace terrace {

// While it lives: after two seconds "planning, 2 s" on standard error, renewed each second, wiped
// at the end. Silent where standard error is no terminal. Thread-compatible.
class Waiting {
 public:
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // From now on it is this that is waited for.
  void Say(std::string what);

 private:
  void Run();

  std::string what_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace terrace
