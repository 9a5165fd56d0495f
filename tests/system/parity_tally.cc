// SPDX-License-Identifier: Apache-2.0
#include "tests/system/parity_tally.h"

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace terrace {

double Tally::Seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void Tally::Note(const std::string& quantity, double ratio, const std::string& where) {
  Worst& worst = worst_[quantity];
  if (ratio > worst.ratio) worst = {ratio, where};
}

void Tally::Done(bool failed) {
  ++done_;
  failed_ += failed;
  const auto now = std::chrono::steady_clock::now();
  if (done_ % 200 != 0 && done_ != cases_ && now - printed_ < std::chrono::minutes(1)) return;
  printed_ = now;
  std::cout << absl::StrFormat(
      "%d of %d layouts (%d with the programs of others, %d on threads as well), %d failed, %.0f "
      "s; errors over bounds:",
      done_, cases_, same_, on_threads_, failed_, Seconds());
  for (const auto& [what, worst] : worst_)
    std::cout << absl::StrFormat(" %s %.2f", what, worst.ratio);
  std::cout << std::endl;
}

void Tally::PrintWorst() const {
  for (const auto& [what, worst] : worst_) {
    std::cout << absl::StrFormat("%s: at most %.3f of the bound, %s", what, worst.ratio,
                                 worst.where)
              << std::endl;
  }
}

bool Tally::WriteResult() const {
  const char* path = std::getenv("TERRACE_LAYOUTS_RESULT");
  if (path == nullptr) return true;
  nlohmann::json result = {{"shard", shard_},
                           {"cases", cases_},
                           {"done", done_},
                           {"passed", done_ - failed_},
                           {"trained", trained_},
                           {"same_programs", same_},
                           {"on_threads", on_threads_},
                           {"bitwise_equal", bitwise_},
                           {"paged", paged_},
                           {"seconds", Seconds()},
                           {"cpu_seconds", static_cast<double>(std::clock()) / CLOCKS_PER_SEC}};
  for (const auto& [what, worst] : worst_)
    result["worst"][what] = {{"ratio", worst.ratio}, {"where", worst.where}};
  std::ofstream file(path);
  file << result.dump() << "\n";
  return static_cast<bool>(file.flush());
}

}  // namespace terrace
