// A command line of Megatron-LM, read flag by flag: the flags in the order written, and by name
// their values as numbers.
//
// Thread-safe: constant once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

struct MegatronWords {
  std::string name;  // without the two dashes
  std::vector<std::string> values;
  std::string value() const;  // with spaces between
};

class MegatronLine {
 public:
  // INVALID_ARGUMENT for quotes that do not close, and for lines that are none.
  static absl::StatusOr<MegatronLine> Parse(std::string_view text);

  const std::vector<MegatronWords>& flags() const { return flags_; }
  bool Given(const std::string& name) const { return by_name_.contains(name); }
  // The last one counts, as for Megatron; "" for what is not given.
  std::string Value(const std::string& name) const;
  // Whole, from 0 to a billion. INVALID_ARGUMENT names the flag.
  absl::StatusOr<int64_t> Number(const std::string& name, int64_t fallback) const;
  absl::StatusOr<double> Real(const std::string& name, double fallback) const;

 private:
  std::vector<MegatronWords> flags_;
  std::map<std::string, size_t> by_name_;  // in flags_
};

}  // namespace terrace
