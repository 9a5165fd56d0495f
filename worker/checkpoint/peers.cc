// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/peers.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

// What a rank tells the others. Long enough for a path and a reason; the rank itself reports all.
struct Word {
  AgreedValues values = {};
  int32_t code = 0;
  char text[500] = {};
};

Word WordOf(const absl::Status& status, const AgreedValues& values) {
  Word word = {.values = values, .code = static_cast<int32_t>(status.code())};
  const std::string_view message = Std(status.message());
  message.copy(word.text, std::min(message.size(), sizeof(word.text) - 1));
  return word;
}

}  // namespace

absl::StatusOr<std::vector<AgreedValues>> Agree(CheckpointPeers* peers, const absl::Status& own,
                                                const AgreedValues& given) {
  if (peers == nullptr) {
    RETURN_IF_ERROR(own);
    return std::vector<AgreedValues>{given};
  }
  const Word word = WordOf(own, given);
  std::vector<Word> words(peers->size());
  const absl::Status gathered = peers->AllGather(&word, words.data(), sizeof(word));
  RETURN_IF_ERROR(own);  // says more than that a peer is lost, too
  RETURN_IF_ERROR(gathered);
  std::vector<AgreedValues> values;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    Word& other = words[rank];
    other.text[sizeof(other.text) - 1] = '\0';
    if (other.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(other.code),
                          absl::StrCat("rank ", rank, ": ", other.text));
    }
    values.push_back(other.values);
  }
  return values;
}

absl::StatusOr<std::vector<int64_t>> Agree(CheckpointPeers* peers, const absl::Status& own,
                                           int64_t value) {
  ASSIGN_OR_RETURN(const std::vector<AgreedValues> all, Agree(peers, own, AgreedValues{value}));
  std::vector<int64_t> values;
  for (const AgreedValues& given : all) values.push_back(given[0]);
  return values;
}

}  // namespace terrace
