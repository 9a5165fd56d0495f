// Writes Python's pickle format, protocol 2, as far as plain data needs it: dictionaries, lists,
// pairs, strings, integers, booleans. The order of calls is the order of the data:
//
//   pickle.BeginDict(); pickle.String("a"); pickle.Int(1); pickle.EndDict(); pickle.Finish()
//
// Lists are written in batches of kPickleBatch items, as Python does: readers in JavaScript pass
// the items of one opcode as arguments of one call, of which an engine allows some 100,000.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

inline constexpr int kPickleBatch = 1000;

class Pickle {
 public:
  Pickle();
  void BeginDict();  // then keys and values in turn
  void EndDict();
  void BeginList();
  void EndList();
  void Pair(int64_t first, int64_t second);
  void String(std::string_view text);
  void Int(int64_t value);
  void Bool(bool value);
  // The bytes; nothing may follow.
  std::string Finish() &&;

 private:
  void RawInt(int64_t value);
  void EndItem();

  std::string out_;
  // Of each container that has begun: items of a list since its last opcode; kOfDict.
  std::vector<int> items_;
};

}  // namespace terrace
