// What a run over many layouts has found so far: how many passed, and the largest error of each
// quantity beside its bound, which says how much room a bound leaves. Printed now and then, for
// what runs for long, and written as one JSON object where TERRACE_LAYOUTS_RESULT names a file.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace terrace {

class Tally {
 public:
  Tally(std::string shard, size_t cases) : shard_(std::move(shard)), cases_(cases) {}

  // An error of "fp32 loss" of some layout, over its bound.
  void Note(const std::string& quantity, double ratio, const std::string& where);
  void CountTrained() { ++trained_; }       // in turns
  void CountOnThreads() { ++on_threads_; }  // and on threads, over Gloo
  void CountSamePrograms() {
    ++same_;
  }                                    // byte for byte those of a layout before: not trained again
  void CountPaged() { ++paged_; }      // trained, with pages at second addresses on some stage
  void CountBitwise() { ++bitwise_; }  // equal to another layout, bit for bit
  void Done(bool failed);

  void PrintWorst() const;
  // Of the whole run; false when the file cannot be written.
  bool WriteResult() const;

 private:
  struct Worst {
    double ratio = 0;
    std::string where;
  };
  double Seconds() const;

  const std::string shard_;
  const size_t cases_;
  size_t done_ = 0, failed_ = 0, trained_ = 0, on_threads_ = 0, same_ = 0, bitwise_ = 0, paged_ = 0;
  std::map<std::string, Worst> worst_;  // by quantity
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point printed_ = begin_;
};

}  // namespace terrace
